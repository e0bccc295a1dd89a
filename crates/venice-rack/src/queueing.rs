//! The queue: the queueing options of a request, and its state while queued.

use crate::rows::QueuedWant;
use crate::types::Grant;
use std::fmt::Write;
use venice_wire::ByteSize;

/// The priority of requests that name none. Only administrators may name a higher one.
pub const DEFAULT_PRIORITY: u8 = 100;

/// Requests ahead that a message names; the others are counted.
const NAMED_AT_MOST: usize = 3;

/// The queueing options of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queueing {
    /// Longest wait in milliseconds; 0: the request does not wait.
    pub wait_ms: u64,
    /// Milliseconds of the wait that are over, as stated by the caller: another Monitor Node may
    /// have queued it until now.
    pub waited_ms: u64,
    /// The priority; higher ones are served first.
    pub priority: u8,
    /// The grants of lower priority that may be preempted for it.
    pub preempt: Preempt,
    /// True for an administrator's request: the bounds on queued requests do not apply.
    pub is_admin: bool,
}

/// Bounds on queued requests. Those of administrators are not bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitingBounds {
    /// Requests of one user, on one node.
    pub of_user: usize,
    /// Requests in all.
    pub all: usize,
}

impl Default for WaitingBounds {
    fn default() -> Self {
        Self { of_user: 64, all: 4096 }
    }
}

/// The grants that may be preempted for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preempt {
    /// No grant.
    #[default]
    No,
    /// Grants of the same user.
    Own,
    /// Grants of any user; for administrators only.
    All,
}

impl Default for Queueing {
    fn default() -> Self {
        Self {
            wait_ms: 0,
            waited_ms: 0,
            priority: DEFAULT_PRIORITY,
            preempt: Preempt::No,
            is_admin: false,
        }
    }
}

impl Queueing {
    /// Returns the rest of the wait, in milliseconds.
    pub fn left_ms(&self) -> u64 {
        self.wait_ms.saturating_sub(self.waited_ms)
    }
}

/// The outcome of a request so far.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// The request is granted.
    Granted(Vec<Grant>),
    /// The request is queued. To go on waiting, its recipient sends it again at once.
    Waits(Standing),
}

/// The state of a queued request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The rank in the queue; 1 is the first.
    pub rank: u32,
    /// Milliseconds waited so far.
    pub waited_ms: u64,
    /// True if its user's quota has no room, whatever the donors have.
    pub is_over_quota: bool,
    /// The wanted resources, each with the free amount.
    pub wants: Vec<QueuedWant>,
}

/// The queueing part of a no-room error.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InLine {
    /// Milliseconds waited.
    pub waited_ms: u64,
    /// The requests ahead of it, with owner and size.
    pub before: Vec<String>,
    /// Bytes that the usable donors lend at most, with everything returned: waiting does not help.
    pub most_bytes: Option<u64>,
}

/// Formats the error for a request without room: what is free on which node, and what waiting did.
pub fn no_room_text(asked_bytes: u64, free: &[(String, u64)], line: &InLine) -> String {
    let asked = ByteSize(asked_bytes);
    let mut text = if free.is_empty() {
        format!("no room for {asked}: no donor is up")
    } else {
        let by_node: Vec<String> =
            free.iter().map(|(node, bytes)| format!("{node} {}", ByteSize(*bytes))).collect();
        let total = ByteSize(free.iter().map(|(_, bytes)| bytes).sum());
        format!("no room for {asked}: {total} free ({})", by_node.join(", "))
    };
    if let Some(most) = line.most_bytes {
        let most = ByteSize(most);
        let _ = write!(text, "; waiting does not help: there is room for {most} when all is free");
    } else if line.waited_ms == 0 {
        text.push_str("; ask for less, lend more, or wait for it (--wait)");
    }
    text.push_str(&in_line_text(line.waited_ms, &line.before));
    text
}

/// Formats the time a request waited in vain and the requests ahead of it; empty for none.
pub(crate) fn in_line_text(waited_ms: u64, before: &[String]) -> String {
    let mut text = String::new();
    if waited_ms > 0 {
        let _ = write!(text, "; it waited {:.1} s", waited_ms as f64 / 1e3);
    }
    if !before.is_empty() {
        let _ = write!(text, "; queued before it: {}", names(before));
    }
    text
}

/// Formats the first requests, and the count of the others.
fn names(before: &[String]) -> String {
    let named = before[..before.len().min(NAMED_AT_MOST)].join(", ");
    match before.len().saturating_sub(NAMED_AT_MOST) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_room_text_names_wait_and_rivals() {
        let free = [("node1".to_owned(), 16 << 20)];
        let text = |line: &InLine| no_room_text(32 << 20, &free, line);
        let plain = "no room for 32MiB: 16MiB free (node1 16MiB)";
        let remedy = "; ask for less, lend more, or wait for it (--wait)";
        assert_eq!(text(&InLine::default()).strip_prefix(plain), Some(remedy));
        let before: Vec<String> = (1..=5).map(|number| format!("u{number}")).collect();
        let waited = InLine { waited_ms: 1500, before, most_bytes: None };
        let text_waited = text(&waited);
        let rest = "; it waited 1.5 s; queued before it: u1, u2, u3 and 2 more";
        assert_eq!(text_waited.strip_prefix(plain), Some(rest));
        let never = InLine { most_bytes: Some(16 << 20), ..InLine::default() };
        assert!(
            text(&never)
                .ends_with("waiting does not help: there is room for 16MiB when all is free")
        );
    }
}
