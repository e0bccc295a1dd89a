//! The home of shared pages, as the fault handler and the evictor see it: pages are placed in the
//! supervisor's own mapping of their object, and given from there to the users that touch them.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::SeekFrom;

use super::super::page_table::PageNumber;
use super::super::sys::{self, Errno, SysResult};
use super::super::uffd::{Event, FaultKind, Uffd};
use super::super::{PAGE, address_of};
use super::keeper::Keeper;
use super::objects::{Objects, UserId};
use super::pin_look::PinLook;

/// The number by which the nudge is found among the users.
const NUDGE: u64 = u64::MAX;
/// Most users whose messages are read in one turn.
const MOST_READY: usize = 16;

/// A thread of a user that waits for a page.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    /// The user.
    pub user: UserId,
    /// The address that it touched, of a page.
    pub address: usize,
    /// The reason why it waits.
    pub kind: FaultKind,
}

/// A message of a user.
#[derive(Clone, Copy, Debug)]
pub enum Message {
    /// A thread waits.
    Fault {
        /// The thread.
        waiter: Waiter,
        /// Its id.
        thread: u32,
        /// The access was a write.
        write: bool,
    },
    /// Nothing to serve.
    Other,
}

/// The home of shared pages.
#[derive(Debug)]
pub struct SharedHome {
    objects: RwLock<Objects>,
    look: Mutex<PinLook>,
    users: OwnedFd,
    keeper: Keeper,
    nudge: OwnedFd,
    /// 1: the handler reads a message, which may be a fork, or makes a user of the child.
    is_reading: AtomicU32,
    /// Number of messages read.
    reads: AtomicU64,
}

