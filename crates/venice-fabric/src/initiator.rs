//! The recipient's end: accesses in, completions out, over any number of donors.

use venice_wire::{GrantId, GrantKey, NodeId};

use crate::{
    AccessError, FabricError, InitiatorConfig, LinkStats, PeerState, RdmaCompletion, RdmaRejected,
};

/// One donor of an [`Initiator`]. Never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerIndex(pub u32);

/// A CRMA access that is over.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion<'a> {
    /// The token given with the access.
    pub token: u64,
    /// Whether it succeeded.
    pub result: Result<(), AccessError>,
    /// The bytes read; empty for a write or an error.
    pub data: &'a [u8],
}

/// The recipient's end of the fabric.
#[derive(Debug)]
pub struct Initiator {}

#[allow(unused_variables, missing_docs)]
impl Initiator {
    pub fn new(config: InitiatorConfig) -> Self {
        todo!()
    }
    pub fn add_peer(&mut self, donor: NodeId, now_ns: u64) -> PeerIndex {
        todo!()
    }
    /// Tells the donor, completes everything outstanding with an error.
    pub fn close_peer(&mut self, now_ns: u64, peer: PeerIndex) {
        todo!()
    }
    pub fn peer_state(&self, peer: PeerIndex) -> PeerState {
        todo!()
    }
    pub fn peer_stats(&self, peer: PeerIndex) -> LinkStats {
        todo!()
    }
    pub fn map_window(
        &mut self,
        window_addr: u64,
        len_bytes: u64,
        peer: PeerIndex,
        remote_addr: u64,
        grant: GrantId,
        key: GrantKey,
    ) -> Result<(), FabricError> {
        todo!()
    }
    pub fn unmap_window(&mut self, window_addr: u64) -> Result<(), FabricError> {
        todo!()
    }
    pub fn read(
        &mut self,
        now_ns: u64,
        token: u64,
        window_addr: u64,
        len: u32,
    ) -> Result<(), FabricError> {
        todo!()
    }
    pub fn write(
        &mut self,
        now_ns: u64,
        token: u64,
        window_addr: u64,
        data: &[u8],
    ) -> Result<(), FabricError> {
        todo!()
    }
    /// Fills the whole of `buffer` (its `len`); it comes back with the completion.
    pub fn rdma_read(
        &mut self,
        now_ns: u64,
        token: u64,
        window_addr: u64,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        todo!()
    }
    pub fn rdma_write(
        &mut self,
        now_ns: u64,
        token: u64,
        window_addr: u64,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        todo!()
    }
    pub fn handle_frame(&mut self, now_ns: u64, peer: PeerIndex, frame: &[u8]) {
        todo!()
    }
    pub fn handle_timeout(&mut self, now_ns: u64) {
        todo!()
    }
    pub fn poll_timeout(&self) -> Option<u64> {
        todo!()
    }
    pub fn poll_transmit(&mut self, now_ns: u64, buf: &mut [u8]) -> Option<(PeerIndex, usize)> {
        todo!()
    }
    pub fn poll_completion(&mut self) -> Option<Completion<'_>> {
        todo!()
    }
    pub fn poll_rdma_completion(&mut self) -> Option<RdmaCompletion> {
        todo!()
    }
}
