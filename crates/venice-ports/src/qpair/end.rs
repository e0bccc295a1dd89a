//! One end of a link with its QPairs and streams, driven by whoever has the lock.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use venice_fabric::{QPairEvent, QPairId, QPairs};

use super::link::Link;
use super::streams::Streams;
use crate::PortError;

/// How often what streams make of what came is sent in one [`End::pump`], so that it comes back.
const TURNS: usize = 4;

/// A link, and what travels over it.
#[derive(Debug)]
pub(crate) struct End {
    link: Link,
    streams: Streams,
    /// Asked for and not yet accepted.
    incoming: VecDeque<QPairId>,
}

impl End {
    pub(super) fn new(link: Link) -> Self {
        Self { link, streams: Streams::default(), incoming: VecDeque::new() }
    }

    #[inline]
    pub(super) fn qpairs(&mut self) -> &mut QPairs {
        self.link.qpairs()
    }

    /// The streams, and the link that they need for every call.
    pub(crate) fn streams(&mut self) -> (&mut Streams, &mut Link) {
        (&mut self.streams, &mut self.link)
    }

    /// Moves what can move; true if anything came.
    ///
    /// # Errors
    /// When the port is closed or fails for good.
    #[inline]
    pub(super) fn pump(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let mut any = false;
        for _ in 0..TURNS {
            let pumped = self.link.pump(now_ns);
            // A link that is given up says so without a frame.
            let (heard, is_for_streams) = self.hear(now_ns);
            any |= pumped? | heard;
            if !is_for_streams {
                break;
            }
        }
        Ok(any)
    }

    /// Takes the events; whether there were any, and whether they gave streams something to send.
    #[inline]
    fn hear(&mut self, now_ns: u64) -> (bool, bool) {
        let mut is_for_streams = self.streams.take_completions(&mut self.link, now_ns);
        let mut any = is_for_streams;
        while let Some(event) = self.link.qpairs().poll_event() {
            any = true;
            match event {
                QPairEvent::Incoming { qpair, .. } => self.incoming.push_back(qpair),
                QPairEvent::Connected { qpair }
                | QPairEvent::Readable { qpair }
                | QPairEvent::Writable { qpair }
                | QPairEvent::Closed { qpair, .. } => {
                    is_for_streams |= self.streams.handle_qpair(&mut self.link, now_ns, qpair);
                }
            }
        }
        (any, is_for_streams)
    }

    /// The next QPair that was asked for.
    pub(super) fn take_incoming(&mut self) -> Option<QPairId> {
        self.incoming.pop_front()
    }

    /// Gives a QPair back, with its stream if it has one.
    pub(super) fn close(&mut self, now_ns: u64, id: QPairId) {
        self.streams.close(&mut self.link, now_ns, id);
    }

    /// Whether something waits here that was sent by a QPair.
    pub(super) fn is_queued(&mut self, id: QPairId) -> bool {
        self.streams.is_closing()
            || self.link.qpairs().levels(id).is_ok_and(|levels| levels.queued_bytes > 0)
    }

    /// Whether the end can be dropped without losing what was sent.
    pub(super) fn is_settled(&mut self) -> bool {
        !self.streams.is_closing() && self.link.is_settled()
    }

    /// Before sleeping: `false` if there is something to pump now.
    pub(super) fn prepare_wait(&mut self) -> bool {
        self.link.prepare_wait()
    }

    /// After sleeping, or instead of it.
    pub(super) fn finish_wait(&mut self) {
        self.link.finish_wait();
    }

    /// Adds what is to be slept on to an epoll.
    pub(super) fn watch(&self, epoll: &OwnedFd) -> Result<(), PortError> {
        self.link.watch(epoll)
    }
}
