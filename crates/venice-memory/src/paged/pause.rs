//! A pause of the pager's threads, for system calls that the kernel grants to a process of one
//! thread only: `unshare(2)` and `setns(2)` with a user namespace.
//!
//! The evictor and the waker end first, so that no page leaves any more. Then the calling thread
//! touches a page of its own, and the handler ends after it has placed that page. After the call
//! the threads start again with the state that they left. While the handler is absent nothing
//! serves a fault, so the call runs in code and on a stack that are present.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::PAGE;
use super::evictor;
use super::handler::{self, Handler};
use super::pager::Pager;
use super::spin::Spin;
use super::sys::{self, Errno, SysResult};
use super::thread::{self, Thread};

/// Stack that the calling thread may use while the handler is absent.
const STACK_BYTES: usize = 8192;

/// The pager's threads, and their pause.
#[derive(Debug, Default)]
pub struct Pause {
    threads: Spin<Threads>,
    /// True while the evictor and the waker are to end.
    is_asked: AtomicBool,
    /// Address of the page after which the handler ends; 0: none.
    last_page: AtomicUsize,
    /// Held by the thread that pauses.
    pausing: Spin<()>,
}

/// The threads of a pager. Each state lives as long as the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threads {
    /// The handler, and the address of its [`Handler`].
    pub handler: Option<(Thread, usize)>,
    /// The evictor, and the address of its state.
    pub evictor: Option<(Thread, usize)>,
    /// The waker, once it has started.
    pub waker: Option<Thread>,
}

impl Pause {
    /// Sets the handler and the evictor, which have started.
    pub fn set_threads(&self, handler: (Thread, usize), evictor: (Thread, usize)) {
        let mut threads = self.threads.hold();
        (threads.handler, threads.evictor) = (Some(handler), Some(evictor));
    }

    /// Sets the waker, which has started.
    pub fn set_waker(&self, waker: Thread) {
        self.threads.hold().waker = Some(waker);
    }

    /// True if the evictor and the waker are to end.
    pub fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    /// True if the handler is to place zeros at `address` and end.
    pub fn ends_handler(&self, address: usize) -> bool {
        address != 0 && self.last_page.load(Ordering::Acquire) == address
    }

    /// Forgets the threads, in the child of a fork.
    ///
    /// # Safety
    /// No other thread may be running.
    pub unsafe fn reset(&self) {
        // SAFETY: forwarded to the caller.
        unsafe {
            self.threads.forget_holder(Threads::default());
            self.pausing.forget_holder(());
        }
        self.is_asked.store(false, Ordering::Relaxed);
        self.last_page.store(0, Ordering::Relaxed);
    }
}

impl Pager {
    /// Does `call` while this process has no thread of the pager. `call` must touch nothing that
    /// the pager serves.
    ///
    /// # Errors
    /// `EINVAL` where the threads could not start again: the children of this process will be in
    /// another PID namespace. `ENOMEM`. Nothing has been called then.
    pub fn without_threads<T>(&'static self, call: impl FnOnce() -> T) -> SysResult<T> {
        let _pausing = self.pause.pausing.hold();
        thread::spawn(end_at_once, 0)?.join();
        let page = sys::map_private(PAGE)? as usize;
        // A freshly mapped page may be locked by `mlockall`, and present then.
        sys::unlock(page, PAGE);
        // SAFETY: advice about fresh memory.
        let prepared = unsafe { sys::madvise(page, PAGE, sys::MADV_DONTFORK) };
        let prepared = prepared.and_then(|_| self.uffd().register(page, PAGE));
        let outcome = prepared.map(|()| {
            self.end_evictor_and_waker();
            self.end_handler(page);
            let outcome = call();
            self.start_again();
            outcome
        });
        // SAFETY: mapped above, and used by nothing else.
        unsafe { sys::unmap(page as *mut _, PAGE) };
        outcome
    }

    fn end_evictor_and_waker(&self) {
        self.pause.is_asked.store(true, Ordering::Release);
        self.evictor_bell.store(1, Ordering::Release);
        sys::futex_wake(&self.evictor_bell, 1, false);
        self.waker.ring();
        let threads = *self.pause.threads.hold();
        threads.evictor.into_iter().for_each(|(evictor, _)| evictor.join());
        threads.waker.into_iter().for_each(Thread::join);
    }

    fn end_handler(&self, page: usize) {
        // Nothing leaves any more: what is touched now is present until the end of the call.
        let mut stack = [0u8; STACK_BYTES];
        for byte in stack.iter_mut().step_by(PAGE / 4) {
            // SAFETY: a byte of the array.
            unsafe { std::ptr::from_mut(byte).write_volatile(1) };
        }
        let handler = self.pause.threads.hold().handler;
        self.pause.last_page.store(page, Ordering::Release);
        // SAFETY: mapped by the caller; the handler places the page.
        unsafe { (page as *const u8).read_volatile() };
        handler.into_iter().for_each(|(handler, _)| handler.join());
        self.pause.last_page.store(0, Ordering::Release);
    }

    /// Starts the threads again, or ends the process: its far memory cannot be reached without.
    fn start_again(&self) {
        let states = *self.pause.threads.hold();
        self.pause.is_asked.store(false, Ordering::Release);
        self.waker.stopped();
        let again = |body: extern "C" fn(usize) -> !, before: Option<(Thread, usize)>| {
            let (_, state) = before.expect("the pager has started");
            let started = thread::spawn(body, state);
            let started = started.unwrap_or_else(|Errno(errno)| {
                sys::die(&format!("starting the pager's threads again failed: errno {errno}"))
            });
            Some((started, state))
        };
        // Without memory there is no waker, which only costs time.
        let _ = self.waker.map_memory();
        let mut threads = self.pause.threads.hold();
        threads.waker = None;
        threads.handler = again(handler::run, states.handler);
        threads.evictor = again(evictor::run, states.evictor);
    }
}

extern "C" fn end_at_once(_: usize) -> ! {
    thread::exit()
}

impl Handler {
    /// Ends the thread of this handler where a pause asks for it.
    pub(super) fn end_if_paused(&mut self) {
        if std::mem::take(&mut self.is_paused) {
            self.begin_anew();
            thread::exit();
        }
    }
}
