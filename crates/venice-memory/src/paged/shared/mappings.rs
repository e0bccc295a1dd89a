//! Shared memory as a process of the run maps it: changes of its address space, which the shared
//! pager of the run must follow.
//!
//! Every call here is made with the structure lock held, and the shared pager replies without
//! needing anything of this process.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use super::super::page_table::PageNumber;
use super::super::pager::{Pager, Structure};
use super::super::sys::{self, Errno, Remap, SysResult, nr};
use super::super::uffd::Uffd;
use super::super::{PAGE, attach, pages_of};
use super::messages::{Request, UserPages};
use super::objects::UserId;

/// Shortest mapping that is paged, in bytes: shorter ones are not worth the messages.
const LEAST_BYTES: usize = 256 << 10;

const MAP_FIXED: usize = 0x10;
const MAP_ANONYMOUS: usize = 0x20;
const MAP_POPULATE: usize = 0x8000;
const MAP_LOCKED: usize = 0x2000;
const MAP_TYPE: usize = 0x0f;
const MAP_PRIVATE: usize = 0x02;
const PROT_WRITE: usize = 2;
const PROT_NONE: usize = 0;
const O_ACCMODE: usize = 3;
const O_RDONLY: usize = 0;
const O_WRONLY: usize = 1;
const MREMAP_FIXED: usize = 2;
const MREMAP_DONTUNMAP: usize = 4;

/// This process as a user of the shared pager.
#[derive(Debug, Default)]
pub struct SharedMappings {
    /// Its number; 0: it is none.
    user: AtomicU32,
    /// Its userfaultfd, once it is a user.
    uffd_fd: AtomicI32,
    /// The number of the child that is being forked; 0: it inherits nothing that is served.
    child: AtomicU32,
}

impl SharedMappings {
    fn user(&self) -> Option<UserId> {
        Some(self.user.load(Ordering::Acquire)).filter(|user| *user != 0)
    }

    fn uffd(&self) -> Uffd {
        Uffd { fd: self.uffd_fd.load(Ordering::Acquire) }
    }

    fn set(&self, user: UserId, fd: i32) {
        self.uffd_fd.store(fd, Ordering::Release);
        self.user.store(user, Ordering::Release);
    }
}

/// A shared file of the run, as one descriptor of it allows its use.
#[derive(Clone, Copy, Debug)]
pub struct SharedFile {
    inode: u64,
    is_readable: bool,
    is_writable: bool,
}

impl Pager {
    /// Returns the shared file of the run that a descriptor is of.
    pub fn shared_file(&self, fd: i32) -> Option<SharedFile> {
        let device = self.block.shared_files_device.load(Ordering::Acquire);
        let inode = (device != 0 && fd >= 0).then(|| inode_on(device, fd)).flatten()?;
        let access = sys::descriptor_flags(fd).ok()? & O_ACCMODE;
        let (is_readable, is_writable) = (access != O_WRONLY, access != O_RDONLY);
        Some(SharedFile { inode, is_readable, is_writable })
    }

    /// Returns the memory of a shared file, for a process outside of the run, at a number that
    /// programs do not use. Its pages stay from now on. `None`: there is none, or one of them is
    /// lost.
    pub fn release_file(&self, file: SharedFile) -> Option<OwnedFd> {
        let SharedFile { inode, is_writable, .. } = file;
        let memory = self.ask_shared(Request::Release { inode, is_writable }, None)?.1?;
        Some(self.out_of_the_way(memory))
    }

