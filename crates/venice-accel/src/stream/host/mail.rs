//! Messages for a connection that have not left: notices, and answers that go with others.

use std::collections::VecDeque;

use venice_service::wire::MAX_PAYLOAD_BYTES;

use crate::stream::Field;
use crate::stream::wire::encode;

/// Submissions whose answers wait for a message that leaves anyway.
const HELD_ANSWERS: usize = 4;

/// Notices of a connection, and the requests that they answer.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    /// Encoded notices.
    notices: VecDeque<Vec<u8>>,
    notice_bytes: usize,
    /// Requests for notices.
    polls: VecDeque<u64>,
    /// Submissions that are answered with others: each message wakes the recipient.
    submitted: Vec<u64>,
}

impl Mail {
    /// Adds a notice.
    pub(crate) fn notify<'a>(&mut self, notice: &impl Field<'a>) {
        let bytes = encode(notice);
        self.notice_bytes += bytes.len();
        self.notices.push_back(bytes);
    }

    /// Returns the length of the notices in bytes.
    pub(crate) fn notice_bytes(&self) -> usize {
        self.notice_bytes
    }

    /// Adds a request for notices.
    pub(crate) fn poll(&mut self, id: u64) {
        self.polls.push_back(id);
    }

    /// Holds the answer of a submission back; true if enough are.
    pub(crate) fn hold(&mut self, id: u64) -> bool {
        self.submitted.push(id);
        self.submitted.len() >= HELD_ANSWERS
    }

    /// Takes the submissions whose answers were held back.
    pub(crate) fn take_held(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.submitted)
    }

    /// Moves notices into an answer; returns the request, if there is one and a notice.
    pub(crate) fn take_notices(&mut self, payload: &mut Vec<u8>) -> Option<u64> {
        if self.notices.is_empty() {
            return None;
        }
        let id = self.polls.pop_front()?;
        while let Some(notice) = self.notices.front() {
            if !payload.is_empty() && payload.len() + notice.len() > MAX_PAYLOAD_BYTES {
                break;
            }
            payload.extend_from_slice(notice);
            self.notice_bytes -= notice.len();
            self.notices.pop_front();
        }
        Some(id)
    }
}
