//! Bulk transfers (RDMA): takes descriptors, and issues their chunks as the links allow.

use super::{Initiator, PeerIndex};
use crate::{
    AccessError, PeerState, RdmaCompletion, RdmaDirection, RdmaRejected, ScatterGather,
    peer::Request,
    ramt::Mapping,
    rdma::{Chunk, Memory},
};

impl Initiator {
    /// Fills the whole of `buffer` from `window_addr` on; it is returned with the completion. The
    /// range may span several mappings, of different donors too.
    ///
    /// # Errors
    /// [`crate::FabricError::BadLength`] or [`crate::FabricError::WouldBlock`], with the buffer.
    /// Other errors are reported by the completion.
    pub fn rdma_read(
        &mut self,
        now_ns: u64,
        token: u64,
        window_addr: u64,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        let memory = Memory::Plain { window_addr, buffer };
        self.begin_transfer(now_ns, token, RdmaDirection::Read, memory)
    }

    /// Stores the whole of `buffer` from `window_addr` on; otherwise like [`Initiator::rdma_read`].
    ///
    /// # Errors
    /// Like [`Initiator::rdma_read`].
    pub fn rdma_write(
        &mut self,
        now_ns: u64,
        token: u64,
        window_addr: u64,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        let memory = Memory::Plain { window_addr, buffer };
        self.begin_transfer(now_ns, token, RdmaDirection::Write, memory)
    }

    /// Moves bytes between the ranges and the segments of `lists`; they are returned with the
    /// completion. A chunk ends where a range ends, not where a segment does.
    ///
    /// Transfers to one grant are issued one after the other, so keep two or more outstanding: the
    /// chunks of the next one follow those of the one before without a pause. Grants share the link
    /// to their donor evenly, by bytes.
    ///
    /// # Errors
    /// [`crate::FabricError::ListsDiffer`] if their lengths differ; otherwise like
    /// [`Initiator::rdma_read`].
    pub fn rdma_submit(
        &mut self,
        now_ns: u64,
        token: u64,
        direction: RdmaDirection,
        lists: ScatterGather,
    ) -> Result<(), RdmaRejected> {
        self.begin_transfer(now_ns, token, direction, Memory::Lists(lists))
    }

    fn begin_transfer(
        &mut self,
        now_ns: u64,
        token: u64,
        direction: RdmaDirection,
        memory: Memory,
    ) -> Result<(), RdmaRejected> {
        let descriptor = self.channels.rdma.begin(token, direction, memory)?;
        self.queue_descriptor(descriptor);
        self.issue_chunks(now_ns);
        Ok(())
    }

    /// Returns the next completed RDMA descriptor.
    pub fn poll_rdma_completion(&mut self) -> Option<RdmaCompletion> {
        self.channels.rdma.poll()
    }

    /// True if an RDMA descriptor is outstanding or not yet polled.
    pub fn has_rdma_outstanding(&self) -> bool {
        self.channels.rdma.outstanding() > 0
    }

    /// Queues a descriptor at the donor of its next chunk.
    fn queue_descriptor(&mut self, descriptor: u16) {
        let chunk = self.channels.rdma.next_chunk(descriptor);
        match chunk.and_then(|chunk| self.ramt.translate(chunk.window_addr)) {
            Some(Mapping { peer, slot, .. }) => {
                let queue = &mut self.peers[peer.0 as usize].bulk;
                queue.push(slot, descriptor, &mut self.channels.rdma);
                self.to_issue.push_back(peer);
            }
            None => {
                self.channels.rdma.abandon(descriptor, AccessError::NotMapped);
                self.channels.rdma.dequeued(descriptor);
            }
        }
    }

    /// Issues chunks to `peer` as far as there is room.
    pub(super) fn issue_chunks_to(&mut self, now_ns: u64, peer: PeerIndex) {
        if !self.peers[peer.0 as usize].bulk.is_empty() {
            self.to_issue.push_back(peer);
            self.issue_chunks(now_ns);
        }
    }

    /// Issues chunks to those donors whose state has changed. A descriptor that continues at
    /// another donor queues that donor too.
    fn issue_chunks(&mut self, now_ns: u64) {
        while let Some(peer) = self.to_issue.pop_front() {
            while self.issue_next(now_ns, peer).is_some() {}
        }
    }

    /// Issues the next chunk of the descriptor whose turn it is, or passes the turn on; `None`:
    /// nothing can be issued now.
    fn issue_next(&mut self, now_ns: u64, peer: PeerIndex) -> Option<()> {
        let (slot, descriptor) = self.peers[peer.0 as usize].bulk.turn()?;
        let Some(chunk) = self.channels.rdma.next_chunk(descriptor) else {
            self.unqueue_descriptor(peer, descriptor);
            return Some(());
        };
        match self.resolve(&chunk) {
            Err(error) => {
                self.channels.rdma.abandon(descriptor, error);
                self.unqueue_descriptor(peer, descriptor);
            }
            Ok(mapping) if (mapping.peer, mapping.slot) != (peer, slot) => {
                self.peers[peer.0 as usize].bulk.pop(&self.channels.rdma);
                self.queue_descriptor(descriptor);
            }
            Ok(mapping) => return self.issue_chunk(now_ns, chunk, mapping),
        }
        Some(())
    }

    /// Returns the mapping of a chunk's start.
    fn resolve(&mut self, chunk: &Chunk) -> Result<Mapping, AccessError> {
        let mapping = self.ramt.translate(chunk.window_addr).ok_or(AccessError::NotMapped)?;
        if self.is_revoked(&mapping) {
            return Err(AccessError::Revoked);
        }
        match self.peer_state(mapping.peer) {
            PeerState::Down { reason } => Err(AccessError::PeerDown(reason)),
            PeerState::Connecting | PeerState::Up => Ok(mapping),
        }
    }

    fn unqueue_descriptor(&mut self, peer: PeerIndex, descriptor: u16) {
        self.peers[peer.0 as usize].bulk.pop(&self.channels.rdma);
        self.channels.rdma.dequeued(descriptor);
    }

    fn issue_chunk(&mut self, now_ns: u64, chunk: Chunk, mapping: Mapping) -> Option<()> {
        let peer = &mut self.peers[mapping.peer.0 as usize];
        if !peer.has_bulk_room(&self.channels.qpairs) {
            return None;
        }
        let len_bytes = mapping.room_bytes.min(chunk.len_bytes.into()) as u16;
        if !peer.bulk.spend(len_bytes) {
            return Some(());
        }
        let Chunk { descriptor, place, direction, .. } = chunk;
        let request = match direction {
            RdmaDirection::Read => Request::RdmaRead { descriptor, place, len_bytes },
            RdmaDirection::Write => Request::RdmaWrite { descriptor, place },
        };
        peer.request_chunk(now_ns, request, mapping, len_bytes);
        self.channels.rdma.issued(&Chunk { len_bytes, ..chunk });
        Some(())
    }
}
