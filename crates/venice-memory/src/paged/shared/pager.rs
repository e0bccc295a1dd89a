//! The shared pager of a run: its threads, and its service of the requests of the run's processes.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::super::end;
use super::super::evictor::{self, Evictor};
use super::super::handler::{self, Handler};
use super::super::pager::{Pager, PagerError, PagerSetup, Serves};
use super::super::run_block::{Owner, Process, RunBlockMap};
use super::super::slab_window::SlabSource;
use super::super::sys::{self, nr};
use super::super::{PAGE, address_of, slots};
use super::files::{FilesError, SharedFiles};
use super::home::SharedHome;
use super::messages::Request;
use super::objects::UserId;
use super::pin_look::{LookError, PinLook};
use super::service::Service;

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
    service: Service,
    threads: Vec<JoinHandle<()>>,
    /// The run's shared files, once a process has asked for them.
    files: Mutex<Option<Result<SharedFiles, FilesError>>>,
    /// Users that the last tidying found dead, and since when.
    dead: Mutex<BTreeMap<UserId, Instant>>,
}

impl std::fmt::Debug for SharedPager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedPager").field("service", &self.service).finish_non_exhaustive()
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
        let mut shared = SharedPager {
            service: Service { pager, home },
            threads: Vec::new(),
            files: Mutex::default(),
            dead: Mutex::default(),
        };
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

    /// Its service.
    pub(super) fn service(&self) -> &Service {
        &self.service
    }

    /// True if a living process uses it.
    pub fn has_users(&self) -> bool {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let own = files.iter().flatten().map(SharedFiles::user).next();
        let objects = self.service.home.objects();
        let mut users = objects.users().filter(|(user, _)| Some(*user) != own);
        users.any(|(_, user)| user.uffd().serves_a_process())
    }

    /// Bytes resident now, those on their way out among them.
    pub fn resident_bytes(&self) -> u64 {
        self.service.pager.resident().load(Ordering::Relaxed) * PAGE as u64
    }

    /// Serves a request. Returns a number, 0 if it is refused, and a descriptor.
    pub fn serve(&self, request: Request, with: Option<OwnedFd>) -> (u64, Option<OwnedFd>) {
        match request {
            Request::Files => self.with_files(SharedFiles::mount),
            Request::File { user, inode } => self.with_files(|files| files.file(user, inode)),
            Request::Release { inode, is_writable } => {
                self.with_files(|files| files.release(inode, is_writable))
            }
            _ => self.service.serve(request, with),
        }
    }

    /// Calls `with` with the run's shared files, which are mounted at the first call. `(0, None)`:
    /// they cannot be.
    fn with_files(
        &self,
        with: impl FnOnce(&SharedFiles) -> Option<(u64, OwnedFd)>,
    ) -> (u64, Option<OwnedFd>) {
        let mut state = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let files = state.get_or_insert_with(|| {
            let files = SharedFiles::start(self.service.clone());
            if let Ok(files) = &files {
                let device = files.device_number();
                self.service.pager.block.shared_files_device.store(device, Ordering::Release);
            }
            files
        });
        let replied = files.as_ref().ok().and_then(with);
        replied.map_or((0, None), |(number, fd)| (number, Some(fd)))
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
        let objects = self.service.home.objects();
        objects.users().filter(|(_, it)| is_dead(it)).map(|(number, _)| number).collect()
    }

    /// Removes users, and objects that nothing maps.
    fn remove_users(&self, gone: Vec<UserId>) {
        let Service { pager, home } = &self.service;
        let is_idle = gone.is_empty() && home.objects().unused().is_empty();
        if is_idle {
            return;
        }
        let mut structure = pager.hold_structure();
        gone.into_iter().for_each(|user| home.remove_user(user));
        let unused = home.objects().unused();
        for pages in unused {
            let (start, len_bytes) = (address_of(pages.start), pages.len() * PAGE);
            let gone = structure.replace(start, len_bytes, || {
                // SAFETY: the object's mapping here, which only pagers' threads use.
                unsafe { sys::syscall(nr::MUNMAP, [start, len_bytes + PAGE, 0, 0, 0, 0]) }
            });
            assert!(gone.is_ok(), "an object is mapped");
            drop(self.service.home.change().remove_object(pages.start));
        }
    }

    /// Ends the pager, once it has no users.
    pub fn end(mut self) {
        let pager = self.service.pager;
        // It has a user of its own.
        drop(self.files.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.remove_users(self.dead_users());
        pager.is_ending.store(true, Ordering::Release);
        pager.evictor_bell.store(1, Ordering::Release);
        sys::futex_wake(&pager.evictor_bell, 1, false);
        self.service.home.nudge();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        slots::leave(&pager.block, pager.process.load(Ordering::Relaxed), Process::SHARED);
        // SAFETY: leaked by `start_at`; its threads have ended.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(pager).cast_mut()) });
    }
}
