//! Reports to `tracing` why a channel was chosen.

use venice_fabric::adaptive::{ChannelKind, ChoiceEvent};

/// Target of the events. [`crate::adaptive`] lists their fields.
pub const TRACE_TARGET: &str = "venice_ports::adaptive";

/// Number of size classes. The longest length of each is a power of two.
const CLASSES: usize = usize::BITS as usize;

/// Log of channel choices: reports a changed choice at a higher level than a repeated one. It is
/// for callers with a [`venice_fabric::adaptive::Chooser`] of their own; an
/// [`crate::adaptive::AdaptiveWriter`] contains one already.
#[derive(Debug)]
pub struct ChoiceLog {
    /// Channel taken last and whether it was on trial, by class and by whether the caller asked for
    /// a stream.
    latest: [[Option<(ChannelKind, bool)>; 2]; CLASSES],
}

impl Default for ChoiceLog {
    fn default() -> Self {
        Self { latest: [[None; 2]; CLASSES] }
    }
}

/// Emits one event. The level must be a compile-time constant.
macro_rules! say {
    ($level:ident, $choice:expr) => {{
        let ChoiceEvent { channel, reason, pattern, len_bytes, class_bytes, in_flight, .. } =
            $choice;
        let [crma_ns, rdma_ns, qpair_ns] = $choice.costs_ns;
        tracing::$level!(
            target: TRACE_TARGET,
            ?channel,
            ?reason,
            ?pattern,
            len_bytes,
            class_bytes,
            in_flight,
            crma_ns,
            rdma_ns,
            qpair_ns,
            "{}",
            $choice
        )
    }};
}

impl ChoiceLog {
    /// Reports `choice`: at level *debug* if the channel differs from the last one for such lengths
    /// and patterns, or if a trial begins or ends; at level *trace* otherwise. Costs next to
    /// nothing without a subscriber.
    #[inline]
    pub fn note(&mut self, choice: &ChoiceEvent) {
        if tracing::enabled!(target: TRACE_TARGET, tracing::Level::DEBUG) {
            self.say(choice);
        }
    }

    fn say(&mut self, choice: &ChoiceEvent) {
        let class = choice.class_bytes.trailing_zeros() as usize % CLASSES;
        let latest = &mut self.latest[class][usize::from(choice.pattern.is_stream())];
        let now = Some((choice.channel, choice.reason.is_trial()));
        if std::mem::replace(latest, now) != now {
            say!(debug, choice);
        } else {
            say!(trace, choice);
        }
    }
}
