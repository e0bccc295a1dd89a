//! Single accesses (CRMA): reads, writes, atomics, posted writes and the fence behind them.

use venice_wire::MAX_PAYLOAD_BYTES;

use super::Initiator;
use crate::{Atomic, FabricError, PeerState, peer::Request, ramt::Mapping};

impl Initiator {
    /// Asks for `len` bytes, 1 to 4096, that lie in one window. They come with the completion.
    ///
    /// # Errors
    /// Any [`FabricError`] but those of windows; the access was not taken.
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

    /// Stores `data`, 1 to 4096 bytes that lie in one window. Once it completes without error the
    /// donor has it.
    ///
    /// # Errors
    /// Any [`FabricError`] but those of windows; the access was not taken.
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
    /// the completion brings what was there before. The donor does it as one step, and once, even
    /// if the network repeats it.
    ///
    /// # Errors
    /// [`FabricError::Unaligned`] unless the address at the donor is a multiple of eight, and any
    /// other but those of windows; the access was not taken.
    pub fn fetch_add(
        &mut self,
        _now_ns: u64,
        token: u64,
        window_addr: u64,
        add: u64,
    ) -> Result<(), FabricError> {
        self.atomic(token, window_addr, Atomic::FetchAdd(add))
    }

    /// Puts `new` in the place of the eight bytes at `window_addr` if they are `expected`; the
    /// completion brings what was there before, so that it was done if that is `expected`.
    /// Otherwise like [`Initiator::fetch_add`].
    ///
    /// # Errors
    /// As [`Initiator::fetch_add`].
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

    /// Stores `data` like [`Initiator::write`], but nothing completes: what went wrong with it is
    /// told by the next [`Initiator::fence`]. It takes no completion slot, so the link alone bounds
    /// how many are on their way.
    ///
    /// # Errors
    /// Any [`FabricError`] but those of windows; the access was not taken, and no fence will tell of it.
    pub fn post(&mut self, _now_ns: u64, window_addr: u64, data: &[u8]) -> Result<(), FabricError> {
        let (mapping, len_bytes) = self.check_access(window_addr, data.len())?;
        let request = Request::CrmaPosted { stretch: self.channels.crma.post() };
        self.peers[mapping.peer.0 as usize].request(request, mapping, len_bytes, data);
        Ok(())
    }

    /// Completes once every write posted before it, to whichever donor, has been carried out; with
    /// the first error among those posted since the fence before it, a donor's death included.
    /// Fences complete in the order given. A fence orders nothing that is given after it: wait for
    /// its completion.
    ///
    /// # Errors
    /// [`FabricError::WouldBlock`] when there is no completion slot.
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
