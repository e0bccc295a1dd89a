//! Connections that have ended while their last commands still run.

use std::collections::BTreeMap;

use venice_service::ConnectionId;

/// Time for which last commands may keep all others from ending, in nanoseconds.
const LIMIT_NS: u64 = 10_000_000_000;

/// The connections, by the number of commands that still run.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    all: BTreeMap<ConnectionId, Left>,
    /// Time of the latest end of a command of any other connection.
    progress_ns: u64,
}

#[derive(Debug)]
struct Left {
    commands: usize,
    since_ns: u64,
}

impl Leaving {
    /// Adds a connection with so many commands; true if it has none, and is gone.
    pub(super) fn add(&mut self, now_ns: u64, connection: ConnectionId, commands: usize) -> bool {
        if commands > 0 {
            self.all.insert(connection, Left { commands, since_ns: now_ns });
        }
        commands == 0
    }

    /// Notes the end of one of its commands; true if that was the last one.
    pub(super) fn handle_end(&mut self, connection: ConnectionId) -> bool {
        let Some(left) = self.all.get_mut(&connection) else { return false };
        left.commands -= 1;
        let is_gone = left.commands == 0;
        if is_gone {
            self.all.remove(&connection);
        }
        is_gone
    }

    /// Notes that a command of another connection has ended, or that there was none.
    pub(super) fn handle_progress(&mut self, now_ns: u64) {
        self.progress_ns = now_ns;
    }

    /// True if commands of a program that is gone have kept all others from ending for too long.
    pub(super) fn hold_up_others(&self, now_ns: u64) -> bool {
        let Some(since_ns) = self.all.values().map(|left| left.since_ns).min() else {
            return false;
        };
        now_ns.saturating_sub(since_ns.max(self.progress_ns)) >= LIMIT_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: ConnectionId = ConnectionId(1);

    #[test]
    fn progress_of_others_counts() {
        let mut leaving = Leaving::default();
        assert!(!leaving.add(1, GONE, 2));
        assert!(!leaving.hold_up_others(LIMIT_NS));
        assert!(leaving.hold_up_others(LIMIT_NS + 1));
        leaving.handle_progress(LIMIT_NS);
        assert!(!leaving.hold_up_others(LIMIT_NS + 1));
        assert!(!leaving.handle_end(GONE));
        assert!(leaving.hold_up_others(2 * LIMIT_NS));
        assert!(leaving.handle_end(GONE));
        assert!(!leaving.hold_up_others(2 * LIMIT_NS));
    }
}
