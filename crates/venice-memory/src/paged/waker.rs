//! The waker: a thread that wakes the thread of a fault while the pager's other threads sleep.
//!
//! A thread that wakes up goes to an idle processor if there is one. The handler runs where the
//! faulting thread went to sleep, so the thread would wake on another processor, fault there, and
//! wake the handler across processors, each time. A processor counts as idle as well if all that it
//! runs is `SCHED_IDLE` (`sched(7)`; `select_idle_sibling` in Linux' `kernel/sched/fair.c`), which
//! needs privilege only to return from. So the waker is a thread of that class: it runs on the
//! handler's processor as soon as the handler has gone to sleep, and the thread that it wakes stays
//! there (docs/decisions/0068).
//!
//! If anything else wants that processor the waker comes late, by seconds even. Then the evictor
//! [completes the wake-up](Waker::take_overdue), [`Waker::times_late`] counts it, and the handler does
//! without the waker for a while.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::page_table::PageNumber;
use super::pager::Pager;
use super::sys::{self, SysResult};
use super::thread;

/// Time after which a wake-up counts as late, in nanoseconds: something else ran there.
const LATE_NS: u64 = 500_000;
/// The same where the evictor has run meanwhile, which it would have done anyway.
const LATE_BEHIND_EVICTOR_NS: u64 = 5_000_000;
/// Flag in [`Waker::page`]; page numbers do not reach so far.
const TAKEN: usize = 1 << (usize::BITS - 1);

/// A wake-up to be done: a thread waits for a page that is resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingWake {
    /// The page.
    pub page: PageNumber,
    /// Time at which its fault was read, if its duration is to be recorded; else 0.
    pub recorded_from_ns: u64,
}

/// The moment of a request to the waker.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The time, in nanoseconds.
    pub now_ns: u64,
    /// The evictor's progress counter at that time.
    pub evictions: u32,
}

/// The state that the handler and its waker share. At most one wake-up is pending.
#[derive(Debug, Default)]
pub struct Waker {
    /// The page, with [`TAKEN`] set if the waker is about to wake its thread, or has; 0: nothing is
    /// pending.
    page: AtomicUsize,
    recorded_from_ns: AtomicU64,
    asked_ns: AtomicU64,
    asked_evictions: AtomicU32,
    bell: AtomicU32,
    late: AtomicU32,
    /// True if the handler leaves wake-ups to the waker.
    is_in_use: AtomicBool,
    /// Thread id; 0: it has not started.
    thread: AtomicU32,
    /// Memory that the thread is to start in; 0: none.
    memory: AtomicUsize,
}

/// The thread's body; `pager` is the address of a [`Pager`] that lives as long as the process.
pub extern "C" fn run(pager: usize) -> ! {
    // SAFETY: the caller's promise.
    let pager = unsafe { &*(pager as *const Pager) };
    pager.image.add_thread();
    pager.waker.begin(&pager.followed_cpu);
    loop {
        // In this order: a pause is set before the bell rings.
        let bell_value = pager.waker.bell_value();
        if pager.pause.is_asked() {
            thread::exit();
        }
        turn(pager, bell_value);
    }
}

/// The thread's body where a pager ends before its process does.
pub fn run_until_ended(pager: &Pager) {
    pager.waker.begin(&pager.followed_cpu);
    loop {
        // In this order: the flag is set before the bell rings.
        let bell_value = pager.waker.bell_value();
        if pager.is_ending() {
            return;
        }
        turn(pager, bell_value);
    }
}

fn turn(pager: &Pager, bell_value: u32) {
    let waker = &pager.waker;
    if !waker.has_pending() {
        return sys::futex_wait(&waker.bell, bell_value, None, false);
    }
    // A thread that has just gone to sleep may stay on the processor's run queue until the
    // scheduler has passed over it once (Linux 6.12: "delayed dequeue"), and counts as running.
    // Nothing is taken yet: it may be long until the processor comes back.
    sys::yield_now();
    if let Some(pending) = waker.take(pager.moment()) {
        pager.complete_wake(pending);
    }
}

impl Waker {
    /// True if the thread has started.
    pub fn has_started(&self) -> bool {
        self.thread.load(Ordering::Acquire) != 0
    }

    /// Posts the next wake-up. The one before must have been [taken back](Waker::take_back), or
    /// [finished](Waker::take_unfinished), as it is when the same thread waits again.
    pub fn post(&self, pending: PendingWake, asked: Moment) {
        self.recorded_from_ns.store(pending.recorded_from_ns, Ordering::Relaxed);
        self.asked_ns.store(asked.now_ns, Ordering::Relaxed);
        self.asked_evictions.store(asked.evictions, Ordering::Relaxed);
        self.page.store(pending.page, Ordering::Release);
        self.ring();
    }

