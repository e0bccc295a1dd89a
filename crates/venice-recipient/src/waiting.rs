//! The wait in the queue.

use std::ops::ControlFlow;
use std::time::Duration;

use venice_control::{DEFAULT_PRIORITY, Preempt, Queueing, Standing};

/// The queueing options of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The longest wait; zero: none.
    pub at_most: Duration,
    /// The priority, 0 to 255: higher ones are served first. More than [`DEFAULT_PRIORITY`] is for
    /// administrators.
    pub priority: u8,
    /// True to preempt grants of lower priority: the user's own, for administrators any.
    pub preempt: bool,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { at_most: Duration::ZERO, priority: DEFAULT_PRIORITY, preempt: false }
    }
}

impl Waiting {
    /// Returns the options for the rack.
    pub(crate) fn queueing(self) -> Queueing {
        let (wait_ms, priority) = (milliseconds(self.at_most), self.priority);
        // The Monitor Node extends this for administrators.
        let preempt = if self.preempt { Preempt::Own } else { Preempt::No };
        Queueing { wait_ms, priority, preempt, ..Queueing::default() }
    }
}

/// Receives a call ten times a second during a wait, and once a second the state in the queue.
/// [`ControlFlow::Break`] cancels the wait.
pub type Told<'a> = dyn FnMut(Option<&Standing>) -> ControlFlow<()> + 'a;

/// Ignores all reports, and never cancels.
pub(crate) fn ignore_wait(_: Option<&Standing>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
