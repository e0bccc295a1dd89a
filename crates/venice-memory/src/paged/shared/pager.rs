//! The shared pager of a run: its threads, and its service of the requests of the run's processes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{Resource, getrlimit};

use super::super::end;
use super::super::evictor::{self, Evictor};
use super::super::handler::{self, Handler};
use super::super::page_table::PageNumber;
use super::super::pager::{Pager, PagerError, PagerSetup, Serves};
use super::super::run_block::{Owner, Process, RunBlockMap};
use super::super::slab_window::SlabSource;
use super::super::sys::{self, nr};
use super::super::{PAGE, address_of, slots, uffd};
use super::home::SharedHome;
use super::messages::{Request, UserPages};
use super::name::shared_memory_name;
use super::objects::{Mapping, UserId};
use super::pin_look::{LookError, PinLook};

/// Time that a dead user stays. The kernel reports the end of a process a little later than that of
/// its address space.
const DEAD_STAY: Duration = Duration::from_millis(200);

/// An error of the start of a shared pager.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// Pins cannot be seen, so no page could leave.
    #[error(transparent)]
    Look(#[from] LookError),
    /// The run has no entry left.
    #[error("this run has as many paging processes as it can have")]
    NoEntry,
    /// The kernel refused something.
    #[error("the kernel refused it ({0})")]
    Kernel(#[from] Errno),
    /// The pager could not start.
    #[error(transparent)]
    Pager(#[from] PagerError),
    /// A thread could not start.
    #[error("a thread could not start")]
    Thread(#[from] std::io::Error),
}

/// The pager of the memory that the processes of a run share.
pub struct SharedPager {
    /// Leaked at the start: its threads may outlive every other reference.
    pub(super) pager: &'static Pager,
    pub(super) home: Arc<SharedHome>,
    threads: Vec<JoinHandle<()>>,
    /// Users that the last tidying found dead, and since when.
    dead: Mutex<BTreeMap<UserId, Instant>>,
}

impl std::fmt::Debug for SharedPager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedPager").field("home", &self.home).finish_non_exhaustive()
    }
}

impl SharedPager {
    /// Starts the shared pager of a run, in its supervisor. `slabs` returns the memory of replicas.
    ///
    /// # Errors
    /// [`SharedError`]; nothing has changed then.
    pub fn start(block: Arc<RunBlockMap>, slabs: SlabSource) -> Result<SharedPager, SharedError> {
        let home = Arc::new(SharedHome::new(PinLook::new()?)?);
        let process = block.enter_process(Process::SHARED).ok_or(SharedError::NoEntry)?;
        let started = SharedPager::start_at(process, block.clone(), slabs, home);
        if started.is_err() {
            slots::leave(&block, process, Process::SHARED);
        }
        started
    }

    fn start_at(
        process: usize,
        block: Arc<RunBlockMap>,
        slabs: SlabSource,
        home: Arc<SharedHome>,
    ) -> Result<SharedPager, SharedError> {
        let serves = Serves::Shared { slabs, home: home.clone() };
        let setup = PagerSetup { block, process, serves, lowest_fd: 3 };
        end::remember_standard_error();
        let pager: &'static Pager = Box::leak(Box::new(Pager::new(setup)?));
        let far = || pager.far().map_err(PagerError::Far);
        let handler = Handler::new(pager, far()?);
        let writing = far()?.writing(&pager.block, Owner::Process(process));
        let evictor = Evictor::new(pager, writing.map_err(PagerError::Far)?);
        let mut shared = SharedPager { pager, home, threads: Vec::new(), dead: Mutex::default() };
        shared.spawn("venice-handler", move || handler::run_until_ended(handler))?;
        shared.spawn("venice-evictor", move || evictor::run_until_ended(evictor))?;
        Ok(shared)
    }

    fn spawn(
        &mut self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), std::io::Error> {
        let undisturbed = move || {
            sys::block_signals();
            body();
        };
        self.threads.push(std::thread::Builder::new().name(name.into()).spawn(undisturbed)?);
        Ok(())
    }

    /// True if a living process uses it.
    pub fn has_users(&self) -> bool {
        self.home.objects().users().any(|(_, user)| user.uffd().serves_a_process())
    }

    /// Bytes resident now, those on their way out among them.
    pub fn resident_bytes(&self) -> u64 {
        self.pager.resident().load(Ordering::Relaxed) * PAGE as u64
    }

    /// Serves a request. Returns a number, 0 if it is refused, and a descriptor.
    pub fn serve(&self, request: Request, with: Option<OwnedFd>) -> (u64, Option<OwnedFd>) {
        let done = |is_done: bool| (u64::from(is_done), None);
        match request {
            Request::User => (with.and_then(|uffd| self.add_user(uffd)).unwrap_or(0), None),
            Request::Object { user, pages } => match self.make_object(user, pages) {
                Ok((first, memory)) => (first as u64, Some(memory)),
                Err(_) => (0, None),
            },
            Request::GiveUp { first } => {
                self.home.change().give_up_making(first);
                done(true)
            }
            Request::Map { at, first } => done(self.map(at, first)),
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

    fn map(&self, at: UserPages, first: PageNumber) -> bool {
        let _structure = self.pager.hold_structure();
        let mut objects = self.home.change();
        if objects.object_of(first).is_none() || objects.user(at.user).is_none() {
            return false;
        }
        let UserPages { user, start, pages } = at;
        objects.map(user, Mapping { start, first, pages, is_dont_fork: false });
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
            let (start, len_bytes) = (address_of(part.first), part.pages * PAGE);
            // Here it removes the pages from the object, and so from all its mappings.
            let removed = structure.discard(start, len_bytes, sys::MADV_REMOVE);
            assert_eq!(removed, Ok(()), "an object of the shared pager can be punched");
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

    /// Removes users whose processes have ended or run another program now, and objects that
    /// nothing maps. To be called now and then. A dead user stays for a moment: the caller may yet
    /// learn of a core dump.
    pub fn tidy(&self) {
        let now = Instant::now();
        let mut last = self.dead.lock().unwrap_or_else(PoisonError::into_inner);
        let since = |user| (user, last.get(&user).copied().unwrap_or(now));
        *last = self.dead_users().into_iter().map(since).collect();
        let is_gone = |(_, since): &(&UserId, &Instant)| now - **since >= DEAD_STAY;
        let gone = last.iter().filter(is_gone).map(|(user, _)| *user).collect();
        drop(last);
        self.remove_users(gone);
    }

    fn dead_users(&self) -> Vec<UserId> {
        let is_dead = |user: &super::objects::User| !user.uffd().serves_a_process();
        let objects = self.home.objects();
        objects.users().filter(|(_, it)| is_dead(it)).map(|(number, _)| number).collect()
    }

    /// Removes users, and objects that nothing maps.
    fn remove_users(&self, gone: Vec<UserId>) {
        let is_idle = gone.is_empty() && self.home.objects().unused().is_empty();
        if is_idle {
            return;
        }
        let mut structure = self.pager.hold_structure();
        gone.into_iter().for_each(|user| self.home.remove_user(user));
        let unused = self.home.objects().unused();
        for pages in unused {
            let (start, len_bytes) = (address_of(pages.start), pages.len() * PAGE);
            let gone = structure.replace(start, len_bytes, || {
                // SAFETY: the object's mapping here, which only pagers' threads use.
                unsafe { sys::syscall(nr::MUNMAP, [start, len_bytes + PAGE, 0, 0, 0, 0]) }
            });
            assert!(gone.is_ok(), "an object is mapped");
            drop(self.home.change().remove_object(pages.start));
        }
    }

    /// Ends the pager, once it has no users.
    pub fn end(mut self) {
        let pager = self.pager;
        self.remove_users(self.dead_users());
        pager.is_ending.store(true, Ordering::Release);
        pager.evictor_bell.store(1, Ordering::Release);
        sys::futex_wake(&pager.evictor_bell, 1, false);
        self.home.nudge();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        slots::leave(&pager.block, pager.process.load(Ordering::Relaxed), Process::SHARED);
        // SAFETY: leaked by `start_at`; its threads have ended.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(pager).cast_mut()) });
    }
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
