//! The liveness of callers, probed only on links with QPairs, whose users wait for the result.
//! Callers probe donors themselves; a caller that only borrows may come back late.

use crate::LinkConfig;

/// Unanswered pings needed, besides the time, to declare the other side gone: a thread that was
/// itself stopped for a while must not blame it.
const MIN_PINGS: u32 = 3;

/// The keep-alive of an accepted link.
#[derive(Debug, Default)]
pub(super) struct CallerLiveness {
    asked_ns: Option<u64>,
    unanswered: u32,
    number: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// Check again at this time.
    Fine(u64),
    /// Send a ping with this number, and check again at the time.
    Ask { number: u32, again_ns: u64 },
    /// The caller is gone.
    Silent,
}

impl CallerLiveness {
    /// Checks a caller last heard at `heard_ns`.
    pub(super) fn check(&mut self, now_ns: u64, heard_ns: u64, config: &LinkConfig) -> Finding {
        let silent_ns = now_ns.saturating_sub(heard_ns);
        if self.asked_ns.is_none_or(|asked_ns| asked_ns <= heard_ns) {
            (self.asked_ns, self.unanswered) = (None, 0);
        }
        let quiet_ns = self.asked_ns.map_or(silent_ns, |asked_ns| now_ns.saturating_sub(asked_ns));
        if quiet_ns < config.keepalive_ns {
            return Finding::Fine(now_ns + (config.keepalive_ns - quiet_ns));
        }
        if silent_ns >= config.silence_ns && self.unanswered >= MIN_PINGS {
            return Finding::Silent;
        }
        (self.asked_ns, self.unanswered) = (Some(now_ns), self.unanswered + 1);
        self.number = self.number.wrapping_add(1);
        Finding::Ask { number: self.number, again_ns: now_ns + config.keepalive_ns }
    }

    /// True if a ping before the last one was not answered.
    pub(super) fn is_repeated(&self) -> bool {
        self.unanswered > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: LinkConfig = LinkConfig {
        window: 4,
        ack_delay_ns: 0,
        replay_min_ns: 0,
        replay_max_ns: 0,
        keepalive_ns: 10,
        silence_ns: 25,
        checksum: true,
        replay: true,
    };

    #[test]
    fn silent_caller_is_probed_first() {
        let mut watch = CallerLiveness::default();
        assert_eq!(watch.check(105, 100, &CONFIG), Finding::Fine(110));
        for (now_ns, number) in [(110, 1), (120, 2), (130, 3)] {
            let again_ns = now_ns + 10;
            assert_eq!(watch.check(now_ns, 100, &CONFIG), Finding::Ask { number, again_ns });
            assert_eq!(watch.check(now_ns + 1, 100, &CONFIG), Finding::Fine(again_ns));
        }
        assert_eq!(watch.check(140, 100, &CONFIG), Finding::Silent);
    }

    #[test]
    fn answer_or_own_pause_resets_probing() {
        let mut watch = CallerLiveness::default();
        (0..3).for_each(|n| {
            watch.check(110 + 10 * n, 100, &CONFIG);
        });
        assert_eq!(watch.check(140, 131, &CONFIG), Finding::Fine(141));
        let asked = Finding::Ask { number: 4, again_ns: 10_010 };
        assert_eq!(watch.check(10_000, 131, &CONFIG), asked);
    }
}
