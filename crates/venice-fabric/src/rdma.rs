//! The RDMA channel: bulk transfers by descriptor, cut into chunks of which many are on their way.

use std::collections::VecDeque;

use venice_wire::MAX_PAYLOAD_BYTES;

use crate::{AccessError, FabricError};

/// A bulk transfer that is over.
#[derive(Debug, PartialEq, Eq)]
pub struct RdmaCompletion {
    /// The token given with the descriptor.
    pub token: u64,
    /// Whether all of it succeeded; otherwise the first error. After an error any part may have
    /// been carried out.
    pub result: Result<(), AccessError>,
    /// The buffer given with the descriptor.
    pub buffer: Vec<u8>,
}

/// A bulk transfer that was not taken, and its buffer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("bulk transfer not taken: {error}")]
pub struct RdmaRejected {
    /// Why.
    #[source]
    pub error: FabricError,
    /// The buffer given with the descriptor.
    pub buffer: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// One chunk of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub descriptor: u16,
    pub direction: Direction,
    /// Where it starts in the window space and in the buffer.
    pub window_addr: u64,
    pub offset: usize,
    pub len_bytes: u16,
}

/// The descriptors outstanding, and those done but not yet polled.
#[derive(Debug)]
pub(crate) struct Rdma {
    descriptors: Box<[Option<Descriptor>]>,
    free: Vec<u16>,
    /// Those with chunks still to issue, in turn.
    issuing: VecDeque<u16>,
    done: VecDeque<u16>,
}

#[derive(Debug)]
struct Descriptor {
    token: u64,
    direction: Direction,
    window_addr: u64,
    buffer: Vec<u8>,
    issued_bytes: usize,
    chunks_outstanding: u32,
    result: Result<(), AccessError>,
}

impl Rdma {
    pub(crate) fn new(depth: u16) -> Self {
        let depth = depth.max(1);
        Self {
            descriptors: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            issuing: VecDeque::with_capacity(depth.into()),
            done: VecDeque::with_capacity(depth.into()),
        }
    }

    /// Takes a descriptor.
    pub(crate) fn begin(
        &mut self,
        token: u64,
        direction: Direction,
        window_addr: u64,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        let len_bytes = buffer.len() as u64;
        if len_bytes == 0 || window_addr.checked_add(len_bytes).is_none() {
            let error = FabricError::BadLength { window_addr, len_bytes };
            return Err(RdmaRejected { error, buffer });
        }
        let Some(at) = self.free.pop() else {
            return Err(RdmaRejected { error: FabricError::WouldBlock, buffer });
        };
        self.descriptors[usize::from(at)] = Some(Descriptor {
            token,
            direction,
            window_addr,
            buffer,
            issued_bytes: 0,
            chunks_outstanding: 0,
            result: Ok(()),
        });
        self.issuing.push_back(at);
        Ok(())
    }

    /// Descriptors with chunks still to issue.
    pub(crate) fn issuing(&self) -> usize {
        self.issuing.len()
    }

    /// Descriptors not yet polled.
    pub(crate) fn outstanding(&self) -> usize {
        self.descriptors.len() - self.free.len()
    }

    /// The next chunk of the descriptor whose turn it is, as long as a page allows.
    pub(crate) fn next_chunk(&self) -> Option<Chunk> {
        let &at = self.issuing.front()?;
        let descriptor = self.get(at);
        let offset = descriptor.issued_bytes;
        let len_bytes = (descriptor.buffer.len() - offset).min(MAX_PAYLOAD_BYTES) as u16;
        Some(Chunk {
            descriptor: at,
            direction: descriptor.direction,
            window_addr: descriptor.window_addr + offset as u64,
            offset,
            len_bytes,
        })
    }

    /// The turn goes to the next descriptor.
    pub(crate) fn rotate(&mut self) {
        self.issuing.rotate_left(1.min(self.issuing.len()));
    }

    /// The bytes of a chunk to write.
    pub(crate) fn chunk_bytes(&self, chunk: &Chunk) -> &[u8] {
        &self.get(chunk.descriptor).buffer[chunk.offset..][..usize::from(chunk.len_bytes)]
    }

    /// `chunk`, which [`Rdma::next_chunk`] gave, is on its way (perhaps cut shorter).
    pub(crate) fn issued(&mut self, chunk: &Chunk) {
        let descriptor = self.get_mut(chunk.descriptor);
        descriptor.issued_bytes += usize::from(chunk.len_bytes);
        descriptor.chunks_outstanding += 1;
        if descriptor.issued_bytes == descriptor.buffer.len() {
            self.issuing.pop_front();
        }
    }

    /// The descriptor whose turn it is cannot go on: no more of its chunks are issued.
    pub(crate) fn abandon(&mut self, error: AccessError) {
        let Some(at) = self.issuing.pop_front() else { return };
        let descriptor = self.get_mut(at);
        descriptor.issued_bytes = descriptor.buffer.len();
        descriptor.result = descriptor.result.and(Err(error));
        self.finish_if_complete(at);
    }

    /// A chunk has brought `data`, which is as long as the chunk; or was written, and brought none.
    pub(crate) fn chunk_succeeded(&mut self, at: u16, offset: usize, data: &[u8]) {
        let descriptor = self.get_mut(at);
        descriptor.buffer[offset..][..data.len()].copy_from_slice(data);
        descriptor.chunks_outstanding -= 1;
        self.finish_if_complete(at);
    }

    /// A chunk failed: the rest of the descriptor is not issued.
    pub(crate) fn chunk_failed(&mut self, at: u16, error: AccessError) {
        self.issuing.retain(|&issuing| issuing != at);
        let descriptor = self.get_mut(at);
        descriptor.issued_bytes = descriptor.buffer.len();
        descriptor.result = descriptor.result.and(Err(error));
        descriptor.chunks_outstanding -= 1;
        self.finish_if_complete(at);
    }

    fn finish_if_complete(&mut self, at: u16) {
        let descriptor = self.get(at);
        let all_issued = descriptor.issued_bytes == descriptor.buffer.len();
        if all_issued && descriptor.chunks_outstanding == 0 {
            self.done.push_back(at);
        }
    }

    /// The next descriptor that is over.
    pub(crate) fn poll(&mut self) -> Option<RdmaCompletion> {
        let at = self.done.pop_front()?;
        let descriptor = self.descriptors[usize::from(at)].take().expect("done once");
        self.free.push(at);
        let Descriptor { token, result, buffer, .. } = descriptor;
        Some(RdmaCompletion { token, result, buffer })
    }

    fn get(&self, at: u16) -> &Descriptor {
        self.descriptors[usize::from(at)].as_ref().expect("a descriptor that is not over")
    }

    fn get_mut(&mut self, at: u16) -> &mut Descriptor {
        self.descriptors[usize::from(at)].as_mut().expect("a descriptor that is not over")
    }
}