    /// Moves a descriptor to a number that programs do not use.
    fn out_of_the_way(&self, fd: OwnedFd) -> OwnedFd {
        let fd = fd.into_raw_fd();
        let fd = sys::move_fd(fd, self.descriptors().lowest()).unwrap_or(fd);
        // SAFETY: moved here, and owned by nothing else.
        unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) }
    }

    /// True if a process of this process's PID namespace pages in this run.
    pub fn pages_in_run(&self, pid: u32) -> bool {
        self.shares_pids.load(Ordering::Relaxed)
            && self.block.live_processes().any(|(_, it)| it.pid.load(Ordering::Acquire) == pid)
    }

    fn ask_shared(
        &self,
        request: Request,
        with: Option<BorrowedFd<'_>>,
    ) -> Option<(u64, Option<OwnedFd>)> {
        let reply = attach::ask_shared_pager(self.supervisor_fd, request, with).ok()?;
        Some(reply).filter(|(number, _)| *number != 0)
    }

    /// Reports a change that has been made; without the shared pager this process cannot go on.
    fn report_shared(&self, request: Request) {
        if self.ask_shared(request, None).is_none() {
            sys::die("`venice run` does not follow this program's shared memory any more");
        }
    }

    /// Prepares the shared memory for a fork.
    pub(in super::super) fn before_shared_fork(&self) {
        let Some(user) = self.shared_mappings.user() else { return };
        let reply = attach::ask_shared_pager(self.supervisor_fd, Request::Fork { user }, None);
        // No child has the last number: this one will not be served.
        let number = reply.map_or(UserId::MAX, |(number, _)| number as UserId);
        self.shared_mappings.child.store(number, Ordering::Release);
    }

    /// Makes the forked child a user of its own. Returns the descriptor that it must keep: as long
    /// as it is open, no access reads zeros after the supervisor's death. `None`: it has no shared
    /// memory that is served.
    pub(in super::super) fn take_over_shared(&self) -> Option<i32> {
        self.shared_mappings.user()?;
        let user = self.shared_mappings.child.swap(0, Ordering::AcqRel);
        if user == 0 {
            self.shared_mappings.set(0, -1);
            return None;
        }
        let reply = self.ask_shared(Request::Child { user }, None);
        let Some((_, Some(uffd))) = reply else {
            sys::die("fork failed: the shared memory of the child is not served");
        };
        let fd = self.descriptors().keep(uffd.into_raw_fd());
        self.shared_mappings.set(user, fd);
        Some(fd)
    }
}

impl Structure {
    /// Maps shared anonymous memory that the run's shared pager serves. `None`: it cannot, and
    /// nothing has changed but that a mapping replaced by `MAP_FIXED` may be gone.
    pub fn map_shared(
        &mut self,
        addr: usize,
        len_bytes: usize,
        protection: usize,
        flags: usize,
    ) -> Option<SysResult<usize>> {
        let pages = len_bytes.checked_next_multiple_of(PAGE)? / PAGE;
        if pages * PAGE < LEAST_BYTES {
            return None;
        }
        let user = self.shared_user()?;
        let (first, memory) = self.pager.ask_shared(Request::Object { user, pages }, None)?;
        let flags = flags & !(MAP_ANONYMOUS | MAP_POPULATE);
        let mapped = self.map_object(addr, pages * PAGE, flags, (memory?.as_fd(), 0));
        let object = first as PageNumber;
        self.serve_mapped((user, false), mapped, pages, (object, 0), protection)
    }

    /// Maps a shared file of the run, which the shared pager serves. `None`: it cannot, and nothing
    /// has changed but that a mapping replaced by `MAP_FIXED` may be gone.
    pub fn map_file(
        &mut self,
        addr: usize,
        len_bytes: usize,
        protection: usize,
        flags: usize,
        (file, offset): (SharedFile, usize),
    ) -> Option<SysResult<usize>> {
        let pages = len_bytes.checked_next_multiple_of(PAGE)? / PAGE;
        let is_private = flags & MAP_TYPE == MAP_PRIVATE;
        if pages == 0 || !offset.is_multiple_of(PAGE) || offset > isize::MAX as usize {
            return Some(Err(Errno::EINVAL));
        }
        if !file.is_readable || !(is_private || file.is_writable || protection & PROT_WRITE == 0) {
            return Some(Err(Errno::EACCES));
        }
        let user = self.shared_user()?;
        let request = Request::File { user, inode: file.inode };
        let (object, memory) = self.pager.ask_shared(request, None)?;
        let (object, memory) = (object as PageNumber, memory?);
        let flags = flags & !(MAP_POPULATE | MAP_LOCKED);
        let mapped = self.map_object(addr, pages * PAGE, flags, (memory.as_fd(), offset));
        let place = (object, offset / PAGE);
        self.serve_mapped((user, is_private), mapped, pages, place, protection)
    }

    /// Returns the mount of the run's shared files, at a number that programs do not use. `None`: a
    /// file of this process stays the kernel's.
    pub fn shared_files(&mut self) -> Option<OwnedFd> {
        let (_, mount) = self.pager.ask_shared(Request::Files, None)?;
        Some(self.pager.out_of_the_way(mount?))
    }