impl SharedHome {
    /// Makes a home without objects.
    ///
    /// # Errors
    /// The kernel's, when there are no descriptors.
    pub fn new(look: PinLook) -> Result<SharedHome, rustix::io::Errno> {
        let users = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let nudge = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&users, &nudge, EventData::new_u64(NUDGE), EventFlags::IN)?;
        Ok(SharedHome {
            objects: RwLock::default(),
            look: Mutex::new(look),
            users,
            keeper: Keeper::start()?,
            nudge,
            is_reading: AtomicU32::new(0),
            reads: AtomicU64::new(0),
        })
    }

    /// The objects, to look at. A thread that has them must not ask for them again.
    pub fn objects(&self) -> RwLockReadGuard<'_, Objects> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The objects, to change them.
    pub fn change(&self) -> RwLockWriteGuard<'_, Objects> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The look, for the evictor.
    pub fn look(&self) -> MutexGuard<'_, PinLook> {
        self.look.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The descriptor that is readable while a user has a message.
    pub fn event_fd(&self) -> i32 {
        self.users.as_raw_fd()
    }

    /// Wakes the handler.
    pub fn nudge(&self) {
        let _ = rustix::io::write(&self.nudge, &1u64.to_ne_bytes());
    }

    /// Adds a user, whose messages the handler reads from now on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add_user(&self, uffd: OwnedFd) -> Result<UserId, rustix::io::Errno> {
        let mut objects = self.change();
        let number = objects.next_number();
        self.watch(number, &uffd)?;
        objects.add_user(number, Arc::new(uffd));
        Ok(number)
    }

    /// Removes a user.
    pub fn remove_user(&self, number: UserId) {
        if let Some(user) = self.change().remove_user(number) {
            let _ = epoll::delete(&self.users, &*user.uffd);
        }
    }

    fn watch(&self, number: UserId, uffd: &OwnedFd) -> Result<(), rustix::io::Errno> {
        // Else the kernel reports an error at each poll (`userfaultfd(2)`).
        rustix::io::ioctl_fionbio(uffd, true)?;
        self.keeper.hold(uffd.as_fd());
        epoll::add(&self.users, uffd, EventData::new_u64(number.into()), EventFlags::IN)
    }

    /// Returns the users that have messages, at most [`MOST_READY`].
    pub fn ready(&self) -> Vec<UserId> {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; MOST_READY];
        let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((ready, _)) = epoll::wait(&self.users, &mut events, Some(&zero)) else {
            return Vec::new();
        };
        let numbers = ready.iter().map(|event| event.data.u64());
        numbers.filter_map(|number| UserId::try_from(number).ok()).collect()
    }

    /// Reads one message of a user; a fork is handled at once.
    pub fn next_message(&self, user: UserId) -> Option<Message> {
        let uffd = self.objects().user(user)?.uffd.clone();
        self.is_reading.store(1, Ordering::SeqCst);
        let event = Uffd { fd: uffd.as_raw_fd() }.read_event();
        if let Some(Event::Fork { child }) = event {
            // SAFETY: the kernel has just made it.
            self.fork(user, unsafe { OwnedFd::from_raw_fd(child.fd) });
        }
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.is_reading.store(0, Ordering::SeqCst);
        Some(match event? {
            Event::Fault { address, write, thread, kind } => {
                Message::Fault { waiter: Waiter { user, address, kind }, thread, write }
            }
            Event::Fork { .. } | Event::Other => Message::Other,
        })
    }

    fn fork(&self, parent: UserId, child: OwnedFd) {
        let mut objects = self.change();
        let reserved = objects.user_mut(parent).and_then(|user| user.next_child.take());
        let number = reserved.unwrap_or_else(|| objects.next_number());
        if self.watch(number, &child).is_err() {
            sys::die("shared memory of a forked child cannot be served: no descriptors are left");
        }
        objects.fork(parent, number, Arc::new(child));
    }

    /// Waits until a message that is being read now is read, and its child, if it is a fork, is a
    /// user. The caller has no hold of the objects.
    pub fn wait_for_reads(&self) {
        let seen = self.reads.load(Ordering::SeqCst);
        while self.is_reading.load(Ordering::SeqCst) != 0
            && self.reads.load(Ordering::SeqCst) == seen
        {
            sys::yield_now();
        }
    }

    /// Returns the page that a waiter touched. `Err(EAGAIN)`: its user is changing the mapping;
    /// any other error: there is none.
    ///
    /// # Errors
    /// See above.
    pub fn page_of(&self, waiter: &Waiter) -> SysResult<PageNumber> {
        let objects = self.objects();
        let user = objects.user(waiter.user).ok_or(Errno::ESRCH)?;
        let lacking = if user.moving.is_some() { Errno::EAGAIN } else { Errno::ENOENT };
        user.key_at(waiter.address / PAGE).ok_or(lacking)
    }

    /// Maps pages that are in the page cache into the user of a waiter, and wakes it. The caller
    /// owns them; `page` is that of the waiter, and one of `pages`.
    ///
    /// # Errors
    /// `EAGAIN` while the user forks, `ESRCH` when it is gone, and others where it has unmapped the
    /// page.
    pub fn give(
        &self,
        waiter: &Waiter,
        page: PageNumber,
        pages: Range<PageNumber>,
    ) -> SysResult<()> {
        let objects = self.objects();
        let user = objects.user(waiter.user).ok_or(Errno::ESRCH)?;
        let here = waiter.address / PAGE;
        // Others of them may be mapped elsewhere, or nowhere.
        let is_beside =
            |key: &PageNumber| user.key_at((here + *key).wrapping_sub(page)) == Some(*key);
        let below = (pages.start..page).rev().take_while(is_beside).count();
        let above = (page + 1..pages.end).take_while(is_beside).count();
        let keys = page - below..page + 1 + above;
        let object = objects.object_of(page).ok_or(Errno::ENOENT)?;
        // Before they are mapped: the evictor protects them where they were given.
        object.give(keys.clone(), user);
        let uffd = user.uffd();
        let start = address_of(here - below);
        let all = uffd.map_cached(start, keys.len() * PAGE, true);
        if all.is_ok_and(|bytes| bytes / PAGE > below) {
            return Ok(());
        }
        match uffd.map_cached(waiter.address, PAGE, true) {
            Ok(_) => Ok(()),
            Err(Errno::EEXIST) => {
                uffd.wake(waiter.address, PAGE);
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    /// Ends the write protection of a waiter's page, and wakes it.
    ///
    /// # Errors
    /// Fails as [`SharedHome::give`] does.
    pub fn allow_write(&self, waiter: &Waiter) -> SysResult<()> {
        let objects = self.objects();
        let user = objects.user(waiter.user).ok_or(Errno::ESRCH)?;
        user.uffd().protect(waiter.address, PAGE, false)
    }

    /// True if a page is in the page cache.
    pub fn is_cached(&self, page: PageNumber) -> bool {
        let objects = self.objects();
        objects.object_of(page).is_some_and(|object| {
            let offset = object.offset(page);
            rustix::fs::seek(&object.memory, SeekFrom::Data(offset)) == Ok(offset)
        })
    }

    /// Makes a waiter's access fail, and all later ones of its user.
    ///
    /// # Errors
    /// Fails as [`SharedHome::give`] does.
    pub fn poison(&self, waiter: &Waiter) -> SysResult<()> {
        let objects = self.objects();
        let uffd = objects.user(waiter.user).ok_or(Errno::ESRCH)?.uffd();
        uffd.settle(waiter.address, uffd.poison(waiter.address, PAGE))
    }

    /// Wakes a waiter; it tries again.
    pub fn wake_waiter(&self, waiter: &Waiter) {
        if let Some(user) = self.objects().user(waiter.user) {
            user.uffd().wake(waiter.address, PAGE);
        }
    }

    /// Wakes the threads of all users that wait for a page.
    pub fn wake(&self, page: PageNumber) {
        let objects = self.objects();
        let Some(object) = objects.object_of(page) else { return };
        object.places(&objects, page).for_each(|(user, at)| user.uffd().wake(address_of(at), PAGE));
    }
}
