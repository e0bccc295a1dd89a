//! Regions: memory of a service host that its recipient reaches one-sidedly. Bulk data travels
//! through it: buffers, mailboxes.
//!
//! The host serves it ([`RegionHost`]) beside the endpoints of its messages: by shm at `region.sock`
//! beside the ring's socket, by udp at a port that a message of its service tells. The recipient
//! opens it with the access of the grant ([`Region`]): on the donor's machine it maps the memory, from
//! others it reaches it by CRMA and RDMA. Another host reads a part of it by a [`Ticket`].
//! `docs/reference/wire.md` has the keys.

mod error;
mod host;
mod recipient;
mod ticket;

use std::sync::atomic::AtomicU64;

use venice_memory::region::region_key;
use venice_ports::seal::{SealedAs, node_key};
use venice_wire::{GrantId, GrantKey, KeyName, NodeSecret};

pub use self::error::RegionError;
pub use self::host::RegionHost;
pub use self::recipient::Region;
pub use self::ticket::{Ticket, TicketReader};

/// Place of a region among those of its host: each has a socket and keys of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegionSlot {
    /// That of its service.
    First,
    /// That of a service beside the first one.
    Second,
}

impl RegionSlot {
    /// Returns the file of the shm socket, beside that of the ring.
    fn socket(self) -> &'static str {
        match self {
            Self::First => "region.sock",
            Self::Second => "region2.sock",
        }
    }

    /// Returns the key of accesses.
    fn key(self, secret: &[u8; 32]) -> GrantKey {
        match self {
            Self::First => region_key(&NodeSecret(*secret)),
            Self::Second => {
                let name = KeyName::Grant(GrantId(u64::MAX - 1));
                region_key(&NodeSecret(node_key(&NodeSecret(*secret), name).0))
            }
        }
    }

    /// Returns the key of datagrams, derived from that of the service's datagrams: those of one are
    /// not valid at the other.
    fn seal(self, grant: GrantId, service_key: [u8; 32]) -> SealedAs {
        let name = KeyName::Grant(grant);
        let derived = |key| node_key(&NodeSecret(key), name);
        let key = match self {
            Self::First => derived(service_key),
            Self::Second => derived(derived(service_key).0),
        };
        SealedAs { name, key }
    }
}

/// Returns the key of accesses to the region of a service with this secret.
pub fn key_of(secret: &[u8; 32]) -> GrantKey {
    RegionSlot::First.key(secret)
}

/// Memory that others access at the same time.
#[derive(Clone, Copy)]
struct SharedBytes {
    base: *mut u8,
    len: usize,
}

#[expect(unsafe_code, reason = "raw copies in memory that other processes write meanwhile")]
impl SharedBytes {
    /// Returns the memory of `len` bytes from `base` on.
    ///
    /// # Safety
    /// It stays mapped, readable and writable, as long as the value and its copies are used, and
    /// `base` is a multiple of eight. No reference to it exists.
    unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self { base, len }
    }

    /// Returns the address of `len` bytes at `offset`; `None` beyond the end.
    fn at(self, offset: u64, len: usize) -> Option<*mut u8> {
        let end = usize::try_from(offset).ok()?.checked_add(len)?;
        // SAFETY: inside the memory.
        (end <= self.len).then(|| unsafe { self.base.add(end - len) })
    }

    /// Copies bytes out; false beyond the end.
    fn read(self, offset: u64, into: &mut [u8]) -> bool {
        let Some(from) = self.at(offset, into.len()) else { return false };
        // SAFETY: both ranges are valid, and `into` is private. A concurrent writer leaves a mixture
        // of old and new bytes, of which every one is valid.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        true
    }

    /// Copies bytes in; false beyond the end.
    fn write(self, offset: u64, from: &[u8]) -> bool {
        let Some(into) = self.at(offset, from.len()) else { return false };
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) };
        true
    }

    /// Returns the word at `offset`, a multiple of eight; `None` beyond the end.
    fn word(&self, offset: u64) -> Option<&AtomicU64> {
        let at = self.at(offset, 8).filter(|at| at.addr().is_multiple_of(8))?;
        // SAFETY: eight aligned bytes that stay mapped. Others access them as an atomic too, or by
        // raw copies.
        Some(unsafe { AtomicU64::from_ptr(at.cast()) })
    }
}
