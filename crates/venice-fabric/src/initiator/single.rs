//! Single accesses (CRMA): reads, writes, atomics, posted writes and their fence.

use venice_wire::MAX_PAYLOAD_BYTES;

use super::Initiator;
use crate::{Atomic, FabricError, PeerState, peer::Request, ramt::Mapping};

impl Initiator {
    /// Reads `len` bytes, 1 to 4096, inside one mapping. The completion carries them.
    ///
    /// # Errors
    /// Any [`FabricError`] except those of mapping calls; the access was not accepted.
    pub fn read(
        &mut self,
        _now_ns: u64,
        token: u64,
        window_addr: u64,
        len: u32,
    ) -> Result<(), FabricError> {
        self.check_slot()?;
        let (mapping, len_bytes) = self.check_access(window_addr, len as usize)?;
        let slot = self.channels.crma.begin(token);
        let request = Request::CrmaRead { slot, len_bytes };
        self.peers[mapping.peer.0 as usize].request(request, mapping, len_bytes, &[]);
        Ok(())
    }

    /// Stores `data`, 1 to 4096 bytes, inside one mapping. A completion without error confirms that
    /// the donor has stored it.
    ///
    /// # Errors
    /// Any [`FabricError`] except those of mapping calls; the access was not accepted.
    pub fn write(
        &mut self,
        _now_ns: u64,
        token: u64,
        window_addr: u64,
        data: &[u8],
    ) -> Result<(), FabricError> {
        self.check_slot()?;
        let (mapping, len_bytes) = self.check_access(window_addr, data.len())?;
        let slot = self.channels.crma.begin(token);
        let request = Request::CrmaWrite { slot };
        self.peers[mapping.peer.0 as usize].request(request, mapping, len_bytes, data);
        Ok(())
    }

    /// Adds `add` to the eight bytes at `window_addr`, a little-endian number that wraps around;
    /// the completion carries the previous value. The donor does it in one step, and once, even if
    /// the network repeats it.
    ///
    /// # Errors
    /// [`FabricError::Unaligned`] unless the address at the donor is a multiple of eight, and any
    /// other except those of mapping calls; the access was not accepted.
    pub fn fetch_add(
        &mut self,
        _now_ns: u64,
        token: u64,
        window_addr: u64,
        add: u64,
    ) -> Result<(), FabricError> {
        self.atomic(token, window_addr, Atomic::FetchAdd(add))
    }

    /// Stores `new` in the eight bytes at `window_addr` if they equal `expected`; the completion
    /// carries the previous value, so the exchange succeeded if that is `expected`. Otherwise like
    /// [`Initiator::fetch_add`].
    ///
    /// # Errors
    /// Like [`Initiator::fetch_add`].
    pub fn compare_swap(
        &mut self,
        _now_ns: u64,
        token: u64,
        window_addr: u64,
        expected: u64,
        new: u64,
    ) -> Result<(), FabricError> {
        self.atomic(token, window_addr, Atomic::CompareSwap { expected, new })
    }

    fn atomic(&mut self, token: u64, window_addr: u64, atomic: Atomic) -> Result<(), FabricError> {
        self.check_slot()?;
        let (mapping, len_bytes) = self.check_access(window_addr, Atomic::BYTES)?;
        if !mapping.remote_addr.is_multiple_of(Atomic::BYTES as u64) {
            return Err(FabricError::Unaligned { window_addr });
        }
        let slot = self.channels.crma.begin(token);
        let mut operands = [0; 16];
        let operands_len = atomic.emit(&mut operands);
        let request = Request::CrmaAtomic { slot, atomic };
        let peer = &mut self.peers[mapping.peer.0 as usize];
        peer.request(request, mapping, len_bytes, &operands[..operands_len]);
        Ok(())
    }

    /// Stores `data` like [`Initiator::write`], but without a completion: its error is reported by
    /// the next [`Initiator::fence`]. It takes no completion slot, so the link alone bounds how
    /// many are outstanding.
    ///
    /// # Errors
    /// Any [`FabricError`] except those of mapping calls; the access was not accepted, and no fence
    /// reports it.
    pub fn post(&mut self, _now_ns: u64, window_addr: u64, data: &[u8]) -> Result<(), FabricError> {
        let (mapping, len_bytes) = self.check_access(window_addr, data.len())?;
        let request = Request::CrmaPosted { stretch: self.channels.crma.post() };
        self.peers[mapping.peer.0 as usize].request(request, mapping, len_bytes, data);
        Ok(())
    }

    /// Completes once every write posted before it, to any donor, has been carried out; with the
    /// first error among those posted since the fence before it, a donor's death included. Fences
    /// complete in the order given. A fence does not order later accesses: wait for its completion.
    ///
    /// # Errors
    /// [`FabricError::WouldBlock`] without a free completion slot.
    pub fn fence(&mut self, _now_ns: u64, token: u64) -> Result<(), FabricError> {
        self.check_slot()?;
        self.channels.crma.fence(token);
        Ok(())
    }

    fn check_slot(&self) -> Result<(), FabricError> {
        if self.channels.crma.has_room() { Ok(()) } else { Err(FabricError::WouldBlock) }
    }

    fn check_access(
        &mut self,
        window_addr: u64,
        len: usize,
    ) -> Result<(Mapping, u16), FabricError> {
        let len_bytes = len as u64;
        if len == 0 || len > MAX_PAYLOAD_BYTES {
            return Err(FabricError::BadLength { window_addr, len_bytes });
        }
        let mapping = self
            .ramt
            .translate(window_addr)
            .filter(|mapping| mapping.room_bytes >= len_bytes)
            .ok_or(FabricError::NotMapped { window_addr, len_bytes })?;
        if let PeerState::Down { reason } = self.peer_state(mapping.peer) {
            return Err(FabricError::PeerDown(reason));
        }
        if self.is_revoked(&mapping) {
            return Err(FabricError::Revoked { window_addr });
        }
        if !self.peers[mapping.peer.0 as usize].has_single_room(&self.channels.qpairs) {
            return Err(FabricError::WouldBlock);
        }
        Ok((mapping, len as u16))
    }
}
