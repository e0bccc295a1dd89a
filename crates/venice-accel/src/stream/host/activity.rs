//! Usage of the device: time in which it had something to do, commands, and bytes of the region.

use venice_service::{ConnectionId, ServiceUsage};

use crate::region::RegionHost;

/// Interval of looks for the ends of commands that nobody watches, in nanoseconds.
const LOOK_NS: u64 = 10_000_000;
/// Length in bytes of the words in the region in which a recipient counts: bytes stored and loaded.
pub(crate) const WORDS_BYTES: u64 = 16;

/// Counters of the device.
///
/// It is busy from the first command on until all have ended. The ends of watched commands are
/// noticed at once, those of others at the next end of a watched one, or within ten milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    busy_ns: u64,
    busy_since_ns: Option<u64>,
    look_ns: Option<u64>,
    commands: u64,
    /// Bytes that ended connections have counted; `None`: one of them did not count.
    ended: Ended,
}

#[derive(Debug)]
struct Ended {
    moved: Option<(u64, u64)>,
}

impl Default for Ended {
    fn default() -> Self {
        Self { moved: Some((0, 0)) }
    }
}

impl Activity {
    /// Takes note of commands that were enqueued.
    pub(crate) fn handle_commands(&mut self, now_ns: u64, commands: u64) {
        if commands > 0 {
            self.commands += commands;
            self.busy_since_ns.get_or_insert(now_ns);
            self.look_ns.get_or_insert(now_ns + LOOK_NS);
        }
    }

    /// True if it waits for the end of commands.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy_since_ns.is_some()
    }

    /// Takes note that no command is left.
    pub(crate) fn handle_idle(&mut self, now_ns: u64) {
        if let Some(since_ns) = self.busy_since_ns.take() {
            self.busy_ns += now_ns.saturating_sub(since_ns);
        }
        self.look_ns = None;
    }

    /// Plans the next look at unwatched commands.
    pub(crate) fn look_again(&mut self, now_ns: u64) {
        self.look_ns = Some(now_ns + LOOK_NS);
    }

    /// Returns the time of the next look; `None`: nothing is on its way.
    pub(crate) fn poll_look(&self) -> Option<u64> {
        self.look_ns
    }

    /// Adds what an ended connection has counted in the region.
    pub(crate) fn handle_end(&mut self, moved: Option<(u64, u64)>) {
        self.ended.moved = sum(self.ended.moved, moved);
    }

    /// Returns the counters; `moved` is what each connection has counted.
    pub(crate) fn usage(
        &self,
        now_ns: u64,
        moved: impl Iterator<Item = Option<(u64, u64)>>,
    ) -> ServiceUsage {
        let moved = moved.fold(self.ended.moved, sum);
        let now_busy_ns = self.busy_since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        ServiceUsage {
            busy_ns: Some(self.busy_ns + now_busy_ns),
            in_bytes: moved.map(|(stored, _)| stored),
            out_bytes: moved.map(|(_, loaded)| loaded),
            commands: self.commands,
        }
    }
}

fn sum(one: Option<(u64, u64)>, other: Option<(u64, u64)>) -> Option<(u64, u64)> {
    let ((stored, loaded), (more_stored, more_loaded)) = (one?, other?);
    // What a recipient writes there is any number.
    Some((stored.saturating_add(more_stored), loaded.saturating_add(more_loaded)))
}

/// Reads the words of a connection.
pub(crate) fn moved(region: &RegionHost, words: Option<u64>) -> Option<(u64, u64)> {
    let at = words?;
    Some((region.load_word(at)?, region.load_word(at + 8)?))
}

/// Owner of the words: connections cannot give them back.
pub(crate) const WORDS_OWNER: ConnectionId = ConnectionId(u64::MAX - 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_commands_count_once() {
        let mut activity = Activity::default();
        let busy_ns = |activity: &Activity, now_ns| {
            activity.usage(now_ns, std::iter::empty()).busy_ns.unwrap()
        };
        activity.handle_commands(100, 2);
        activity.handle_commands(150, 1);
        assert!(activity.is_busy());
        assert_eq!(busy_ns(&activity, 180), 80, "until now");
        activity.handle_idle(200);
        activity.handle_idle(300);
        assert_eq!((busy_ns(&activity, 900), activity.poll_look()), (100, None));
        activity.handle_commands(1000, 0);
        assert!(!activity.is_busy());
        activity.handle_commands(1000, 1);
        activity.handle_idle(1001);
        let usage = activity.usage(2000, std::iter::empty());
        assert_eq!((usage.busy_ns, usage.commands), (Some(101), 4));
    }

    #[test]
    fn uncounted_bytes_are_unknown() {
        let mut activity = Activity::default();
        activity.handle_end(Some((1, u64::MAX)));
        let bytes = |activity: &Activity, moved: &[Option<(u64, u64)>]| {
            let usage = activity.usage(0, moved.iter().copied());
            usage.in_bytes.zip(usage.out_bytes)
        };
        assert_eq!(bytes(&activity, &[Some((2, 2)), Some((4, 0))]), Some((7, u64::MAX)));
        assert_eq!(bytes(&activity, &[Some((2, 2)), None]), None);
        activity.handle_end(None);
        assert_eq!(bytes(&activity, &[]), None);
    }
}
