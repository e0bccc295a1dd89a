//! Fixtures of several tests: a donor's memory of one grant, a random generator that repeats.
#![allow(dead_code)]

pub mod netns;
pub mod shm_grant;

use venice_fabric::{GrantedMemory, Refusal};
use venice_wire::{GrantId, GrantKey};

pub const ID: GrantId = GrantId(3);
pub const KEY: GrantKey = GrantKey(0xc0ffee);

/// The memory of one grant, [`ID`], under [`KEY`].
pub struct OneGrant(pub Vec<u8>);

impl OneGrant {
    fn range(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        len: usize,
    ) -> Result<&mut [u8], Refusal> {
        if grant != ID {
            return Err(Refusal::UnknownGrant);
        }
        if key != KEY {
            return Err(Refusal::WrongKey);
        }
        let start = usize::try_from(addr).map_err(|_| Refusal::OutOfRange)?;
        let end = start.checked_add(len).ok_or(Refusal::OutOfRange)?;
        self.0.get_mut(start..end).ok_or(Refusal::OutOfRange)
    }
}

impl GrantedMemory for OneGrant {
    fn read(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal> {
        into.copy_from_slice(self.range(grant, key, addr, into.len())?);
        Ok(())
    }

    fn write(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        from: &[u8],
    ) -> Result<(), Refusal> {
        self.range(grant, key, addr, from.len())?.copy_from_slice(from);
        Ok(())
    }
}

/// Random generator; one seed repeats a run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}