    fn map_object(
        &mut self,
        addr: usize,
        len_bytes: usize,
        flags: usize,
        (memory, offset): (BorrowedFd<'_>, usize),
    ) -> SysResult<usize> {
        let fd = memory.as_raw_fd() as usize;
        let arguments = [addr, len_bytes, PROT_NONE, flags, fd, offset];
        // SAFETY: what the program asked for, not yet accessible.
        let map = || unsafe { sys::program_syscall(nr::MMAP, arguments) };
        match flags & MAP_FIXED {
            0 => map(),
            _ => self.replace(addr, len_bytes, map),
        }
    }

    /// Has a fresh mapping served, from a page of its object on, or gives the object up.
    fn serve_mapped(
        &mut self,
        (user, is_private): (UserId, bool),
        mapped: SysResult<usize>,
        pages: usize,
        (object, page): (PageNumber, usize),
        protection: usize,
    ) -> Option<SysResult<usize>> {
        let first = object + page;
        let served = match mapped {
            Ok(new) => self.serve_object((user, is_private), new, pages, first, protection),
            Err(errno) => Some(Err(errno)),
        };
        if !matches!(served, Some(Ok(_))) {
            self.pager.report_shared(Request::GiveUp { user, first: object });
        }
        served
    }

    /// Has a fresh mapping served, and makes it accessible.
    fn serve_object(
        &mut self,
        (user, is_private): (UserId, bool),
        new: usize,
        pages: usize,
        first: PageNumber,
        protection: usize,
    ) -> Option<SysResult<usize>> {
        let len_bytes = pages * PAGE;
        let at = UserPages { user, start: new / PAGE, pages };
        // SAFETY: advice about a fresh mapping. The kernel zeroes parts of huge pages in place
        // where others hold references to them.
        let advised = unsafe { sys::madvise(new, len_bytes, sys::MADV_NOHUGEPAGE) };
        // A kernel without huge pages refuses the advice.
        let is_advised = matches!(advised, Ok(()) | Err(Errno::EINVAL));
        let uffd = self.pager.shared_mappings.uffd();
        let (registered, request) = match is_private {
            false => (uffd.register_shared(new, len_bytes), Request::Map { at, first }),
            true => (uffd.register_private(new, len_bytes), Request::MapPrivate { at, first }),
        };
        let is_served =
            is_advised && registered.is_ok() && self.pager.ask_shared(request, None).is_some();
        // SAFETY: the program's own fresh mapping.
        let protect =
            || unsafe { sys::program_syscall(nr::MPROTECT, [new, len_bytes, protection, 0, 0, 0]) };
        let outcome = is_served.then(protect);
        if let Some(Ok(_)) = outcome {
            self.guarded().shared.insert(at.start..at.start + pages);
            return Some(Ok(new));
        }
        // SAFETY: mapped for the program, which does not know it yet.
        let _ = unsafe { sys::program_syscall(nr::MUNMAP, [new, len_bytes, 0, 0, 0, 0]) };
        if is_served {
            self.pager.report_shared(Request::Unmap(at));
        }
        outcome.map(|outcome| outcome.map(|_| new))
    }

    /// Returns this process's number as a user; it becomes one at the first call.
    fn shared_user(&mut self) -> Option<UserId> {
        let pager = self.pager;
        if let Some(user) = pager.shared_mappings.user() {
            return Some(user);
        }
        let uffd = Uffd::open_shared(pager.supervisor_fd).ok()?;
        // SAFETY: opened above, and owned by nothing else.
        let uffd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(uffd.fd) };
        let (user, _) = pager.ask_shared(Request::User, Some(uffd.as_fd()))?;
        let user = user as UserId;
        pager.shared_mappings.set(user, pager.descriptors().keep(uffd.into_raw_fd()));
        Some(user)
    }

    /// True if any page of the range is served by the shared pager.
    pub fn touches_shared(&mut self, addr: usize, len_bytes: usize) -> bool {
        self.guarded().shared.parts(pages_of(addr, len_bytes.max(1))).next().is_some()
    }

    /// Ends the service of pages that are no longer mapped.
    pub(in super::super) fn forget_shared(&mut self, pages: Range<PageNumber>) {
        let Some(user) = self.pager.shared_mappings.user() else { return };
        let parts: Vec<_> = self.guarded().shared.parts(pages).collect();
        for part in parts {
            let at = UserPages { user, start: part.start, pages: part.len() };
            self.pager.report_shared(Request::Unmap(at));
            self.guarded().shared.remove(part);
        }
    }

