//! A donor on this host, like an agent: it hands out the memfds of one grant.

use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use tempfile::TempDir;
use venice_fabric::LinkModel;
use venice_ports::channels::{Channels, ShmChannels};
use venice_ports::shm::{
    MappedSlab, ShmConnection, ShmServer, SlabBatch, SlabFile, SlabSource, fetch_slabs,
};
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use super::MEMORY_BYTES;
use super::lent::{DONOR, GRANT, KEY, WINDOW};

const SLABS: usize = MEMORY_BYTES / SLAB_BYTES as usize;

/// The slabs of the one grant.
struct Slabs(Vec<SlabFile>);

impl Slabs {
    fn make() -> Result<Self> {
        let slab = || -> Result<SlabFile> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = memfd_create("venice-bench", flags).context("no memfd")?;
            ftruncate(&fd, SLAB_BYTES).context("no memory")?;
            let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            fcntl_add_seals(&fd, seals).context("a memfd cannot be sealed")?;
            let slab = SlabFile::from(fd);
            let mapped = MappedSlab::map(&slab, SLAB_BYTES as usize)?;
            // SAFETY: the whole mapping is written before anything else refers to it. Afterwards
            // all its pages exist.
            unsafe { mapped.as_ptr().write_bytes(0x5a, mapped.len_bytes()) };
            Ok(slab)
        };
        Ok(Self((0..SLABS).map(|_| slab()).collect::<Result<_>>()?))
    }
}

impl SlabSource for Slabs {
    fn slabs(
        &self,
        id: GrantId,
        key: GrantKey,
        first: usize,
        count: usize,
    ) -> Result<SlabBatch, String> {
        if (id, key) != (GRANT, KEY) {
            return Err("no such grant or wrong key".into());
        }
        let end = first.checked_add(count).ok_or("no such slabs")?;
        let wanted = self.0.get(first..end).ok_or("no such slabs")?;
        let clones = wanted.iter().map(|slab| slab.try_clone().map_err(|error| error.to_string()));
        Ok(SlabBatch { total: self.0.len(), files: clones.collect::<Result<_, _>>()? })
    }
}

/// A donor whose grant of [`MEMORY_BYTES`] any process may map.
pub(super) struct Lender {
    socket: PathBuf,
    _server: ShmServer,
    _folder: TempDir,
}

impl Lender {
    /// Starts it.
    ///
    /// # Errors
    /// When the system gives no memory or socket.
    pub(super) fn start() -> Result<Self> {
        let folder = TempDir::with_prefix("venice-bench-shm-").context("no temporary folder")?;
        let socket = folder.path().join("shm.sock");
        let server = ShmServer::start(&socket, Slabs::make()?)?;
        Ok(Self { socket, _server: server, _folder: folder })
    }

    /// Creates a recipient with the grant mapped at [`WINDOW`].
    ///
    /// # Errors
    /// When the donor refuses.
    pub(super) fn channels(&self, model: Option<LinkModel>) -> Result<Channels> {
        let mut channels = ShmChannels::new(model)?;
        channels.map_grant(WINDOW, DONOR, &self.socket, GRANT, KEY, MEMORY_BYTES as u64)?;
        Ok(channels.into())
    }

    /// Maps the first slab as its donor sees it.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub(super) fn own_memory(&self) -> Result<Own> {
        let connection = fetch_slabs(&self.socket, GRANT, KEY, SLABS)?;
        let first = connection.slabs.first().context("the grant has no slabs")?;
        let slab = MappedSlab::map(first, SLAB_BYTES as usize)?;
        Ok(Own { slab, _connection: connection })
    }
}

/// Memory that the other end writes to.
pub(super) struct Own {
    pub(super) slab: MappedSlab,
    _connection: ShmConnection,
}
