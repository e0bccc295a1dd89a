//! The contents of a file: an object of the shared pager, and a mapping of it here through which
//! reads and writes go, as those of any user do.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::super::super::page_table::PageNumber;
use super::super::super::sys;
use super::super::super::uffd::Uffd;
use super::super::super::{PAGE, pages_of};
use super::super::messages::{Request, UserPages};
use super::super::objects::UserId;
use super::super::service::Service;

/// Least length that a file can grow to.
const LEAST_ROOM_BYTES: u64 = 8 << 30;
/// A file can grow to this multiple of its first length.
const ROOM_FACTOR: u64 = 4;
/// Longest file.
const MOST_BYTES: u64 = 1 << 44;

/// The supervisor as a user, for its own mappings of files.
#[derive(Debug)]
pub(super) struct OwnUser {
    pub service: Service,
    pub user: UserId,
    pub uffd: OwnedFd,
}

/// The contents of a file.
#[derive(Debug)]
pub(super) struct Contents {
    own: Arc<OwnUser>,
    memory: Arc<OwnedFd>,
    /// The number of its first page.
    pub first: PageNumber,
    /// Pages that it can grow to.
    room: usize,
    /// Pages that were ever within its length.
    managed: usize,
    /// Address of the mapping here.
    view: usize,
    pub len_bytes: u64,
}

impl Contents {
    /// Makes empty contents with room for `len_bytes` and more.
    ///
    /// # Errors
    /// `EFBIG`, `ENOSPC` when there is no address space, and others of the kernel.
    pub(super) fn new(own: Arc<OwnUser>, len_bytes: u64) -> Result<Contents, Errno> {
        if len_bytes > MOST_BYTES {
            return Err(Errno::FBIG);
        }
        let room_bytes = (len_bytes * ROOM_FACTOR).max(LEAST_ROOM_BYTES);
        let room = (room_bytes as usize).div_ceil(PAGE);
        let made = own.service.make_file(own.user, room).map_err(|_| Errno::NOSPC)?;
        let (first, memory) = made;
        let view = map_view(&own, &memory, first, room).inspect_err(|_| {
            own.service.serve(Request::GiveUp { user: own.user, first }, None);
        })?;
        Ok(Contents { own, memory, first, room, managed: 0, view, len_bytes: 0 })
    }

