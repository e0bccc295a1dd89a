//! The RDMA channel: bulk transfers by descriptor, cut into chunks of which many are in flight.
//!
//! The descriptors are a bounded ring: [`crate::FabricError::WouldBlock`] reports that it is full.
//! [`FairQueue`] chooses the next chunk; the donor's link bounds the chunks in flight.

mod fair;
mod lists;

use std::collections::VecDeque;

use self::lists::Cursor;
pub use self::lists::{ScatterGather, WindowRange};
pub(crate) use self::{
    fair::FairQueue,
    lists::{Memory, Place},
};
use crate::{AccessError, FabricError};

/// A completed bulk transfer.
#[derive(Debug, PartialEq, Eq)]
pub struct RdmaCompletion {
    /// The token given with the descriptor.
    pub token: u64,
    /// The outcome: success of all of it, otherwise the first error. After an error any part may
    /// have been carried out.
    pub result: Result<(), AccessError>,
    /// The buffer given with the descriptor; empty if lists were given.
    pub buffer: Vec<u8>,
    /// The lists given with the descriptor; empty if a buffer was given.
    pub lists: ScatterGather,
}

/// A bulk transfer that was not accepted, and the memory given with it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("bulk transfer not taken: {error}")]
pub struct RdmaRejected {
    /// The reason.
    #[source]
    pub error: FabricError,
    /// The buffer given with the descriptor; empty if lists were given.
    pub buffer: Vec<u8>,
    /// The lists given with the descriptor; empty if a buffer was given.
    pub lists: ScatterGather,
}

/// The direction of a bulk transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaDirection {
    /// From the donor.
    Read,
    /// To the donor.
    Write,
}

/// One chunk of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub descriptor: u16,
    pub direction: RdmaDirection,
    /// The start at the donor, and here.
    pub window_addr: u64,
    pub place: Place,
    pub len_bytes: u16,
}

/// The outstanding descriptors, and the completed ones not yet polled.
#[derive(Debug)]
pub(crate) struct Rdma {
    descriptors: Box<[Option<Descriptor>]>,
    free: Vec<u16>,
    done: VecDeque<u16>,
}

#[derive(Debug)]
struct Descriptor {
    token: u64,
    direction: RdmaDirection,
    memory: Memory,
    /// The next chunk to issue.
    cursor: Cursor,
    /// True if it waits in a queue for its chunks to be issued; `next` is the one behind it.
    is_queued: bool,
    next: Option<u16>,
    chunks_outstanding: u32,
    result: Result<(), AccessError>,
}

impl Rdma {
    pub(crate) fn new(depth: u16) -> Self {
        let depth = depth.max(1);
        Self {
            descriptors: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            done: VecDeque::with_capacity(depth.into()),
        }
    }

    /// Takes a descriptor, which the caller queues next.
    pub(crate) fn begin(
        &mut self,
        token: u64,
        direction: RdmaDirection,
        memory: Memory,
    ) -> Result<u16, RdmaRejected> {
        let window_addr = memory.window_addr();
        let error = match memory.len_bytes() {
            Some((there, here)) if there != here => FabricError::ListsDiffer { there, here },
            Some((len_bytes @ 0, _)) => FabricError::BadLength { window_addr, len_bytes },
            None => FabricError::BadLength { window_addr, len_bytes: u64::MAX },
            Some(_) => match self.free.pop() {
                Some(at) => return Ok(self.put(at, token, direction, memory)),
                None => FabricError::WouldBlock,
            },
        };
        let (buffer, lists) = memory.give_back();
        Err(RdmaRejected { error, buffer, lists })
    }

    fn put(&mut self, at: u16, token: u64, direction: RdmaDirection, memory: Memory) -> u16 {
        self.descriptors[usize::from(at)] = Some(Descriptor {
            token,
            direction,
            cursor: memory.start(),
            memory,
            is_queued: true,
            next: None,
            chunks_outstanding: 0,
            result: Ok(()),
        });
        at
    }

