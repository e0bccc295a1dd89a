//! Fixtures of several tests: a donor's memory of one grant, a random generator that repeats.
#![allow(dead_code)]

pub mod lent;
pub mod netns;
pub mod shm_grant;

use venice_fabric::{GrantedMemory, Refusal};
use venice_testkit::guest::{GuestPlan, Room};
pub use venice_testkit::random::SplitMix64 as Random;
use venice_wire::{GrantId, GrantKey};

pub const ID: GrantId = GrantId(3);
pub const KEY: GrantKey = GrantKey(0xc0ffee);

/// The guest of all tests that need an RDMA device.
pub static RDMA_ROOM: Room = Room::new(GuestPlan {
    memory_mib: 1536,
    set_up: "ip link add venice0 type veth peer name venice1 && \
             ip addr add 10.77.0.1/24 dev venice0 && \
             ip link set venice0 up && ip link set venice1 up && \
             rdma link add rxe0 type rxe netdev venice0",
    ..GuestPlan::new("verbs", &["veth", "rdma_rxe"])
});

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
