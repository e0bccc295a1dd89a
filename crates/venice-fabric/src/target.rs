//! The donor's end: frames in, checked accesses to granted memory, answers out.

use venice_wire::{GrantId, GrantKey, Refusal};

use crate::TargetConfig;

/// Where a frame came from and its answer goes: a handle the port makes of a socket address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerAddr(pub u64);

/// The memory behind a [`Target`]. Each call is one access by a recipient, and must check that the
/// grant is live, the key is its key, and the range lies inside it, before it touches a byte.
pub trait GrantedMemory {
    /// Fills `into` from `addr` on.
    ///
    /// # Errors
    /// Why the access is refused; what `into` holds then is never sent.
    fn read(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal>;

    /// Stores `from` at `addr`.
    ///
    /// # Errors
    /// Why the access is refused; no byte has been stored then.
    fn write(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        from: &[u8],
    ) -> Result<(), Refusal>;
}

/// The donor's end of the fabric.
#[derive(Debug)]
pub struct Target {}

#[allow(unused_variables, missing_docs)]
impl Target {
    pub fn new(config: TargetConfig) -> Self {
        todo!()
    }
    pub fn handle_frame(
        &mut self,
        now_ns: u64,
        from: PeerAddr,
        frame: &[u8],
        memory: &mut impl GrantedMemory,
    ) {
        todo!()
    }
    pub fn handle_timeout(&mut self, now_ns: u64) {
        todo!()
    }
    pub fn poll_timeout(&self) -> Option<u64> {
        todo!()
    }
    pub fn poll_transmit(&mut self, now_ns: u64, buf: &mut [u8]) -> Option<(PeerAddr, usize)> {
        todo!()
    }
    pub fn links(&self) -> usize {
        todo!()
    }
}