    /// True if a wake-up is pending that the waker has not taken.
    pub fn has_pending(&self) -> bool {
        is_pending(self.page.load(Ordering::Relaxed))
    }

    /// Takes back a pending wake-up that the waker has not taken. The caller completes it.
    pub fn take_back(&self, now: Moment) -> Option<PendingWake> {
        self.settle(now, |_| 0)
    }

    /// Takes a wake-up that the waker has taken and may not have completed, having lost its
    /// processor. The caller completes it, perhaps for the second time.
    pub fn take_unfinished(&self) -> Option<PendingWake> {
        let page = self.page.load(Ordering::Acquire);
        if page & TAKEN == 0 {
            return None;
        }
        self.page.compare_exchange(page, 0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(PendingWake { page: page & !TAKEN, recorded_from_ns: 0 })
    }

    /// Takes a late wake-up, taken by the waker or not.
    pub fn take_overdue(&self, now: Moment) -> Option<PendingWake> {
        if self.page.load(Ordering::Acquire) == 0 || !self.is_late(now) {
            return None;
        }
        self.take_back(now).or_else(|| self.take_unfinished())
    }

    /// Number of late wake-ups so far. It wraps.
    pub fn times_late(&self) -> u32 {
        self.late.load(Ordering::Relaxed)
    }

    /// Sets if the handler leaves wake-ups to the waker.
    pub fn set_in_use(&self, is_in_use: bool) {
        self.is_in_use.store(is_in_use, Ordering::Relaxed);
    }

    /// True if the handler leaves wake-ups to the waker. Then no other thread of the pager may run
    /// for long on its processor.
    pub fn is_in_use(&self) -> bool {
        self.is_in_use.load(Ordering::Relaxed)
    }

    /// Moves the waker to processor `cpu`.
    pub fn move_to(&self, cpu: usize) {
        let thread = self.thread.load(Ordering::SeqCst);
        if thread != 0 {
            sys::pin_thread_to_cpu(thread, cpu);
        }
    }

    /// Wakes the waker's thread to check for work or for the pager's end.
    pub fn ring(&self) {
        self.bell.fetch_add(1, Ordering::Release);
        sys::futex_wake(&self.bell, 1, false);
    }

    /// Records that the thread has ended.
    pub fn stopped(&self) {
        self.thread.store(0, Ordering::Release);
    }

    /// Maps the memory of the thread, which starts while the program runs. A child of a fork has
    /// that of its parent, unless the parent's thread uses it.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn map_memory(&self) -> SysResult<()> {
        if self.memory.load(Ordering::Relaxed) == 0 {
            self.memory.store(thread::map_memory()?, Ordering::Release);
        }
        Ok(())
    }

    /// Takes the memory of the thread, to start it; `None`: it was taken.
    pub fn take_memory(&self) -> Option<usize> {
        Some(self.memory.swap(0, Ordering::AcqRel)).filter(|memory| *memory != 0)
    }

    /// Resets the state in the child of a fork, which has no such thread, and no waiting threads.
    pub fn reset(&self) {
        self.page.store(0, Ordering::Relaxed);
        self.set_in_use(false);
        self.thread.store(0, Ordering::Release);
    }

    fn bell_value(&self) -> u32 {
        self.bell.load(Ordering::Acquire)
    }

    fn begin(&self, followed_cpu: &AtomicUsize) {
        if sys::run_when_idle().is_ok() {
            // Of this store and a moving handler's, the later one sees the other's value.
            self.thread.store(sys::gettid(), Ordering::SeqCst);
            sys::pin_to_cpu(followed_cpu.load(Ordering::SeqCst));
        }
    }

    /// Takes the pending wake-up for the waker, which may lose its processor before it completes
    /// it.
    fn take(&self, now: Moment) -> Option<PendingWake> {
        self.settle(now, |page| page | TAKEN)
    }

    /// Takes the pending wake-up and leaves `left` of its page.
    fn settle(&self, now: Moment, left: impl Fn(PageNumber) -> usize) -> Option<PendingWake> {
        let page = self.page.load(Ordering::Acquire);
        if !is_pending(page) {
            return None;
        }
        let recorded_from_ns = self.recorded_from_ns.load(Ordering::Relaxed);
        let late = u32::from(self.is_late(now));
        let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        self.page.compare_exchange(page, left(page), done, failed).ok()?;
        self.late.fetch_add(late, Ordering::Relaxed);
        Some(PendingWake { page, recorded_from_ns })
    }

    fn is_late(&self, now: Moment) -> bool {
        let is_behind_evictor = self.asked_evictions.load(Ordering::Relaxed) != now.evictions;
        let late_ns = if is_behind_evictor { LATE_BEHIND_EVICTOR_NS } else { LATE_NS };
        now.now_ns > self.asked_ns.load(Ordering::Relaxed) + late_ns
    }
}

