//! One end of a link with its QPairs and streams, driven by the thread that has the lock.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use venice_fabric::{QPairEvent, QPairId, QPairs};

use super::link::Link;
use super::streams::Streams;
use crate::PortError;

/// Most rounds of one [`End::pump`] that send what the streams produced from received frames, which
/// bounds the call.
const TURNS: usize = 4;

/// A link, and the QPairs and streams on it.
#[derive(Debug)]
pub(crate) struct End {
    link: Link,
    streams: Streams,
    /// QPairs requested and not yet accepted.
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

    /// Returns the streams, and the link that their calls need.
    pub(crate) fn streams(&mut self) -> (&mut Streams, &mut Link) {
        (&mut self.streams, &mut self.link)
    }

    /// Moves what can move; returns true if anything came in.
    ///
    /// # Errors
    /// Fails if the port is closed or has failed for good.
    #[inline]
    pub(super) fn pump(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let mut any = false;
        for _ in 0..TURNS {
            let pumped = self.link.pump(now_ns);
            // A link that is down is reported without a frame.
            let (had_events, is_for_streams) = self.take_events(now_ns);
            any |= pumped? | had_events;
            if !is_for_streams {
                break;
            }
        }
        Ok(any)
    }

    /// Takes the events; returns whether there were any, and whether they gave streams something to
    /// send.
    #[inline]
    fn take_events(&mut self, now_ns: u64) -> (bool, bool) {
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

    /// True if a QPair was requested and not yet accepted.
    pub(super) fn has_incoming(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// Returns the next requested QPair.
    pub(super) fn take_incoming(&mut self) -> Option<QPairId> {
        self.incoming.pop_front()
    }

    /// Closes a QPair, and its stream if it has one.
    pub(super) fn close(&mut self, now_ns: u64, id: QPairId) {
        self.streams.close(&mut self.link, now_ns, id);
    }

    /// True if bytes that a QPair sent are queued here.
    pub(super) fn is_queued(&mut self, id: QPairId) -> bool {
        self.streams.is_closing()
            || self.link.qpairs().levels(id).is_ok_and(|levels| levels.queued_bytes > 0)
    }

    /// True if the end can be dropped without loss of sent bytes.
    pub(super) fn is_settled(&mut self) -> bool {
        !self.streams.is_closing() && self.link.is_settled()
    }

    /// Prepares to sleep. `false` if there is something to pump now.
    pub(super) fn prepare_wait(&mut self) -> bool {
        self.link.prepare_wait()
    }

    /// Ends a wait, after the sleep or instead of it.
    pub(super) fn finish_wait(&mut self) {
        self.link.finish_wait();
    }

    /// Adds the descriptors to sleep on to an epoll.
    pub(super) fn watch(&self, epoll: &OwnedFd) -> Result<(), PortError> {
        self.link.watch(epoll)
    }
}
