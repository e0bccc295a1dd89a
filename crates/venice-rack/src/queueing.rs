//! Waiting in line for memory or a device: what a request says of it, and what it is told.

use crate::types::Grant;
use std::fmt::Write;
use venice_wire::ByteSize;

/// The priority of requests that name none. Who is no administrator names no higher one.
pub const DEFAULT_PRIORITY: u8 = 100;

/// Those who come before a request are named so many; the others are counted.
const NAMED_AT_MOST: usize = 3;

/// How a request waits where there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queueing {
    /// How long, in milliseconds; 0: not at all.
    pub wait_ms: u64,
    /// How much of that is over, by the caller's word: another Monitor Node may have kept its place
    /// until now.
    pub waited_ms: u64,
    /// Higher ones are served first.
    pub priority: u8,
    /// Which grants of lower priority are to be called back for it.
    pub preempt: Preempt,
}

/// Which grants may be called back for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preempt {
    /// None.
    #[default]
    No,
    /// Those of the same user.
    Own,
    /// Anybody's: for administrators.
    All,
}

impl Default for Queueing {
    fn default() -> Self {
        Self { wait_ms: 0, waited_ms: 0, priority: DEFAULT_PRIORITY, preempt: Preempt::No }
    }
}

impl Queueing {
    /// What is left of the wait, in milliseconds.
    pub fn left_ms(&self) -> u64 {
        self.wait_ms.saturating_sub(self.waited_ms)
    }
}

/// What a request comes to.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// It is granted.
    Granted(Vec<Grant>),
    /// It waits: whoever wants to go on waiting asks again, at once.
    Waits(Standing),
}

/// How a request stands that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Its place in line; 1 is the first.
    pub rank: u32,
    /// What it asks for, all copies together; 0 of a device that is lent whole.
    pub asked_bytes: u64,
    /// What the donors have free that it may use; of storage what one device has.
    pub free_bytes: u64,
    /// How long it has waited.
    pub waited_ms: u64,
    /// What is called back for it, and has not come yet.
    pub preempting_bytes: u64,
    /// Its user's quota has no room, whatever the donors have.
    pub is_over_quota: bool,
    /// The device that it asks for, in words; empty: it is memory.
    pub device: String,
    /// Devices that are called back for it.
    pub preempting_devices: u32,
}

/// What waiting in line has to do with a request that found no room.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InLine {
    /// How long it has waited.
    pub waited_ms: u64,
    /// Who comes before it, and with how much.
    pub before: Vec<String>,
    /// The donors that it may use lend no more than this, all together and everything given back:
    /// waiting does not help.
    pub most_bytes: Option<u64>,
}

/// Says that there is no room, what is free where, and what waiting has to do with it.
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
    }
    text.push_str(&in_line_text(line.waited_ms, &line.before));
    text
}

/// Says how long a request has waited in vain, and for whom; empty: not at all, for nobody.
pub(crate) fn in_line_text(waited_ms: u64, before: &[String]) -> String {
    let mut text = String::new();
    if waited_ms > 0 {
        let _ = write!(text, "; it waited {:.1} s", waited_ms as f64 / 1e3);
    }
    if !before.is_empty() {
        let _ = write!(text, "; before it in line: {}", names(before));
    }
    text
}

/// The first of them, and how many more.
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
    fn who_finds_no_room_is_told_how_long_it_waited_and_for_whom() {
        let free = [("node1".to_owned(), 16 << 20)];
        let text = |line: &InLine| no_room_text(32 << 20, &free, line);
        let plain = "no room for 32MiB: 16MiB free (node1 16MiB)";
        assert_eq!(text(&InLine::default()), plain);
        let before: Vec<String> = (1..=5).map(|number| format!("u{number}")).collect();
        let waited = InLine { waited_ms: 1500, before, most_bytes: None };
        let said = text(&waited);
        let rest = "; it waited 1.5 s; before it in line: u1, u2, u3 and 2 more";
        assert_eq!(said.strip_prefix(plain), Some(rest));
        let never = InLine { most_bytes: Some(16 << 20), ..InLine::default() };
        assert!(
            text(&never)
                .ends_with("waiting does not help: there is room for 16MiB when all is free")
        );
    }
}
