//! Borrowed memory at addresses like any other, paged in and out within a budget.

use std::sync::Arc;

use venice_recipient::paged::{PageSize, Region, Space, SpaceError};
use venice_recipient::{Copies, RemoteMemory};

use crate::Error;

/// Borrowed memory from which regions are mapped: arrays larger than what is to be resident of
/// them. Needs what `venice run` needs: Linux 6.8 and `CAP_SYS_PTRACE`.
///
/// Copies share it; it is given back when the last copy and the last region are gone.
#[derive(Clone, Debug)]
pub struct PagedMemory {
    shared: Arc<Shared>,
}

/// The space goes first, and the loan after it.
#[derive(Debug)]
struct Shared {
    space: Arc<Space>,
    remote: RemoteMemory,
}

/// A region: bytes at an address, of which some are here and the rest is with donors.
///
/// Program and kernel use it as they use any memory. Children of a `fork` do not have it. If the
/// last donor of a page is lost, touching it is `SIGBUS`, and a line on stderr names the donor.
#[derive(Debug)]
pub struct PagedRegion {
    region: Region,
    _shared: Arc<Shared>,
}

impl PagedMemory {
    pub(crate) fn start(remote: RemoteMemory, local_bytes: u64) -> Result<PagedMemory, Error> {
        let space = Arc::new(Space::start(remote.memory().clone(), local_bytes)?);
        Ok(PagedMemory { shared: Arc::new(Shared { space, remote }) })
    }

    /// A region of zeros, `len_bytes` rounded up to whole pages of 4 KiB.
    ///
    /// # Errors
    /// [`Error::NoRoom`]: all regions together would be more than was borrowed; [`Error::Refused`]
    /// by the kernel.
    pub fn map(&self, len_bytes: u64) -> Result<PagedRegion, Error> {
        self.map_by(len_bytes, PageSize::Small)
    }

    /// As [`PagedMemory::map`], of a region that comes and goes by pages of `page_size`: large ones
    /// are for what is used by runs of pages; huge ones need port shm, 32 MiB of local memory, and a
    /// kernel that has them (`venice doctor` tells).
    ///
    /// # Errors
    /// As for [`PagedMemory::map`]; [`Error::Invalid`] of
    /// huge ones without those, [`Error::Refused`] where the kernel has none.
    pub fn map_by(&self, len_bytes: u64, page_size: PageSize) -> Result<PagedRegion, Error> {
        let region = self.shared.space.map(len_bytes, page_size)?;
        Ok(PagedRegion { region, _shared: self.shared.clone() })
    }

    /// How many copies there are to be of what is far, and which are missing just now: lost ones
    /// are built anew on other nodes while the regions are in use.
    pub fn copies(&self) -> Copies {
        self.shared.remote.copies()
    }

    /// What regions may be, all together.
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.space.capacity_bytes()
    }

    /// What they are.
    pub fn mapped_bytes(&self) -> u64 {
        self.shared.space.mapped_bytes()
    }

    /// How much of them is resident.
    pub fn resident_bytes(&self) -> u64 {
        self.shared.space.resident_bytes()
    }
}

impl PagedRegion {
    /// The first byte's address, that of a page; for as long as this lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.as_ptr()
    }

    /// Its length, whole pages.
    pub fn len_bytes(&self) -> usize {
        self.region.len_bytes()
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.region.bytes()
    }

    /// Its bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.region.bytes_mut()
    }
}

impl From<SpaceError> for Error {
    fn from(error: SpaceError) -> Self {
        let said = crate::error::with_causes(&error);
        match error {
            SpaceError::NoRoom { .. } => Error::NoRoom(said),
            SpaceError::TooLittle { .. }
            | SpaceError::TooLittleForHuge { .. }
            | SpaceError::HugeNotMapped => Error::Invalid(said),
            _ => Error::Refused(said),
        }
    }
}
