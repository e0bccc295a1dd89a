//! Who was refused: counted always, and told in the log so that neither one who asks again and again
//! nor many at a time drown the others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use venice_rack::door::RefusedCounts;

/// One who is refused for the same reason is told of again after so long.
const AGAIN_AFTER: Duration = Duration::from_secs(600);
/// Those who are remembered as told of.
const MAX_TOLD: usize = 1024;
/// Lines for one reason in [`MINUTE`], whoever they are about.
const LINES: u32 = 30;
const MINUTE: Duration = Duration::from_secs(60);

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
    /// Counts one. What is to be said in the log about `whose`, if it is to be told of.
    pub(super) fn refuse(&self, whose: &str, reason: Reason, why: &str) -> Option<String> {
        self.counts[reason as usize].fetch_add(1, Ordering::Relaxed);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = told.tell(Instant::now(), whose, reason)?;
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
    /// Refusals since the last line that had none.
    silent: u64,
}

impl Told {
    /// Whether a refusal is to be told of, and how many for the same reason were not since the last
    /// that was.
    fn tell(&mut self, now: Instant, whose: &str, reason: Reason) -> Option<u64> {
        let new = || Lines { since: now, count: 0, silent: 0 };
        let lines = self.lines.entry(reason).or_insert_with(new);
        if now.duration_since(lines.since) >= MINUTE {
            (lines.since, lines.count) = (now, 0);
        }
        let key = (whose.to_owned(), reason);
        let last = self.by.get(&key);
        let was_told = last.is_some_and(|last| now.duration_since(*last) < AGAIN_AFTER);
        if was_told || lines.count >= LINES {
            lines.silent += 1;
            return None;
        }
        lines.count += 1;
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

    #[test]
    fn who_asks_again_and_again_is_told_of_now_and_then() {
        let (mut told, now) = (Told::default(), Instant::now());
        assert_eq!(told.tell(now, "noisy", Reason::Expired), Some(0));
        for _ in 0..1000 {
            assert_eq!(told.tell(now, "noisy", Reason::Expired), None);
        }
        // Nobody is hidden by it, neither another nor for another reason.
        assert_eq!(told.tell(now, "noisy", Reason::Revoked), Some(0));
        assert_eq!(told.tell(now, "other", Reason::Expired), Some(1000));
        assert_eq!(told.tell(now + AGAIN_AFTER, "noisy", Reason::Expired), Some(0));
    }

    #[test]
    fn many_at_a_time_are_some_lines_and_leave_room_for_those_who_come_later() {
        let (mut told, now) = (Told::default(), Instant::now());
        let from = |n: usize| format!("10.0.{}.{}", n / 256, n % 256);
        let lines =
            (0..5 * MAX_TOLD).filter(|n| told.tell(now, &from(*n), Reason::NoTls).is_some());
        assert_eq!(lines.count(), LINES as usize);
        assert_eq!(told.tell(now, "one", Reason::BadToken), Some(0), "another reason");
        // Also when the table is full.
        let mut later = now;
        for n in 0..2 * MAX_TOLD {
            later += MINUTE;
            assert!(told.tell(later, &format!("late {n}"), Reason::NoTls).is_some(), "{n}");
            assert!(told.by.len() <= MAX_TOLD);
        }
    }

    #[test]
    fn all_are_counted() {
        let refusals = Refusals::default();
        for _ in 0..3 {
            refusals.refuse("a", Reason::WrongKey, "no");
        }
        let counts = RefusedCounts { wrong_key: 3, ..RefusedCounts::default() };
        assert_eq!(refusals.counts(), counts);
    }
}
