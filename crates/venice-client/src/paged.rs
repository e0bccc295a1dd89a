//! Borrowed memory at ordinary addresses, paged in and out within a budget.

use std::sync::Arc;

use venice_recipient::paged::{Hint, PageSize, Region, Space, SpaceError};
use venice_recipient::{Copies, RemoteMemory};

use crate::Error;
use crate::listing::Listing;

/// Borrowed memory from which regions are mapped: arrays larger than their resident part. Requires
/// what `venice run` requires: Linux 6.8 and `CAP_SYS_PTRACE`.
///
/// Copies share it; it is given back when the last copy and the last region are dropped.
#[derive(Clone, Debug)]
pub struct PagedMemory {
    shared: Arc<Shared>,
}

/// The space is dropped first, and the borrowed memory after it.
#[derive(Debug)]
struct Shared {
    _listing: Listing,
    space: Arc<Space>,
    remote: RemoteMemory,
}

/// A region: bytes at an address, of which some are resident and the rest is with donors.
///
/// Program and kernel use it like any memory. Children of a `fork` do not have it. If the last
/// donor of a page is lost, touching it raises `SIGBUS`, and a line on stderr names the donor.
#[derive(Debug)]
pub struct PagedRegion {
    region: Region,
    _shared: Arc<Shared>,
}

impl PagedMemory {
    pub(crate) fn start(remote: RemoteMemory, local_bytes: u64) -> Result<PagedMemory, Error> {
        venice_recipient::local_rack::use_helper();
        let space = Arc::new(Space::start(remote.memory().clone(), local_bytes)?);
        let listing = Listing::enter(&remote, Some(&space));
        Ok(PagedMemory { shared: Arc::new(Shared { _listing: listing, space, remote }) })
    }

    /// Maps a region of zeros, `len_bytes` rounded up to whole pages of 4 KiB.
    ///
    /// # Errors
    /// [`Error::NoRoom`] if all regions together would exceed the borrowed memory;
    /// [`Error::Refused`] by the kernel.
    pub fn map(&self, len_bytes: u64) -> Result<PagedRegion, Error> {
        self.map_by(len_bytes, PageSize::Small)
    }

    /// Like [`PagedMemory::map`], for a region that is paged in pages of `page_size`. Large ones
    /// suit data used by runs of pages; huge ones need port shm, 32 MiB of local memory, and a
    /// kernel with huge pages (`venice doctor` checks that).
    ///
    /// # Errors
    /// Like [`PagedMemory::map`]; [`Error::Invalid`] for huge ones without these,
    /// [`Error::Refused`] if the kernel has none.
    pub fn map_by(&self, len_bytes: u64, page_size: PageSize) -> Result<PagedRegion, Error> {
        let region = self.shared.space.map(len_bytes, page_size)?;
        Ok(PagedRegion { region, _shared: self.shared.clone() })
    }

    /// Returns the required and the missing copies of the far pages: lost ones are rebuilt on other
    /// nodes while the regions are in use.
    pub fn copies(&self) -> Copies {
        self.shared.remote.copies()
    }

    /// Returns the budget: the bytes of all regions that may be resident.
    pub fn local_bytes(&self) -> u64 {
        self.shared.space.local_bytes()
    }

    /// Changes the budget while the regions are in use, like `venice limit`. When it shrinks,
    /// excess pages are evicted as fast as they travel; the call does not wait for that. The
    /// pager's write-behind ring never exceeds its initial length: start with the largest budget.
    ///
    /// # Errors
    /// [`Error::Invalid`] for less than 4 MiB, or than 32 MiB once there were huge pages;
    /// [`Error::NoRoom`] if donors are lost, and the remaining ones have no room for the excess
    /// pages.
    pub fn set_local_bytes(&self, local_bytes: u64) -> Result<(), Error> {
        Ok(self.shared.space.set_local_bytes(local_bytes)?)
    }

    /// Returns the maximum bytes of all regions together.
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.space.capacity_bytes()
    }

    /// Returns the bytes of all regions.
    pub fn mapped_bytes(&self) -> u64 {
        self.shared.space.mapped_bytes()
    }

    /// Returns their resident bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.shared.space.resident_bytes()
    }
}

impl PagedRegion {
    /// Returns the address of the first byte, which is page-aligned; valid as long as this lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.as_ptr()
    }

    /// Returns its length in bytes, whole pages.
    pub fn len_bytes(&self) -> usize {
        self.region.len_bytes()
    }

    /// Advises on the future use of `len_bytes` from `offset` on, in whole pages: all those the
    /// range touches. It acts like `madvise(2)` under `venice run`: [`Hint::WillNeed`] brings far
    /// pages in, up to half the budget; [`Hint::Cold`] pages are evicted before others,
    /// [`Hint::PageOut`] ones at once; a [`Pattern`](crate::Pattern) holds until the next one.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Refused`] by the kernel, for example for locked pages.
    pub fn advise(&self, offset: usize, len_bytes: usize, hint: Hint) -> Result<(), Error> {
        let size = self.len_bytes();
        if offset.checked_add(len_bytes).is_none_or(|end| end > size) {
            let [offset, len_bytes, size_bytes] = [offset, len_bytes, size].map(|it| it as u64);
            return Err(Error::OutOfRange { offset, len_bytes, size_bytes });
        }
        Ok(self.region.advise(offset, len_bytes, hint)?)
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.region.bytes()
    }

    /// Returns its bytes for modification.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.region.bytes_mut()
    }
}

impl From<SpaceError> for Error {
    fn from(error: SpaceError) -> Self {
        let said = crate::error::with_causes(&error);
        match error {
            SpaceError::NoRoom { .. } | SpaceError::NoRoomFar { .. } => Error::NoRoom(said),
            SpaceError::TooLittle { .. }
            | SpaceError::TooLittleForHuge { .. }
            | SpaceError::HugeNotMapped => Error::Invalid(said),
            _ => Error::Refused(said),
        }
    }
}
