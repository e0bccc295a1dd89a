//! Allocations at the Monitor Node: performs what the logic of a request asks for.

use super::monitor::MonitorClient;
use crate::error::ControlError;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use venice_rack::borrower::{Asking, AskingOutput};
use venice_rack::queueing::{Asked, Standing};
use venice_rack::types::{AllocationRequest, Grant};

/// Interval at which a caller may cancel its wait.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl MonitorClient {
    /// Allocates: all of it, in one grant or more, or none; waits for it if the request says so. The
    /// call may be repeated with the same `client_id` if the answer was lost; with several Monitor
    /// Nodes this method repeats it itself, at another one.
    ///
    /// # Errors
    /// [`ControlError::NoRoom`], [`ControlError::UnknownNode`],
    /// [`RackError::NoDevice`](venice_rack::types::RackError::NoDevice),
    /// [`RackError::OverQuota`](venice_rack::types::RackError::OverQuota).
    pub async fn allocate(
        &mut self,
        request: AllocationRequest,
    ) -> Result<Vec<Grant>, ControlError> {
        let granted = self.allocate_in_line(request, |_| ControlFlow::Continue(())).await?;
        Ok(granted.expect("nobody cancels"))
    }

    /// The same, where `told` is called ten times a second during a wait, and once a second with the
    /// state in the queue. `None`: it has cancelled the wait, by [`ControlFlow::Break`].
    ///
    /// # Errors
    /// Fails as [`Self::allocate`] does.
    pub async fn allocate_in_line(
        &mut self,
        request: AllocationRequest,
        mut told: impl FnMut(Option<&Standing>) -> ControlFlow<()>,
    ) -> Result<Option<Vec<Grant>>, ControlError> {
        let began = Instant::now();
        let mut asking = Asking::new(0, request);
        loop {
            match asking.poll_output().expect("each call has a result") {
                AskingOutput::Ask(request) => match self.ask_once(request, &mut told).await {
                    Some(answer) => {
                        asking.handle_answer(began.elapsed().as_nanos() as u64, answer);
                    }
                    None => asking.handle_leave(),
                },
                AskingOutput::Waits(standing) => {
                    if told(Some(&standing)).is_break() {
                        asking.handle_leave();
                    }
                }
                AskingOutput::Granted(grants) => return Ok(Some(grants)),
                AskingOutput::Failed(error) => return Err(error),
                AskingOutput::Leave(client_id) => {
                    let _ = self.leave_queue(client_id).await;
                    return Ok(None);
                }
            }
        }
    }

    /// Asks once; `None`: the wait was cancelled.
    async fn ask_once(
        &mut self,
        request: AllocationRequest,
        told: &mut impl FnMut(Option<&Standing>) -> ControlFlow<()>,
    ) -> Option<Result<Asked, ControlError>> {
        let mut answer = std::pin::pin!(self.ask(request));
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
}
