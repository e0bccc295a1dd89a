//! The interface to a donor's granted memory.

use venice_wire::{GrantId, GrantKey, Refusal};

use super::RecipientId;
use crate::{Atomic, Lent};

/// The memory behind a [`Target`](crate::Target). Each call is one access by a recipient, and must
/// check that the grant is live, the key matches, and the range lies inside the grant, before it
/// touches a byte.
pub trait GrantedMemory {
    /// Returns the recipient that uses the grant; all accesses of a recipient share one share of
    /// the donor's service. By default each grant is a recipient of its own.
    fn recipient(&mut self, grant: GrantId) -> RecipientId {
        RecipientId(grant.0)
    }

    /// Fills `into` from `addr` on.
    ///
    /// # Errors
    /// The reason the access is refused; the contents of `into` are never sent then.
    fn read(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal>;

    /// Lends `len` bytes from `addr` on, so that a bulk read is answered from their place. `None`:
    /// they cannot be lent, and must be read instead. Lent bytes stay in place, but may change: an
    /// answer whose checksum is wrong because of that is sent again, from a copy.
    ///
    /// # Errors
    /// The reason the access is refused.
    fn lend(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        len: usize,
    ) -> Result<Option<Lent>, Refusal> {
        let _ = (grant, key, addr, len);
        Ok(None)
    }

    /// Stores `from` at `addr`.
    ///
    /// # Errors
    /// The reason the access is refused; no byte has been stored then.
    fn write(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        from: &[u8],
    ) -> Result<(), Refusal>;

    /// Applies `atomic` to the eight bytes at `addr`, a multiple of eight, in one step; returns the
    /// previous value.
    ///
    /// The default reads and then writes, which is one step only for memory without other writers.
    /// Memory that others have mapped, or that another thread serves too, needs its own
    /// implementation.
    ///
    /// # Errors
    /// The reason the access is refused; nothing has been changed then.
    fn atomic(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        atomic: Atomic,
    ) -> Result<u64, Refusal> {
        let mut bytes = [0; Atomic::BYTES];
        self.read(grant, key, addr, &mut bytes)?;
        let old = u64::from_le_bytes(bytes);
        if let Some(new) = atomic.apply(old) {
            self.write(grant, key, addr, &new.to_le_bytes())?;
        }
        Ok(old)
    }
}
