//! One request until it is granted, refused or withdrawn.

use crate::NS_PER_MS;
use crate::queueing::{Asked, Standing};
use crate::request::AllocationRequest;
use crate::types::Grant;
use std::collections::VecDeque;

/// An output of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum AskingOutput<E> {
    /// Call any Monitor Node, then [`Asking::handle_answer`].
    Ask(AllocationRequest),
    /// Tell the user its state in the queue.
    Waits(Standing),
    /// It is granted.
    Granted(Vec<Grant>),
    /// It failed.
    Failed(E),
    /// It is withdrawn: tell the Monitor Node its number, once. A lost withdrawal takes effect within
    /// seconds all the same, as the request is not repeated.
    Leave(u128),
}

/// A request for memory or devices. It has one number, however often and wherever it is sent: each
/// gets the same grants. Any of them may have been granted, also one that was answered from the queue:
/// by another Monitor Node, or after its answer. So the leases count from the beginning.
#[derive(Debug)]
pub struct Asking<E> {
    request: AllocationRequest,
    began_ns: u64,
    waited_before_ms: u64,
    outputs: VecDeque<AskingOutput<E>>,
    is_over: bool,
}

impl<E> Asking<E> {
    /// Begins a request.
    pub fn new(now_ns: u64, request: AllocationRequest) -> Self {
        Self {
            began_ns: now_ns,
            waited_before_ms: request.queueing.waited_ms,
            outputs: [AskingOutput::Ask(request.clone())].into(),
            request,
            is_over: false,
        }
    }

    /// Handles the result of [`AskingOutput::Ask`].
    pub fn handle_answer(&mut self, now_ns: u64, answer: Result<Asked, E>) {
        match answer {
            _ if self.is_over => {}
            Ok(Asked::Granted(grants)) => self.end(AskingOutput::Granted(grants)),
            Ok(Asked::Waits(standing)) => {
                // A Monitor Node that has just started has no queue: the request says how long it waited.
                let waited_ms = now_ns.saturating_sub(self.began_ns) / NS_PER_MS;
                self.request.queueing.waited_ms = self.waited_before_ms.saturating_add(waited_ms);
                let again = AskingOutput::Ask(self.request.clone());
                self.outputs.extend([AskingOutput::Waits(standing), again]);
            }
            Err(error) => self.end(AskingOutput::Failed(error)),
        }
    }

    /// Withdraws the request: the user waits no longer.
    pub fn handle_leave(&mut self) {
        if !self.is_over {
            self.end(AskingOutput::Leave(self.request.client_id));
        }
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<AskingOutput<E>> {
        self.outputs.pop_front()
    }

    fn end(&mut self, output: AskingOutput<E>) {
        self.outputs = [output].into();
        self.is_over = true;
    }
}
