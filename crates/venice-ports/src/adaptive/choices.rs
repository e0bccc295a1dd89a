//! Why a channel was chosen, said to `tracing`.

use venice_fabric::adaptive::{ChannelKind, ChoiceEvent};

/// The target of the events; their fields are in [`crate::adaptive`].
pub const TRACE_TARGET: &str = "venice_ports::adaptive";

/// Size classes: the longest lengths of them are powers of two.
const CLASSES: usize = usize::BITS as usize;

/// Says why channels are chosen, and tells what is new from what goes on as before. For who has a
/// [`venice_fabric::adaptive::Chooser`] of their own; an [`crate::adaptive::AdaptiveWriter`] has one
/// of these already.
#[derive(Debug)]
pub struct ChoiceLog {
    /// The channel taken last and whether it was on trial, by class and by whether a stream was
    /// asked for.
    latest: [[Option<(ChannelKind, bool)>; 2]; CLASSES],
}

impl Default for ChoiceLog {
    fn default() -> Self {
        Self { latest: [[None; 2]; CLASSES] }
    }
}

/// One event at a level that must be known when this is compiled.
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
    /// Says it: at level *debug* if the channel is another than the last time for such lengths and
    /// patterns, or a trial begins or ends; at level *trace* if not. Costs next to nothing where
    /// nobody listens.
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
