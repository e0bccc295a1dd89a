//! The service of the requests of a run's processes by the shared pager.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{Resource, getrlimit};

use super::super::page_table::{PageNumber, State};
use super::super::pager::{Pager, Structure};
use super::super::sys;
use super::super::{PAGE, address_of, uffd};
use super::home::SharedHome;
use super::messages::{Request, UserPages};
use super::name::shared_memory_name;
use super::objects::{Mapping, UserId};

/// The shared pager, as its requests reach it.
#[derive(Clone)]
pub struct Service {
    /// Leaked at the start: its threads may outlive every other reference.
    pub pager: &'static Pager,
    /// The home of its pages.
    pub home: Arc<SharedHome>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("home", &self.home).finish_non_exhaustive()
    }
}

impl Service {
    /// Serves a request that is not about files. Returns a number, 0 if it is refused, and a
    /// descriptor.
    pub fn serve(&self, request: Request, with: Option<OwnedFd>) -> (u64, Option<OwnedFd>) {
        let done = |is_done: bool| (u64::from(is_done), None);
        match request {
            Request::User => (with.and_then(|uffd| self.add_user(uffd)).unwrap_or(0), None),
            Request::Object { user, pages } => match self.make_object(user, pages) {
                Ok((first, memory)) => (first as u64, Some(memory)),
                Err(_) => (0, None),
            },
            Request::GiveUp { user, first } => {
                self.home.change().end_making(first, user);
                done(true)
            }
            Request::Map { at, first } => done(self.map(at, first, false)),
            Request::MapPrivate { at, first } => done(self.map(at, first, true)),
            Request::Unmap(at) => {
                let _structure = self.pager.hold_structure();
                self.home.change().unmap(at.user, &pages_in(&at));
                done(true)
            }
            Request::BeginMove(at) => (self.begin_move(&at).unwrap_or(0) as u64, None),
            Request::Settle { user } => {
                if let Some(user) = self.home.change().user_mut(user) {
                    user.moving = None;
                }
                done(true)
            }
            Request::Remove(at) => {
                self.remove(&at);
                done(true)
            }
            Request::DontFork(at) => done(self.set_dont_fork(&at, true)),
            Request::DoFork(at) => done(self.set_dont_fork(&at, false)),
            Request::Lock(at) => done(self.lock(&at, true)),
            Request::Unlock(at) => done(self.lock(&at, false)),
            Request::Keep(at) => {
                // No page of it is on its way out.
                let _structure = self.pager.hold_structure();
                self.home.change().keep(at.user, &pages_in(&at));
                done(true)
            }
            Request::Fork { user } => (self.expect_child(user).unwrap_or(0).into(), None),
            Request::Child { user } => match self.child(user) {
                Some(uffd) => (1, Some(uffd)),
                None => (0, None),
            },
            Request::Files | Request::File { .. } | Request::Release { .. } => (0, None),
        }
    }

    fn add_user(&self, uffd: OwnedFd) -> Option<u64> {
        let is_one = uffd::is_one(uffd.as_fd());
        is_one.then(|| self.home.add_user(uffd).ok().map(u64::from)).flatten()
    }

    /// Makes an object, and maps it here. Returns the number of its first page, and a descriptor
    /// of it.
    fn make_object(&self, user: UserId, pages: usize) -> Result<(PageNumber, OwnedFd), Errno> {
        let len_bytes = pages * PAGE;
        if getrlimit(Resource::Fsize).current.is_some_and(|most| (len_bytes as u64) > most) {
            return Err(Errno::FBIG);
        }
        let reserved = Reserved::new(len_bytes)?;
        let memory = memfd_create(shared_memory_name(reserved.address), MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, len_bytes as u64)?;
        let theirs = rustix::io::fcntl_dupfd_cloexec(&memory, 3)?;
        let address = reserved.map(&memory)?;
        let mut structure = self.pager.hold_structure();
        structure.adopt(address, len_bytes);
        if !structure.touches(address, len_bytes) {
            // SAFETY: mapped above, and known to nothing else.
            unsafe { sys::unmap(address as *mut _, len_bytes + PAGE) };
            return Err(Errno::NOMEM);
        }
        let first = address / PAGE;
        self.home.change().add_object(memory, first..first + pages, user);
        Ok((first, theirs))
    }

    fn map(&self, at: UserPages, first: PageNumber, is_private: bool) -> bool {
        let _structure = self.pager.hold_structure();
        let mut objects = self.home.change();
        if objects.object_of(first).is_none() || objects.user(at.user).is_none() {
            return false;
        }
        let UserPages { user, start, pages } = at;
        objects.map(user, Mapping { start, first, pages, is_dont_fork: false, is_private });
        true
    }

    fn begin_move(&self, at: &UserPages) -> Option<PageNumber> {
        // No page of it is on its way out.
        let _structure = self.pager.hold_structure();
        let mut objects = self.home.change();
        let user = objects.user_mut(at.user)?;
        let mapping = user.mapping_of(&pages_in(at))?;
        user.moving = Some(mapping.keys());
        Some(mapping.first + (at.start - mapping.start))
    }

    fn remove(&self, at: &UserPages) {
        let mut structure = self.pager.hold_structure();
        let parts = self.home.objects().user(at.user).map(|user| user.parts(&pages_in(at)));
        for part in parts.unwrap_or_default() {
            punch(&mut structure, &part.keys());
        }
    }

