//! Borrowed memory at addresses like any other, paged in and out within a budget.

use std::sync::Arc;

use venice_recipient::paged::{Hint, PageSize, Region, Space, SpaceError};
use venice_recipient::{Copies, RemoteMemory};

use crate::Error;
use crate::listed::Listed;

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
    _listed: Listed,
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
        let listed = Listed::enter(&remote, Some(&space));
        Ok(PagedMemory { shared: Arc::new(Shared { _listed: listed, space, remote }) })
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

    /// What of the regions may be resident, all together.
    pub fn local_bytes(&self) -> u64 {
        self.shared.space.local_bytes()
    }

    /// Gives them another budget while they are in use, as `venice limit` does. When it shrinks, pages
    /// leave within the time that they take to travel, which this does not wait for. The pager's
    /// write-behind ring never gets longer than it began: start with the largest budget there is to be.
    ///
    /// # Errors
    /// [`Error::Invalid`] for less than 4 MiB, or than 32 MiB once there were huge pages;
    /// [`Error::NoRoom`] where donors are lost, and what is left has no room for what would leave.
    pub fn set_local_bytes(&self, local_bytes: u64) -> Result<(), Error> {
        Ok(self.shared.space.set_local_bytes(local_bytes)?)
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

    /// Says how `len_bytes` from `offset` on will be used, in whole pages: all those that these lie on.
    /// It comes to what `madvise(2)` comes to under `venice run`: with [`Hint::WillNeed`] far pages are
    /// brought in, half the budget of them at most; [`Hint::Cold`] ones leave before others,
    /// [`Hint::PageOut`] ones have left; a [`Pattern`](crate::Pattern) holds until another is said.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Refused`] by the kernel, of locked pages for one.
    pub fn advise(&self, offset: usize, len_bytes: usize, hint: Hint) -> Result<(), Error> {
        let size = self.len_bytes();
        if offset.checked_add(len_bytes).is_none_or(|end| end > size) {
            let [offset, len_bytes, size_bytes] = [offset, len_bytes, size].map(|it| it as u64);
            return Err(Error::OutOfRange { offset, len_bytes, size_bytes });
        }
        Ok(self.region.advise(offset, len_bytes, hint)?)
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
            SpaceError::NoRoom { .. } | SpaceError::NoRoomFar { .. } => Error::NoRoom(said),
            SpaceError::TooLittle { .. }
            | SpaceError::TooLittleForHuge { .. }
            | SpaceError::HugeNotMapped => Error::Invalid(said),
            _ => Error::Refused(said),
        }
    }
}
