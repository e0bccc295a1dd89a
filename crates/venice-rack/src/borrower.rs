//! A recipient's calls without I/O: requests, transfers, claims and releases.
//!
//! [`Asking`], [`Claiming`] and [`Releasing`] take the results of calls, orders of the user and the
//! time (`handle_*`), and return what to do next (`poll_output`). [`RepeatedCall`] decides whether a
//! call to the Monitor Nodes, one of these or a transfer, is repeated; the driver chooses the first
//! that takes it. Times are of one clock that never goes backwards, in nanoseconds; errors are the
//! driver's. `venice-control` and `venice-recipient` run this on connections, `venice-sim` in virtual
//! time.

mod asking;
mod claiming;
mod releasing;
#[cfg(test)]
mod tests;

pub use asking::{Asking, AskingOutput};
pub use claiming::{Claiming, ClaimingOutput};
pub use releasing::{Releasing, ReleasingOutput};

/// Time for which a call is repeated: longer than the detection of a dead Monitor Node among several.
const PATIENCE_NS: u64 = 15_000_000_000;
/// Pause before a repetition.
const PAUSE_NS: u64 = 250_000_000;

/// A call that failed, with the error of its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure<E> {
    /// No answer came, or the Monitor Node is stopping: the call may have had its effect.
    Silent(E),
    /// A refusal, which a repetition would get again.
    Refused(E),
}

/// A call to the Monitor Nodes, repeated until one answers. Its request has a number, or the same
/// effect twice as once.
#[derive(Debug)]
pub struct RepeatedCall {
    is_repeated: bool,
    until_ns: u64,
    /// Time of the next repetition; `None` while the call is under way.
    due_ns: Option<u64>,
    /// True if an earlier one was not answered.
    is_in_doubt: bool,
}

impl RepeatedCall {
    /// Begins a call, to be sent at once. It is repeated if there are several Monitor Nodes, so that
    /// another one may answer, or if its caller `waits` anyhow, so that the only one may restart.
    pub fn new(now_ns: u64, monitors: usize, waits: bool) -> Self {
        Self {
            is_repeated: monitors > 1 || waits,
            until_ns: now_ns.saturating_add(PATIENCE_NS),
            due_ns: None,
            is_in_doubt: false,
        }
    }

    /// Handles the result of the call. Returns the result of all; `None`: it is to be repeated.
    pub fn handle_result<T, E>(
        &mut self,
        now_ns: u64,
        result: Result<T, Failure<E>>,
    ) -> Option<Result<T, E>> {
        match result {
            Ok(answer) => Some(Ok(answer)),
            Err(Failure::Refused(error)) => Some(Err(error)),
            Err(Failure::Silent(error)) => {
                self.is_in_doubt = true;
                if !self.is_repeated || now_ns >= self.until_ns {
                    return Some(Err(error));
                }
                self.due_ns = Some(now_ns.saturating_add(PAUSE_NS));
                None
            }
        }
    }

    /// True if the call is to be repeated now.
    pub fn handle_timeout(&mut self, now_ns: u64) -> bool {
        self.due_ns.take_if(|due_ns| *due_ns <= now_ns).is_some()
    }

    /// Returns the time at which [`Self::handle_timeout`] must be called; `None`: only once there is
    /// a result.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.due_ns
    }

    /// True if a call without an answer may have had its effect, whatever a later one was answered.
    pub fn is_in_doubt(&self) -> bool {
        self.is_in_doubt
    }
}
