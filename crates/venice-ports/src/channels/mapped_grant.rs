//! Maps a whole grant in one piece.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use venice_fabric::FabricError;
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use super::ChannelError;
use super::watch::Watch;
use crate::PortError;
use crate::shm::client::fetch_slabs_within;
use crate::shm::{ShmConnection, SlabMapping};

/// A grant's slabs side by side, and the connection to the donor that lends them.
#[derive(Debug)]
pub(super) struct MappedGrant {
    mapping: SlabMapping,
    connection: ShmConnection,
}

impl MappedGrant {
    /// Maps all slabs of `connection` and closes their descriptors.
    pub(super) fn new(mut connection: ShmConnection) -> Result<Self, PortError> {
        let mapping = SlabMapping::new(&std::mem::take(&mut connection.slabs))?;
        Ok(Self { mapping, connection })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.mapping.base()
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.mapping.len_bytes()
    }

    pub(super) fn connection(&self) -> &ShmConnection {
        &self.connection
    }
}

/// The memory of one grant of a donor on this host, mapped for any number of threads. A thread
/// watches the donor.
///
/// [`super::ShmChannels`] are for one thread, with mappings of several donors; this is for programs
/// that use the memory in place.
#[derive(Debug)]
pub struct WatchedGrant {
    // Declared first: the watch holds a duplicate of the connection.
    _watch: Watch,
    memory: MappedGrant,
    gone: Arc<AtomicBool>,
}

impl WatchedGrant {
    /// Fetches the slabs of a grant from the donor behind `socket`, which answers within `timeout`,
    /// and maps the first `len_bytes`, a multiple of the slab size.
    ///
    /// # Errors
    /// Fails if the donor is absent or refuses, the length is wrong, or the system has no room.
    pub fn open(
        socket: &Path,
        grant: GrantId,
        key: GrantKey,
        len_bytes: u64,
        timeout: Duration,
    ) -> Result<Self, ChannelError> {
        if len_bytes == 0 || !len_bytes.is_multiple_of(SLAB_BYTES) {
            return Err(FabricError::BadLength { window_addr: 0, len_bytes }.into());
        }
        let slabs = (len_bytes / SLAB_BYTES) as usize;
        let memory = MappedGrant::new(fetch_slabs_within(socket, grant, key, slabs, timeout)?)?;
        let (watch, gone) = (Watch::start()?, Arc::new(AtomicBool::new(false)));
        watch.add(memory.connection().fd(), Arc::clone(&gone))?;
        Ok(Self { _watch: watch, memory, gone })
    }

    /// Returns the address of the memory, which stays mapped as long as this value lives, even if
    /// the donor is gone. Others write to it: use raw copies and atomics, never references.
    pub fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    /// Returns its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.memory.len_bytes()
    }

    /// True once the donor is gone or has revoked the grant: what is read or written from then on
    /// reaches no one.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}
