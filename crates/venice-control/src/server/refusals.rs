//! Who was refused: counted always, and told in the log so that neither one who asks again and again
//! nor many at a time drown the others.

use super::turns::{network_of, site_of};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use venice_rack::caller::Caller;
use venice_rack::door::RefusedCounts;

/// One who is refused for the same reason is told of again after so long.
const AGAIN_AFTER: Duration = Duration::from_secs(600);
/// Those who are remembered as told of.
const MAX_TOLD: usize = 1024;
/// Lines for one reason in [`MINUTE`], whoever they are about.
const LINES: u32 = 30;
/// Of one [side](Who::side): whoever comes under many names leaves lines for others.
const LINES_OF_SIDE: u32 = 5;
const MINUTE: Duration = Duration::from_secs(60);

/// Who is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Who {
    /// As the log is to tell it once.
    name: String,
    /// Whose doing it is, as far as can be told: one may have many users, or many addresses.
    side: String,
}

impl Who {
    /// Somebody at this address, who has shown nothing that says more.
    pub(super) fn at(ip: IpAddr) -> Self {
        Self { name: network_of(ip).to_string(), side: site_of(ip).to_string() }
    }

    /// A caller whose certificate is good.
    pub(super) fn caller(caller: &Caller) -> Self {
        let side = caller.node().map_or_else(|| caller.to_string(), |node| format!("node {node}"));
        Self { name: caller.to_string(), side }
    }

    /// Somebody who has reached for a grant's memory.
    pub(super) fn at_grant(grant: u64) -> Self {
        Self { name: format!("grant {grant}"), side: "the data plane".to_owned() }
    }

    /// Nobody knows from where.
    pub(super) fn unknown() -> Self {
        Self { name: "?".to_owned(), side: "?".to_owned() }
    }
}

/// Why somebody is refused; counted by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    NoTls,
    NoCertificate,
    Expired,
    Revoked,
    Foreign,
    Forbidden,
    BadToken,
    WrongKey,
}

/// Number of reasons.
const REASONS: usize = Reason::WrongKey as usize + 1;

/// What a door has refused.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    counts: [AtomicU64; REASONS],
    told: Mutex<Told>,
}

impl Refusals {
    /// Counts one. What is to be said in the log about it, if it is to be told of.
    pub(super) fn refuse(&self, who: &Who, reason: Reason, why: &str) -> Option<String> {
        self.refuse_so_often(who, reason, why, 1)
    }

    /// The same where it is known only now how often.
    pub(super) fn refuse_so_often(
        &self,
        who: &Who,
        reason: Reason,
        why: &str,
        count: u64,
    ) -> Option<String> {
        self.counts[reason as usize].fetch_add(count, Ordering::Relaxed);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = told.tell(Instant::now(), who, reason)?;
        Some(match silent {
            0 => why.to_owned(),
            silent => format!("{why} (and {silent} more that were not told of)"),
        })
    }

    /// All since it was made.
    pub(super) fn counts(&self) -> RefusedCounts {
        let count = |reason: Reason| self.counts[reason as usize].load(Ordering::Relaxed);
        RefusedCounts {
            no_tls: count(Reason::NoTls),
            no_certificate: count(Reason::NoCertificate),
            expired: count(Reason::Expired),
            revoked: count(Reason::Revoked),
            foreign: count(Reason::Foreign),
            forbidden: count(Reason::Forbidden),
            bad_token: count(Reason::BadToken),
            wrong_key: count(Reason::WrongKey),
        }
    }
}

/// Who was told of.
#[derive(Debug, Default)]
struct Told {
    by: BTreeMap<(String, Reason), Instant>,
    lines: BTreeMap<Reason, Lines>,
}

/// The lines for a reason.
#[derive(Debug)]
struct Lines {
    since: Instant,
    count: u32,
    /// Of each side.
    counts: BTreeMap<String, u32>,
    /// Refusals since the last line that had none.
    silent: u64,
}