    /// Returns a descriptor of the memory.
    pub(super) fn memory(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&*self.memory, 3)
    }

    /// True if it can have this length.
    pub(super) fn has_room(&self, len_bytes: u64) -> bool {
        len_bytes <= (self.room * PAGE) as u64
    }

    /// Sets the length.
    ///
    /// # Errors
    /// `EFBIG` beyond its room, `EIO` if the page at the new end is lost.
    pub(super) fn resize(&mut self, len_bytes: u64) -> Result<(), Errno> {
        if !self.has_room(len_bytes) {
            return Err(Errno::FBIG);
        }
        let tail = (PAGE - len_bytes as usize % PAGE) % PAGE;
        if len_bytes < self.len_bytes && tail > 0 {
            // The kernel zeroes the rest of the page if it is there.
            self.zero(len_bytes, tail as u64)?;
        }
        let service = &self.own.service;
        self.managed = service.resize(self.first, &self.memory, self.managed, len_bytes)?;
        self.len_bytes = len_bytes;
        Ok(())
    }

    /// Reads into `to`, all of which is within the length.
    ///
    /// # Errors
    /// `EIO`: a page is lost.
    pub(super) fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Errno> {
        let from = self.view + offset as usize;
        copy_all(to.len(), |done| sys::copy_from(from + done, &mut to[done..]))
    }

    /// Writes `bytes`, all of which are within the length.
    ///
    /// # Errors
    /// Fails as [`Contents::read`] does.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let to = self.view + offset as usize;
        // SAFETY: in the mapping of the file, which others write to as well.
        copy_all(bytes.len(), |done| unsafe { sys::copy_to(to + done, &bytes[done..]) })
    }

    /// Makes a range zeros, as far as it is within the length.
    ///
    /// # Errors
    /// Fails as [`Contents::read`] does.
    pub(super) fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let end = offset.saturating_add(len);
        // All of the last page may go with its end.
        let end = if end >= self.len_bytes { (self.managed * PAGE) as u64 } else { end };
        let whole = offset.div_ceil(PAGE as u64)..end / PAGE as u64;
        if whole.start > whole.end {
            return self.zero(offset, end.saturating_sub(offset));
        }
        self.zero(offset, (whole.start * PAGE as u64).min(end).saturating_sub(offset))?;
        self.zero(whole.end * PAGE as u64, end % PAGE as u64)?;
        if !whole.is_empty() {
            let keys = self.first + whole.start as usize..self.first + whole.end as usize;
            self.own.service.punch(&keys);
        }
        Ok(())
    }

    /// Brings in all pages, which do not leave any more, and opens the memory anew.
    ///
    /// # Errors
    /// `EIO`: a page is lost; others of the kernel.
    pub(super) fn release(&self, is_writable: bool) -> Result<OwnedFd, Errno> {
        for page in self.own.service.keep(self.first..self.first + self.room) {
            let offset = ((page - self.first) * PAGE) as u64;
            self.read(offset, &mut [0])?;
        }
        let access = if is_writable { OFlags::RDWR } else { OFlags::RDONLY };
        let path = format!("/proc/self/fd/{}", self.memory.as_raw_fd());
        openat(CWD, path, access | OFlags::CLOEXEC, Mode::empty())
    }

    /// Writes zeros to less than a page, as far as it is within the length.
    fn zero(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let len = len.min(self.len_bytes.saturating_sub(offset)) as usize;
        self.write(offset, &[0; PAGE][..len])
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        let (start, pages) = (self.view / PAGE, self.room);
        // SAFETY: mapped by `map_view`; the server's threads use it while they have the contents.
        unsafe { sys::unmap(self.view as *mut _, pages * PAGE) };
        let at = UserPages { user: self.own.user, start, pages };
        self.own.service.serve(Request::Unmap(at), None);
    }
}

/// Maps the memory here, as a user does.
fn map_view(
    own: &OwnUser,
    memory: &OwnedFd,
    first: PageNumber,
    pages: usize,
) -> Result<usize, Errno> {
    let raw = |errno: sys::Errno| Errno::from_raw_os_error(errno.0);
    let len_bytes = pages * PAGE;
    let (anywhere, protection) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a fresh mapping disturbs nothing.
    let view = unsafe { mmap(anywhere, len_bytes, protection, MapFlags::SHARED, memory, 0)? };
    let view = view as usize;
    let uffd = Uffd { fd: own.uffd.as_raw_fd() };
    // SAFETY: advice about a fresh mapping. Huge pages cannot be evicted in part.
    let advised = unsafe {
        let _ = sys::madvise(view, len_bytes, sys::MADV_NOHUGEPAGE);
        sys::madvise(view, len_bytes, sys::MADV_DONTFORK)
    };
    sys::leave_out_of_dumps(view, len_bytes);
    let served = advised.and_then(|()| uffd.register_shared(view, len_bytes));
    let at = UserPages { user: own.user, start: pages_of(view, PAGE).start, pages };
    let outcome = served.map_err(raw).and_then(|()| {
        let (done, _) = own.service.serve(Request::Map { at, first }, None);
        if done == 1 { Ok(view) } else { Err(Errno::NOMEM) }
    });
    outcome.inspect_err(|_| {
        // SAFETY: mapped above, and known to nothing else.
        unsafe { sys::unmap(view as *mut _, len_bytes) };
    })
}

/// Calls `copy` until all of `len` bytes are copied. A copy fails where a plain access would be a
/// signal: on a page that is lost.
fn copy_all(len: usize, mut copy: impl FnMut(usize) -> sys::SysResult<usize>) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        match copy(done) {
            Ok(0) => return Err(Errno::IO),
            Ok(bytes) => done += bytes,
            Err(sys::Errno::EINTR) => {}
            Err(_) => return Err(Errno::IO),
        }
    }
    Ok(())
}
