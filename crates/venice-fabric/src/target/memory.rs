//! What a donor lends, as the fabric sees it.

use venice_wire::{GrantId, GrantKey, Refusal};

use super::RecipientId;
use crate::{Atomic, Lent};

/// The memory behind a [`Target`](crate::Target). Each call is one access by a recipient, and must check that the
/// grant is live, the key is its key, and the range lies inside it, before it touches a byte.
pub trait GrantedMemory {
    /// Who uses the grant, whose accesses together get one share of what the donor serves. What is
    /// provided here takes each grant for a recipient of its own.
    fn recipient(&mut self, grant: GrantId) -> RecipientId {
        RecipientId(grant.0)
    }

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

    /// Lends `len` bytes from `addr` on, so that a bulk read is answered from where they are. `None`:
    /// they cannot be lent, and are to be read instead. What is lent stays where it is, but need not
    /// stay as it is: an answer whose checksum is wrong because of that is sent again, from a copy.
    ///
    /// # Errors
    /// Why the access is refused.
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
    /// Why the access is refused; no byte has been stored then.
    fn write(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        from: &[u8],
    ) -> Result<(), Refusal>;

    /// Does `atomic` to the eight bytes at `addr`, a multiple of eight, as one step; returns what
    /// was there before.
    ///
    /// What is provided here reads and then writes: one step only for memory that nobody changes
    /// in any other way meanwhile. Memory that others have mapped, or another thread serves too,
    /// needs its own.
    ///
    /// # Errors
    /// Why the access is refused; nothing has been changed then.
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
