//! Refused callers: counts every refusal, and rate-limits log lines so that neither a persistent
//! caller nor a flood hides others.

use super::handshake_limiter::{network_of, site_of};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use venice_rack::caller::Caller;
use venice_rack::door::RefusedCounts;

/// Interval between two log lines about the same subject and reason.
const AGAIN_AFTER: Duration = Duration::from_secs(600);
/// Most subjects remembered as logged.
const MAX_TOLD: usize = 1024;
/// Most log lines for one reason in [`MINUTE`].
const LINES: u32 = 30;
/// Most log lines of one [side](Subject::side): a caller under many names leaves lines for others.
const LINES_OF_SIDE: u32 = 5;
const MINUTE: Duration = Duration::from_secs(60);

/// The subject of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    /// Name under which it is logged once.
    name: String,
    /// Common origin of several names: one node with many users, or a site with many addresses.
    side: String,
}

impl Subject {
    /// An unauthenticated peer at this address.
    pub(super) fn at(ip: IpAddr) -> Self {
        Self { name: network_of(ip).to_string(), side: site_of(ip).to_string() }
    }

    /// A caller with a valid certificate.
    pub(super) fn caller(caller: &Caller) -> Self {
        let side = caller.node().map_or_else(|| caller.to_string(), |node| format!("node {node}"));
        Self { name: caller.to_string(), side }
    }

    /// An access to a grant's memory.
    pub(super) fn at_grant(grant: u64) -> Self {
        Self { name: format!("grant {grant}"), side: "the data plane".to_owned() }
    }

    /// An unknown peer.
    pub(super) fn unknown() -> Self {
        Self { name: "?".to_owned(), side: "?".to_owned() }
    }
}

/// Reason of a refusal, by which it is counted.
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
    Uncertified,
    TooMany,
}

/// Number of reasons.
const REASONS: usize = Reason::TooMany as usize + 1;

/// Refusals of a TLS server.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    counts: [AtomicU64; REASONS],
    told: Mutex<LogLimiter>,
}

impl Refusals {
    /// Counts a refusal. Returns the text to log, unless the line is suppressed.
    pub(super) fn refuse(&self, who: &Subject, reason: Reason, why: &str) -> Option<String> {
        self.refuse_many(who, reason, why, 1)
    }

    /// Counts `count` refusals at once.
    pub(super) fn refuse_many(
        &self,
        who: &Subject,
        reason: Reason,
        why: &str,
        count: u64,
    ) -> Option<String> {
        self.counts[reason as usize].fetch_add(count, Ordering::Relaxed);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = told.tell(Instant::now(), who, reason)?;
        Some(match silent {
            0 => why.to_owned(),
            silent => format!("{why} ({silent} more suppressed)"),
        })
    }

    /// Returns the counts since its creation.
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
            uncertified: count(Reason::Uncertified),
            too_many: count(Reason::TooMany),
        }
    }
}

/// State of the log limiter.
#[derive(Debug, Default)]
struct LogLimiter {
    by: BTreeMap<(String, Reason), Instant>,
    lines: BTreeMap<Reason, Lines>,
}

/// Log lines for one reason.
#[derive(Debug)]
struct Lines {
    since: Instant,
    count: u32,
    /// Lines by side.
    counts: BTreeMap<String, u32>,
    /// Suppressed lines since the last one.
    silent: u64,
}

impl LogLimiter {
    /// Decides whether to log a refusal. Returns the number of suppressed lines for the same
    /// reason, or `None` to suppress this one.
    fn tell(&mut self, now: Instant, who: &Subject, reason: Reason) -> Option<u64> {
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

    /// A subject with its own side.
    fn who(name: &str) -> Subject {
        Subject { name: name.to_owned(), side: name.to_owned() }
    }

    #[test]
    fn persistent_caller_is_logged_rarely() {
        let (mut told, now) = (LogLimiter::default(), Instant::now());
        assert_eq!(told.tell(now, &who("noisy"), Reason::Expired), Some(0));
        for _ in 0..1000 {
            assert_eq!(told.tell(now, &who("noisy"), Reason::Expired), None);
        }
        // It hides neither other callers nor other reasons.
        assert_eq!(told.tell(now, &who("noisy"), Reason::Revoked), Some(0));
        assert_eq!(told.tell(now, &who("other"), Reason::Expired), Some(1000));
        assert_eq!(told.tell(now + AGAIN_AFTER, &who("noisy"), Reason::Expired), Some(0));
    }

    #[test]
    fn flood_is_limited_to_some_lines() {
        let (mut told, now) = (LogLimiter::default(), Instant::now());
        let from = |n: usize| Subject::at([10, (n / 256) as u8, (n % 256) as u8, 1].into());
        let lines =
            (0..5 * MAX_TOLD).filter(|n| told.tell(now, &from(*n), Reason::NoTls).is_some());
        assert_eq!(lines.count(), LINES as usize);
        assert_eq!(told.tell(now, &who("one"), Reason::BadToken), Some(0), "another reason");
        // Holds with a full table too.
        let mut later = now;
        for n in 0..2 * MAX_TOLD {
            later += MINUTE;
            assert!(told.tell(later, &who(&format!("late {n}")), Reason::NoTls).is_some(), "{n}");
            assert!(told.by.len() <= MAX_TOLD);
        }
    }

    #[test]
    fn many_names_of_one_side_hide_nobody() {
        let (mut told, now) = (LogLimiter::default(), Instant::now());
        let user = |node: &str, uid: u32| {
            let (node, name) = (node.to_owned(), uid.to_string());
            Subject::caller(&Caller::User(User { node, uid, name, is_admin: false }))
        };
        let net = |net: u16| Subject::at([0x2001, 0xdb8, 0, net, 0, 0, 0, 1].into());
        let noisy = (0..100u8).flat_map(|n| [user("node7", n.into()), net(n.into())]);
        let lines = noisy.filter(|who| told.tell(now, who, Reason::WrongKey).is_some()).count();
        assert_eq!(lines, 2 * LINES_OF_SIDE as usize);
        assert!(told.tell(now, &user("node8", 1), Reason::WrongKey).is_some());
        assert!(told.tell(now, &Subject::at([10, 0, 1, 1].into()), Reason::WrongKey).is_some());
    }

    #[test]
    fn every_refusal_is_counted() {
        let refusals = Refusals::default();
        for _ in 0..3 {
            refusals.refuse(&who("a"), Reason::WrongKey, "no");
        }
        let counts = RefusedCounts { wrong_key: 3, ..RefusedCounts::default() };
        assert_eq!(refusals.counts(), counts);
    }
}