impl Told {
    /// Whether a refusal is to be told of, and how many for the same reason were not since the last
    /// that was.
    fn tell(&mut self, now: Instant, who: &Who, reason: Reason) -> Option<u64> {
        let new = || Lines { since: now, count: 0, counts: BTreeMap::new(), silent: 0 };
        let lines = self.lines.entry(reason).or_insert_with(new);
        if now.duration_since(lines.since) >= MINUTE {
            (lines.since, lines.count) = (now, 0);
            lines.counts.clear();
        }
        let key = (who.name.clone(), reason);
        let last = self.by.get(&key);
        let was_told = last.is_some_and(|last| now.duration_since(*last) < AGAIN_AFTER);
        let of_side = lines.counts.get(&who.side).copied().unwrap_or(0);
        if was_told || lines.count >= LINES || of_side >= LINES_OF_SIDE {
            lines.silent += 1;
            return None;
        }
        lines.count += 1;
        lines.counts.insert(who.side.clone(), of_side + 1);
        let silent = std::mem::take(&mut lines.silent);
        if self.by.len() >= MAX_TOLD && !self.by.contains_key(&key) {
            self.forget_oldest();
        }
        self.by.insert(key, now);
        Some(silent)
    }

    fn forget_oldest(&mut self) {
        let oldest = self.by.iter().min_by_key(|(_, at)| **at).map(|(key, _)| key.clone());
        if let Some(oldest) = oldest {
            self.by.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_rack::caller::User;

    /// Somebody without company.
    fn who(name: &str) -> Who {
        Who { name: name.to_owned(), side: name.to_owned() }
    }

    #[test]
    fn who_asks_again_and_again_is_told_of_now_and_then() {
        let (mut told, now) = (Told::default(), Instant::now());
        assert_eq!(told.tell(now, &who("noisy"), Reason::Expired), Some(0));
        for _ in 0..1000 {
            assert_eq!(told.tell(now, &who("noisy"), Reason::Expired), None);
        }
        // Nobody is hidden by it, neither another nor for another reason.
        assert_eq!(told.tell(now, &who("noisy"), Reason::Revoked), Some(0));
        assert_eq!(told.tell(now, &who("other"), Reason::Expired), Some(1000));
        assert_eq!(told.tell(now + AGAIN_AFTER, &who("noisy"), Reason::Expired), Some(0));
    }

    #[test]
    fn many_at_a_time_are_some_lines_and_leave_room_for_those_who_come_later() {
        let (mut told, now) = (Told::default(), Instant::now());
        let from = |n: usize| Who::at([10, (n / 256) as u8, (n % 256) as u8, 1].into());
        let lines =
            (0..5 * MAX_TOLD).filter(|n| told.tell(now, &from(*n), Reason::NoTls).is_some());
        assert_eq!(lines.count(), LINES as usize);
        assert_eq!(told.tell(now, &who("one"), Reason::BadToken), Some(0), "another reason");
        // Also when the table is full.
        let mut later = now;
        for n in 0..2 * MAX_TOLD {
            later += MINUTE;
            assert!(told.tell(later, &who(&format!("late {n}")), Reason::NoTls).is_some(), "{n}");
            assert!(told.by.len() <= MAX_TOLD);
        }
    }

    #[test]
    fn one_that_comes_under_many_names_hides_nobody() {
        let (mut told, now) = (Told::default(), Instant::now());
        let user = |node: &str, uid: u32| {
            let (node, name) = (node.to_owned(), uid.to_string());
            Who::caller(&Caller::User(User { node, uid, name, is_admin: false }))
        };
        let net = |net: u16| Who::at([0x2001, 0xdb8, 0, net, 0, 0, 0, 1].into());
        let noisy = (0..100u8).flat_map(|n| [user("node7", n.into()), net(n.into())]);
        let lines = noisy.filter(|who| told.tell(now, who, Reason::WrongKey).is_some()).count();
        assert_eq!(lines, 2 * LINES_OF_SIDE as usize);
        assert!(told.tell(now, &user("node8", 1), Reason::WrongKey).is_some());
        assert!(told.tell(now, &Who::at([10, 0, 1, 1].into()), Reason::WrongKey).is_some());
    }

    #[test]
    fn all_are_counted() {
        let refusals = Refusals::default();
        for _ in 0..3 {
            refusals.refuse(&who("a"), Reason::WrongKey, "no");
        }
        let counts = RefusedCounts { wrong_key: 3, ..RefusedCounts::default() };
        assert_eq!(refusals.counts(), counts);
    }
}
