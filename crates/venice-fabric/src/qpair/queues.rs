//! The queues of the QPairs of one link, served in turn.

use std::collections::VecDeque;

use venice_wire::Sequence;

use super::{QPairId, RejectReason};
use crate::datalink::Link;

/// Rejections of requests for which no QPair exists; a requester that receives none gives up by
/// itself.
const MAX_REJECTS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct LinkQueues {
    /// QPairs with a frame to send.
    pub ready: VecDeque<QPairId>,
    /// QPairs with a credit to write.
    pub puts: VecDeque<QPairId>,
    rejects: VecDeque<(u32, RejectReason)>,
    /// Positions of this link's QPair frames that are not acknowledged yet.
    in_flight: VecDeque<Sequence>,
    /// QPairs that are not over.
    pub live: u32,
    /// QPair frames from the other side may be unacknowledged, even of a QPair that is over here.
    pub is_shared: bool,
    /// Position of the last QPair frame handed to the link.
    last_sent: Sequence,
    /// True if a written credit may get lost.
    pub is_lossy: bool,
    /// True if the link is in the engine's queue of links with something to send.
    pub is_woken: bool,
}

impl LinkQueues {
    /// Makes room for one more QPair, so that nothing grows later.
    pub(super) fn admit(&mut self, link: &Link) {
        self.live += 1;
        self.is_shared = true;
        self.is_lossy = link.is_lossy();
        let window = usize::from(link.window());
        let spare = self.live as usize + 16;
        self.ready.reserve(spare.saturating_sub(self.ready.len()));
        self.puts.reserve(spare.saturating_sub(self.puts.len()));
        self.in_flight.reserve(window.saturating_sub(self.in_flight.len()));
    }

    pub(super) fn reject(&mut self, peer_number: u32, reason: RejectReason) {
        if self.rejects.len() < MAX_REJECTS {
            self.rejects.push_back((peer_number, reason));
        }
    }

    pub(super) fn next_reject(&mut self) -> Option<(u32, RejectReason)> {
        self.rejects.pop_front()
    }

    /// True if there may be a frame to send.
    pub(super) fn has_frames(&self) -> bool {
        !self.ready.is_empty() || !self.rejects.is_empty()
    }

    /// Records a frame handed to the link at `position`.
    pub(super) fn note_sent(&mut self, position: Sequence) {
        self.in_flight.push_back(position);
        self.last_sent = position;
    }

    /// Records the answer of the request at `position`. If the request followed all QPair frames,
    /// the other side had finished them by then, and its own frames for them arrived before the
    /// answer.
    pub(super) fn note_answer(&mut self, position: Sequence) {
        if self.is_shared && self.live == 0 && self.last_sent.is_before(position) {
            self.is_shared = false;
        }
    }

    /// Returns the number of frames handed to the link at or after `acked`, the first position not
    /// acknowledged.
    pub(super) fn in_flight(&mut self, acked: Sequence) -> usize {
        while self.in_flight.front().is_some_and(|position| position.is_before(acked)) {
            self.in_flight.pop_front();
        }
        self.in_flight.len()
    }

    /// Clears the queues because the link is down or restarts: nothing of it will be sent or
    /// acknowledged.
    pub(super) fn clear(&mut self) {
        self.ready.clear();
        self.puts.clear();
        self.rejects.clear();
        self.in_flight.clear();
        self.is_shared = self.live > 0;
    }
}