    fn set_dont_fork(&self, at: &UserPages, is_dont_fork: bool) -> bool {
        let _structure = self.pager.hold_structure();
        self.home.change().set_dont_fork(at.user, &pages_in(at), is_dont_fork);
        true
    }

    fn lock(&self, at: &UserPages, is_locked: bool) -> bool {
        // No page of it is on its way out.
        let _structure = self.pager.hold_structure();
        if let Some(user) = self.home.change().user_mut(at.user) {
            user.lock(&pages_in(at), is_locked);
        }
        true
    }

    fn expect_child(&self, user: UserId) -> Option<UserId> {
        let mut objects = self.home.change();
        // The kernel reports a fork only where the child inherits memory of the userfaultfd.
        if !objects.user(user)?.has_heritage() {
            return None;
        }
        let number = objects.next_number();
        objects.user_mut(user)?.next_child = Some(number);
        Some(number)
    }

    fn child(&self, user: UserId) -> Option<OwnedFd> {
        // The child runs as soon as the fork is read.
        self.home.wait_for_reads();
        let objects = self.home.objects();
        rustix::io::fcntl_dupfd_cloexec(&*objects.user(user)?.uffd, 3).ok()
    }

    /// Makes the object of a file that can grow to `pages`, and is empty. Returns the number of its
    /// first page.
    ///
    /// # Errors
    /// The kernel's, when there is no address space for it.
    pub fn make_file(
        &self,
        user: UserId,
        pages: usize,
    ) -> Result<(PageNumber, Arc<OwnedFd>), Errno> {
        let reserved = Reserved::new(pages * PAGE)?;
        let name = shared_memory_name(reserved.address);
        let memory = Arc::new(memfd_create(name, MemfdFlags::CLOEXEC)?);
        let first = reserved.map(&memory)? / PAGE;
        let _structure = self.pager.hold_structure();
        self.home.change().add_object(memory.clone(), first..first + pages, user);
        Ok((first, memory))
    }

    /// Sets the length of a file's object, which has `managed` pages that were ever within its
    /// length. Returns how many these are now.
    ///
    /// # Errors
    /// The kernel's.
    pub fn resize(
        &self,
        first: PageNumber,
        memory: &OwnedFd,
        managed: usize,
        len_bytes: u64,
    ) -> Result<usize, Errno> {
        let pages = (len_bytes as usize).div_ceil(PAGE);
        let mut structure = self.pager.hold_structure();
        if pages > managed {
            let (start, more_bytes) = (address_of(first + managed), (pages - managed) * PAGE);
            structure.adopt(start, more_bytes);
            if !structure.touches(start, more_bytes) {
                return Err(Errno::NOMEM);
            }
        }
        let cut = address_of(first + pages.min(managed));
        let cut_bytes = managed.saturating_sub(pages) * PAGE;
        structure.cut(cut, cut_bytes, || ftruncate(memory, len_bytes).map_err(own)).map_err(raw)?;
        Ok(managed.max(pages))
    }

    /// Keeps pages of an object from leaving. Returns those that have left before.
    pub fn keep(&self, keys: Range<PageNumber>) -> Vec<PageNumber> {
        // No page is on its way out.
        let _structure = self.pager.hold_structure();
        self.home.change().keep_pages(keys.clone());
        let mut gone = Vec::new();
        self.pager.table.for_each_live(keys, |page, entry| {
            if !matches!(entry.state(), State::Zero | State::Resident) {
                gone.push(page);
            }
        });
        gone
    }

    /// Drops the contents of whole pages of an object.
    pub fn punch(&self, keys: &Range<PageNumber>) {
        punch(&mut self.pager.hold_structure(), keys);
    }
}

/// Removes pages from an object, and so from all its mappings.
fn punch(structure: &mut Structure, keys: &Range<PageNumber>) {
    let (start, len_bytes) = (address_of(keys.start), keys.len() * PAGE);
    let removed = structure.discard(start, len_bytes, sys::MADV_REMOVE);
    assert_eq!(removed, Ok(()), "an object of the shared pager can be punched");
}

fn pages_in(at: &UserPages) -> Range<PageNumber> {
    at.start..at.start + at.pages
}

/// Address space for an object, with a page behind it that stays empty: sweep chunks span no two
/// objects. Unmapped when dropped.
struct Reserved {
    address: usize,
    len_bytes: usize,
}

impl Reserved {
    fn new(len_bytes: usize) -> Result<Reserved, Errno> {
        let address = sys::map_aligned(len_bytes + PAGE, PAGE).map_err(raw)?;
        Ok(Reserved { address, len_bytes })
    }

    /// Maps an object there, and returns its address.
    fn map(self, memory: &OwnedFd) -> Result<usize, Errno> {
        let &Reserved { address, len_bytes } = &self;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: within the reserved addresses; advice about them.
        unsafe {
            mmap(address as *mut _, len_bytes, protection, flags, memory, 0)?;
            sys::madvise(address, len_bytes, sys::MADV_DONTFORK).map_err(raw)?;
        }
        sys::leave_out_of_dumps(address, len_bytes);
        std::mem::forget(self);
        Ok(address)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and known to nothing else.
        unsafe { sys::unmap(self.address as *mut _, self.len_bytes + PAGE) };
    }
}

fn raw(errno: sys::Errno) -> Errno {
    Errno::from_raw_os_error(errno.0)
}

fn own(errno: Errno) -> sys::Errno {
    sys::Errno(errno.raw_os_error())
}