    /// Returns the number of descriptors not yet polled.
    pub(crate) fn outstanding(&self) -> usize {
        self.descriptors.len() - self.free.len()
    }

    /// Returns the number of completed descriptors not yet polled.
    pub(crate) fn done(&self) -> usize {
        self.done.len()
    }

    /// Returns the next chunk to issue, as long as a page and its range allow; `None` at the end.
    pub(crate) fn next_chunk(&self, at: u16) -> Option<Chunk> {
        let descriptor = self.get(at);
        if descriptor.result.is_err() {
            return None;
        }
        let (window_addr, len_bytes) = descriptor.memory.piece(&descriptor.cursor)?;
        let (direction, place) = (descriptor.direction, descriptor.cursor.place());
        Some(Chunk { descriptor: at, direction, window_addr, place, len_bytes })
    }

    /// Records that `chunk`, from [`Rdma::next_chunk`], is issued (perhaps shortened).
    pub(crate) fn issued(&mut self, chunk: &Chunk) {
        let descriptor = self.get_mut(chunk.descriptor);
        descriptor.memory.advance(&mut descriptor.cursor, chunk.len_bytes);
        descriptor.chunks_outstanding += 1;
    }

    /// Copies the bytes of a chunk to write into a frame.
    pub(crate) fn gather(&self, at: u16, place: Place, into: &mut [u8]) {
        self.get(at).memory.gather(place, into);
    }

    /// Completes a chunk with `data`, which is as long as the chunk; empty for a write.
    pub(crate) fn chunk_succeeded(&mut self, at: u16, place: Place, data: &[u8]) {
        let descriptor = self.get_mut(at);
        descriptor.memory.scatter(place, data);
        descriptor.chunks_outstanding -= 1;
        self.finish_if_complete(at);
    }

    /// Fails a chunk: the rest of the descriptor is not issued.
    pub(crate) fn chunk_failed(&mut self, at: u16, error: AccessError) {
        self.get_mut(at).chunks_outstanding -= 1;
        self.abandon(at, error);
    }

    /// Stops issuing chunks of the descriptor.
    pub(crate) fn abandon(&mut self, at: u16, error: AccessError) {
        let descriptor = self.get_mut(at);
        descriptor.result = descriptor.result.and(Err(error));
        self.finish_if_complete(at);
    }

    /// Records that the descriptor is in no queue any more: it completes with its last chunk.
    pub(crate) fn dequeued(&mut self, at: u16) {
        self.get_mut(at).is_queued = false;
        self.finish_if_complete(at);
    }

    fn finish_if_complete(&mut self, at: u16) {
        let descriptor = self.get(at);
        if !descriptor.is_queued && descriptor.chunks_outstanding == 0 {
            self.done.push_back(at);
        }
    }

    /// Returns the next completed descriptor.
    pub(crate) fn poll(&mut self) -> Option<RdmaCompletion> {
        let at = self.done.pop_front()?;
        let descriptor = self.descriptors[usize::from(at)].take().expect("done once");
        self.free.push(at);
        let Descriptor { token, result, memory, .. } = descriptor;
        let (buffer, lists) = memory.give_back();
        Some(RdmaCompletion { token, result, buffer, lists })
    }

    /// Returns the descriptor behind this one in its queue.
    fn next_of(&self, at: u16) -> Option<u16> {
        self.get(at).next
    }

    fn set_next(&mut self, at: u16, next: Option<u16>) {
        self.get_mut(at).next = next;
    }

    fn get(&self, at: u16) -> &Descriptor {
        self.descriptors[usize::from(at)].as_ref().expect("a descriptor that is not over")
    }

    fn get_mut(&mut self, at: u16) -> &mut Descriptor {
        self.descriptors[usize::from(at)].as_mut().expect("a descriptor that is not over")
    }
}