    /// Calls `mremap(2)` on memory that the shared pager serves.
    ///
    /// # Errors
    /// The kernel's; `EFAULT` where the range is not of one mapping.
    pub fn relocate_shared(&mut self, remap: Remap) -> SysResult<usize> {
        let Remap { old, old_len, new_len, flags, new_addr } = remap;
        let user = self.pager.shared_mappings.user().ok_or(Errno::EFAULT)?;
        let old_pages = pages_of(old, old_len.max(1));
        let (start, pages) = (old_pages.start, old_pages.len());
        let begin = Request::BeginMove(UserPages { user, start, pages });
        let (first, _) = self.pager.ask_shared(begin, None).ok_or(Errno::EFAULT)?;
        // SAFETY: what the program asked for.
        let call = || unsafe { remap.call() };
        let outcome = match flags & MREMAP_FIXED {
            0 => call(),
            _ => self.replace(new_addr, new_len, call),
        };
        if let Ok(new) = outcome {
            let pages = new_len.div_ceil(PAGE);
            let at = UserPages { user, start: new / PAGE, pages };
            self.follow_shared(at, first as PageNumber);
            if flags & MREMAP_DONTUNMAP != 0 {
                self.register_again(old, old_len);
            } else if old_len > 0 {
                let gone = if new == old { start + pages..old_pages.end } else { old_pages };
                self.forget_shared(gone);
            }
        }
        self.pager.report_shared(Request::Settle { user });
        outcome
    }

    fn follow_shared(&mut self, at: UserPages, first: PageNumber) {
        self.register_again(at.start * PAGE, at.pages * PAGE);
        self.pager.report_shared(Request::Map { at, first });
        self.guarded().shared.insert(at.start..at.start + at.pages);
    }

    /// The kernel unregisters what it moves.
    fn register_again(&self, addr: usize, len_bytes: usize) {
        if self.pager.shared_mappings.uffd().register_shared(addr, len_bytes).is_err() {
            sys::die(
                "mremap failed: the kernel does not serve the moved shared memory by userfaultfd",
            );
        }
    }

    /// Drops the contents of the parts of a range that the shared pager serves (`MADV_REMOVE`).
    /// True if all of the range is.
    pub fn remove_shared(&mut self, addr: usize, len_bytes: usize) -> bool {
        let pages = pages_of(addr, len_bytes);
        let is_all = self.guarded().shared.contains(pages.clone());
        self.report_parts(pages, Request::Remove);
        is_all
    }

    /// Advises that children get a range, or not.
    ///
    /// # Errors
    /// The kernel's.
    pub fn advise_shared_on_fork(
        &mut self,
        addr: usize,
        len_bytes: usize,
        advice: usize,
    ) -> SysResult<()> {
        // SAFETY: advice that changes no contents.
        let outcome = unsafe { sys::madvise(addr, len_bytes, advice) };
        if outcome.is_ok() {
            let request =
                if advice == sys::MADV_DONTFORK { Request::DontFork } else { Request::DoFork };
            self.report_parts(pages_of(addr, len_bytes), request);
        }
        outcome
    }

    /// Locks the shared pages of a range, or unlocks them: locked pages do not leave.
    pub(in super::super) fn lock_shared(&mut self, pages: Range<PageNumber>, is_locked: bool) {
        self.report_parts(pages, if is_locked { Request::Lock } else { Request::Unlock });
    }

    /// Keeps the shared pages of a range from leaving for good. True if all of the range is shared.
    pub(in super::super) fn keep_shared(&mut self, pages: Range<PageNumber>) -> bool {
        self.report_parts(pages.clone(), Request::Keep);
        self.guarded().shared.contains(pages)
    }

    fn report_parts(&mut self, pages: Range<PageNumber>, request: impl Fn(UserPages) -> Request) {
        let Some(user) = self.pager.shared_mappings.user() else { return };
        let parts: Vec<_> = self.guarded().shared.parts(pages).collect();
        for part in parts {
            let at = UserPages { user, start: part.start, pages: part.len() };
            self.pager.report_shared(request(at));
        }
    }
}

/// Returns the inode number of a descriptor's file if it is on the device. No request is sent.
fn inode_on(device: u64, fd: i32) -> Option<u64> {
    const INODE: usize = 32;
    const DEVICE: usize = 136;
    const STATX_INO: usize = 0x100;
    const EMPTY_PATH_DONT_SYNC: usize = 0x1000 | 0x4000;
    let mut found = [0u64; 32];
    let arguments = [
        fd as usize,
        c"".as_ptr() as usize,
        EMPTY_PATH_DONT_SYNC,
        STATX_INO,
        found.as_mut_ptr() as usize,
        0,
    ];
    // SAFETY: the buffer has the size of a `struct statx`.
    unsafe { sys::syscall(nr::STATX, arguments).ok()? };
    let (minor, major) = (found[DEVICE / 8] >> 32, found[DEVICE / 8] & u64::from(u32::MAX));
    (major << 32 | minor == device).then_some(found[INODE / 8])
}
