//! The connection of a program to the Monitor Nodes: a call goes to the first that takes it, and is
//! repeated as the clients of `venice-control` repeat it.

use venice_rack::borrower::{Failure, RepeatedCall};
use venice_rack::monitor_node::Reply;
use venice_rack::types::RackError;

use super::{Cause, RecipientTag, RecipientTimer};
use crate::control::clock::Clock;
use crate::control::desk::{Desk, Tag, Timer};
use crate::control::messages::{Broken, Request, Response};
use crate::control::party::Party;

/// Time after which a hanging Monitor Node is noticed.
pub(super) const HANGS_NS: u64 = 3_000_000_000;

pub(super) struct Line {
    monitors: u16,
    clock: Clock,
    at: u16,
    /// Number of Monitor Nodes in a row that did not take the call.
    refusals: u16,
    /// The last call.
    call: Option<(Request, RecipientTag, RepeatedCall)>,
}

impl Line {
    pub(super) fn new(monitors: u16, clock: Clock) -> Self {
        Self { monitors, clock, at: 0, refusals: 0, call: None }
    }

    /// Connects to any Monitor Node.
    pub(super) fn connect(&mut self, desk: &mut Desk<'_>) {
        self.at = desk.rng.below(self.monitors.into()) as u16;
    }

    /// Returns the Monitor Node that it is connected to.
    pub(super) fn party(&self) -> Party {
        Party::Monitor(self.at)
    }

    /// Begins a call, which may wait for a Monitor Node if its caller `waits` anyhow.
    pub(super) fn call(
        &mut self,
        desk: &mut Desk<'_>,
        request: impl Into<Request>,
        tag: RecipientTag,
        waits: bool,
    ) {
        let now_ns = self.clock.at(desk.now_ns);
        let repeated = RepeatedCall::new(now_ns, self.monitors.into(), waits);
        self.call = Some((request.into(), tag, repeated));
        self.send(desk);
    }

    fn send(&mut self, desk: &mut Desk<'_>) {
        self.refusals = 0;
        self.send_here(desk);
    }

    fn send_here(&self, desk: &mut Desk<'_>) {
        if let Some((request, tag, _)) = &self.call {
            desk.call(self.party(), request.clone(), HANGS_NS, Tag::Recipient(tag.clone()));
        }
    }

    /// Handles the outcome of the last call. Returns its result; `None`: it is repeated.
    pub(super) fn result<T>(
        &mut self,
        desk: &mut Desk<'_>,
        outcome: Result<Response, Broken>,
        answer: impl FnOnce(Reply) -> Result<T, RackError>,
    ) -> Option<Result<T, Cause>> {
        let is_refused = outcome.as_ref().is_err_and(|broken| *broken == Broken::Refused);
        let result = match outcome {
            Ok(Response::Replied(reply)) => answer(reply).map_err(|error| match error {
                RackError::Stopping => Failure::Silent(None),
                error => Failure::Refused(Some(error)),
            }),
            Ok(other) => unreachable!("a call is answered by {other:?}"),
            Err(_) => Err(Failure::Silent(None)),
        };
        if let Err(Failure::Silent(_)) = result {
            (self.at, self.refusals) = ((self.at + 1) % self.monitors, self.refusals + 1);
            if is_refused && self.refusals < self.monitors {
                self.send_here(desk);
                return None;
            }
        }
        let now_ns = self.clock.at(desk.now_ns);
        let (.., repeated) = self.call.as_mut()?;
        let result = repeated.handle_result(now_ns, result);
        if let Some(due_ns) = repeated.poll_timeout() {
            let after_ns = self.clock.takes_ns(due_ns - now_ns);
            desk.timer(after_ns, Timer::Recipient(RecipientTimer::Repeat));
        }
        result
    }

    /// Repeats the call if that is due.
    pub(super) fn handle_timeout(&mut self, desk: &mut Desk<'_>) {
        let now_ns = self.clock.at(desk.now_ns);
        if self.call.as_mut().is_some_and(|(.., repeated)| repeated.handle_timeout(now_ns)) {
            self.send(desk);
        }
    }

    /// True if the last call may have had its effect without an answer.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.call.as_ref().is_some_and(|(.., repeated)| repeated.is_in_doubt())
    }

    /// Ends the last call: nobody waits for it.
    pub(super) fn hang_up(&mut self) {
        self.call = None;
    }
}
