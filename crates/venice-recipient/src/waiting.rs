//! The wait in the queue.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use venice_control::client::MonitorClient;
use venice_control::{
    AllocationRequest, Asked, ControlError, DEFAULT_PRIORITY, Grant, Preempt, Queueing, Standing,
};

use crate::error::RecipientError;

/// Interval at which a caller may cancel its wait.
const LOOK_EVERY: Duration = Duration::from_millis(100);

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

/// Repeats a request until it is granted, or its wait is over.
pub(crate) async fn ask_in_line(
    client: &mut MonitorClient,
    request: AllocationRequest,
    told: &mut Told<'_>,
) -> Result<Vec<Grant>, RecipientError> {
    let (began, client_id) = (Instant::now(), request.client_id);
    let mut request = request;
    loop {
        let Some(asked) = ask_once(client, request.clone(), told).await else {
            // A lost withdrawal takes effect within seconds all the same.
            let _ = client.leave_queue(client_id).await;
            return Err(RecipientError::WaitCancelled);
        };
        match asked? {
            Asked::Granted(grants) => return Ok(grants),
            Asked::Waits(standing) => {
                if told(Some(&standing)).is_break() {
                    let _ = client.leave_queue(client_id).await;
                    return Err(RecipientError::WaitCancelled);
                }
            }
        }
        request.queueing.waited_ms = milliseconds(began.elapsed());
    }
}

/// Sends a request once; `None`: the wait was cancelled.
async fn ask_once(
    client: &MonitorClient,
    request: AllocationRequest,
    told: &mut Told<'_>,
) -> Option<Result<Asked, ControlError>> {
    let mut client = client.clone();
    let mut answer = std::pin::pin!(client.ask(request));
    let mut looks = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            answer = &mut answer => return Some(answer),
            _ = looks.tick() => {
                if told(None).is_break() {
                    return None;
                }
            }
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