impl Pager {
    /// Completes a wake-up, and records the fault's duration.
    pub(super) fn complete_wake(&self, pending: PendingWake) {
        if pending.recorded_from_ns != 0 {
            self.block.record_fault_ns(sys::monotonic_ns() - pending.recorded_from_ns);
        }
        self.wake_page(pending.page);
    }

    /// Completes a wake-up that the waker is late with.
    pub(super) fn complete_late_wakes(&self) {
        if let Some(pending) = self.waker.take_overdue(self.moment()) {
            self.complete_wake(pending);
        }
    }

    pub(super) fn moment(&self) -> Moment {
        let evictions = self.evictor_progress.load(Ordering::Relaxed);
        Moment { now_ns: sys::monotonic_ns(), evictions }
    }
}

fn is_pending(page: usize) -> bool {
    page != 0 && page & TAKEN == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now_ns: u64) -> Moment {
        Moment { now_ns, evictions: 0 }
    }

    fn pending(page: PageNumber) -> PendingWake {
        PendingWake { page, recorded_from_ns: 7 }
    }

    #[test]
    fn pending_wake_is_taken_once() {
        let waker = Waker::default();
        assert_eq!(waker.take(at(1)), None);
        waker.post(pending(5), at(1));
        assert_eq!(waker.take(at(2)), Some(pending(5)));
        assert_eq!(waker.take(at(2)), None);
        assert_eq!(waker.take_back(at(2)), None);
        waker.post(pending(6), at(3));
        assert_eq!(waker.take_back(at(4)), Some(pending(6)));
        assert_eq!(waker.take(at(4)), None);
        assert_eq!(waker.times_late(), 0);
    }

    #[test]
    fn late_wake_is_taken_over() {
        let waker = Waker::default();
        waker.post(pending(5), at(1));
        assert_eq!(waker.take_overdue(at(1 + LATE_NS)), None);
        assert_eq!(waker.take_overdue(at(2 + LATE_NS)), Some(pending(5)));
        assert_eq!((waker.times_late(), waker.take(at(3 + LATE_NS))), (1, None));
        waker.post(pending(6), at(1));
        assert_eq!(waker.take(at(2)), Some(pending(6)));
        let once_more = PendingWake { page: 6, recorded_from_ns: 0 };
        assert_eq!(waker.take_overdue(at(2 + LATE_NS)), Some(once_more));
        assert_eq!(waker.take_overdue(at(3 + LATE_NS)), None);
        assert_eq!(waker.times_late(), 1);
    }

    #[test]
    fn evictor_progress_extends_deadline() {
        let waker = Waker::default();
        waker.post(pending(5), at(0));
        let behind = |now_ns| Moment { now_ns, evictions: 1 };
        assert_eq!(waker.take_overdue(behind(LATE_BEHIND_EVICTOR_NS)), None);
        assert_eq!(waker.take_overdue(behind(1 + LATE_BEHIND_EVICTOR_NS)), Some(pending(5)));
    }

    /// Three threads act as the handler, the waker and the evictor, with times that make everything
    /// late. One time in eight the waker never completes. Every waiting thread is woken.
    #[test]
    fn every_waiter_is_woken() {
        const PAGES: usize = 200_000;
        let waker = Waker::default();
        let woken: Vec<AtomicU32> = (0..=PAGES).map(|_| AtomicU32::new(0)).collect();
        let is_over = AtomicBool::new(false);
        let now = at(2 * LATE_NS);
        let wake = |pending: Option<PendingWake>| {
            let Some(pending) = pending else { return false };
            woken[pending.page].fetch_add(1, Ordering::Relaxed);
            true
        };
        let until_over = |look: &dyn Fn() -> bool| {
            while !is_over.load(Ordering::Acquire) {
                if !look() {
                    std::thread::yield_now();
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| until_over(&|| wake(waker.take_overdue(now))));
            scope.spawn(|| {
                until_over(&|| {
                    wake(waker.take(now).filter(|pending| !pending.page.is_multiple_of(8)))
                })
            });
            for page in 1..=PAGES {
                wake(waker.take_back(now).or_else(|| waker.take_unfinished()));
                waker.post(pending(page), at(1));
                (0..page % 64).for_each(|_| std::hint::spin_loop());
            }
            while waker.page.load(Ordering::Relaxed) != 0 {
                std::thread::yield_now();
            }
            is_over.store(true, Ordering::Release);
        });
        let forgotten =
            woken[1..].iter().filter(|count| count.load(Ordering::Relaxed) == 0).count();
        assert_eq!(forgotten, 0);
    }
}
