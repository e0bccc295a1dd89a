//! The waker: a thread that wakes who waits for a page while the pager's other threads sleep.
//!
//! A thread that wakes up goes to an idle processor if there is one. The handler is at work where
//! that thread went to sleep, so it would wake elsewhere, fault there, and wake the handler across
//! processors, each time. A processor counts as idle as well if all that it runs is `SCHED_IDLE`
//! (`sched(7)`; `select_idle_sibling` in Linux' `kernel/sched/fair.c`), which needs no privilege, but
//! one to come back from. So a thread of its own is that for good: it runs on the handler's processor
//! as soon as the handler has gone to sleep, and whom it wakes stays there (docs/decisions/0068).
//!
//! Where anything else wants that processor the waker comes late, by seconds even. The evictor
//! [looks after it](Waker::overdue) then, [`Waker::times_late`] tells of it, and the handler does
//! without for a while.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::page_table::PageNumber;
use super::pager::Pager;
use super::sys;

/// A wake-up that took longer than this was late: something else ran there.
const LATE_NS: u64 = 500_000;
/// The same where the evictor has done something meanwhile, which it would have done anyway.
const LATE_BEHIND_EVICTOR_NS: u64 = 5_000_000;
/// See [`Waker::page`]; page numbers do not reach so far.
const TAKEN: usize = 1 << (usize::BITS - 1);

/// Somebody waits for a page that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    /// The page.
    pub page: PageNumber,
    /// When its fault was heard of, if how long it took is to be recorded; else 0.
    pub recorded_from_ns: u64,
}

/// When something is asked of a waker.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The time.
    pub now_ns: u64,
    /// What the evictor has done until then, counted.
    pub evictions: u32,
}

/// What the handler and its waker share. One wake-up is owed at most.
#[derive(Debug, Default)]
pub struct Waker {
    /// The page, with [`TAKEN`] beside it if the waker is about to wake who waits for it, or has; 0:
    /// nothing is owed.
    page: AtomicUsize,
    recorded_from_ns: AtomicU64,
    asked_ns: AtomicU64,
    asked_evictions: AtomicU32,
    bell: AtomicU32,
    late: AtomicU32,
    /// Does the handler leave wake-ups to it?
    is_in_use: AtomicBool,
    /// The kernel's number of the thread; 0: it has not started.
    thread: AtomicU32,
}

/// The thread's body; `pager` is the address of a [`Pager`] that lives as long as the process.
pub extern "C" fn run(pager: usize) -> ! {
    // SAFETY: as the caller has it.
    let pager = unsafe { &*(pager as *const Pager) };
    pager.waker.begin(&pager.followed_cpu);
    loop {
        turn(pager, pager.waker.heard());
    }
}

/// The thread's body where a pager ends before its process does.
pub fn run_until_ended(pager: &Pager) {
    pager.waker.begin(&pager.followed_cpu);
    loop {
        // In this order: who ends it rings after he has said so.
        let heard = pager.waker.heard();
        if pager.is_ending() {
            return;
        }
        turn(pager, heard);
    }
}

fn turn(pager: &Pager, heard: u32) {
    let waker = &pager.waker;
    if !waker.owes() {
        return sys::futex_wait(&waker.bell, heard, None, false);
    }
    // Who has just gone to sleep may be on the processor's list until it has passed over him once
    // (Linux 6.12: "delayed dequeue"), and counts as running. Nothing is taken yet: it may be long
    // until the processor comes back.
    sys::yield_now();
    if let Some(owed) = waker.take(pager.moment()) {
        pager.let_go_on(owed);
    }
}

impl Waker {
    /// Has its thread started?
    pub fn is_there(&self) -> bool {
        self.thread.load(Ordering::Acquire) != 0
    }

    /// Whom the waker wakes next. What was owed before must have been [taken back](Waker::take_back),
    /// or [finished](Waker::unfinished), as it is when the same thread waits again.
    pub fn owe(&self, owed: Owed, asked: Moment) {
        self.recorded_from_ns.store(owed.recorded_from_ns, Ordering::Relaxed);
        self.asked_ns.store(asked.now_ns, Ordering::Relaxed);
        self.asked_evictions.store(asked.evictions, Ordering::Relaxed);
        self.page.store(owed.page, Ordering::Release);
        self.ring();
    }

    /// Is there anything that the waker has not come to?
    pub fn owes(&self) -> bool {
        is_owed(self.page.load(Ordering::Relaxed))
    }

    /// What the waker has not come to; the caller does it.
    pub fn take_back(&self, now: Moment) -> Option<Owed> {
        self.settle(now, |_| 0)
    }

    /// What the waker has taken, and may have lost its processor over before it was done; the caller
    /// does it, perhaps for the second time.
    pub fn unfinished(&self) -> Option<Owed> {
        let page = self.page.load(Ordering::Acquire);
        if page & TAKEN == 0 {
            return None;
        }
        self.page.compare_exchange(page, 0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(Owed { page: page & !TAKEN, recorded_from_ns: 0 })
    }

    /// What is late, taken by the waker or not.
    pub fn overdue(&self, now: Moment) -> Option<Owed> {
        if self.page.load(Ordering::Acquire) == 0 || !self.is_late(now) {
            return None;
        }
        self.take_back(now).or_else(|| self.unfinished())
    }

    /// How many wake-ups were late so far. It wraps.
    pub fn times_late(&self) -> u32 {
        self.late.load(Ordering::Relaxed)
    }

    /// The handler leaves wake-ups to it from now on, or does not.
    pub fn use_it(&self, is_in_use: bool) {
        self.is_in_use.store(is_in_use, Ordering::Relaxed);
    }

    /// Does it? Then nobody else of the pager's is to be at work for long on its processor.
    pub fn is_in_use(&self) -> bool {
        self.is_in_use.load(Ordering::Relaxed)
    }

    /// It works on `cpu` from now on.
    pub fn move_to(&self, cpu: usize) {
        let thread = self.thread.load(Ordering::SeqCst);
        if thread != 0 {
            sys::pin_thread_to_cpu(thread, cpu);
        }
    }

    /// Has it look whether it is to end.
    pub fn ring(&self) {
        self.bell.fetch_add(1, Ordering::Release);
        sys::futex_wake(&self.bell, 1, false);
    }

    /// In the child of a fork, which has no such thread, and nobody who waits.
    pub fn reset(&self) {
        self.page.store(0, Ordering::Relaxed);
        self.use_it(false);
        self.thread.store(0, Ordering::Release);
    }

    fn heard(&self) -> u32 {
        self.bell.load(Ordering::Acquire)
    }

    fn begin(&self, followed_cpu: &AtomicUsize) {
        if sys::run_when_idle().is_ok() {
            // Whoever is second of this one and a handler that moves hears of the other.
            self.thread.store(sys::gettid(), Ordering::SeqCst);
            sys::pin_to_cpu(followed_cpu.load(Ordering::SeqCst));
        }
    }

    /// What is owed, for the waker, which may lose its processor before it has done it.
    fn take(&self, now: Moment) -> Option<Owed> {
        self.settle(now, |page| page | TAKEN)
    }

    /// Takes what is owed and leaves `left` of its page.
    fn settle(&self, now: Moment, left: impl Fn(PageNumber) -> usize) -> Option<Owed> {
        let page = self.page.load(Ordering::Acquire);
        if !is_owed(page) {
            return None;
        }
        let recorded_from_ns = self.recorded_from_ns.load(Ordering::Relaxed);
        let late = u32::from(self.is_late(now));
        let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        self.page.compare_exchange(page, left(page), done, failed).ok()?;
        self.late.fetch_add(late, Ordering::Relaxed);
        Some(Owed { page, recorded_from_ns })
    }

    fn is_late(&self, now: Moment) -> bool {
        let is_behind_evictor = self.asked_evictions.load(Ordering::Relaxed) != now.evictions;
        let late_ns = if is_behind_evictor { LATE_BEHIND_EVICTOR_NS } else { LATE_NS };
        now.now_ns > self.asked_ns.load(Ordering::Relaxed) + late_ns
    }
}

impl Pager {
    /// Wakes who waits.
    pub(super) fn let_go_on(&self, owed: Owed) {
        if owed.recorded_from_ns != 0 {
            self.block.record_fault_ns(sys::monotonic_ns() - owed.recorded_from_ns);
        }
        self.wake_page(owed.page);
    }

    /// Does what the waker is late with.
    pub(super) fn look_after_waker(&self) {
        if let Some(owed) = self.waker.overdue(self.moment()) {
            self.let_go_on(owed);
        }
    }

    pub(super) fn moment(&self) -> Moment {
        let evictions = self.evictor_progress.load(Ordering::Relaxed);
        Moment { now_ns: sys::monotonic_ns(), evictions }
    }
}

fn is_owed(page: usize) -> bool {
    page != 0 && page & TAKEN == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now_ns: u64) -> Moment {
        Moment { now_ns, evictions: 0 }
    }

    fn owed(page: PageNumber) -> Owed {
        Owed { page, recorded_from_ns: 7 }
    }

    #[test]
    fn what_is_owed_is_taken_once() {
        let waker = Waker::default();
        assert_eq!(waker.take(at(1)), None);
        waker.owe(owed(5), at(1));
        assert_eq!(waker.take(at(2)), Some(owed(5)));
        assert_eq!(waker.take(at(2)), None);
        assert_eq!(waker.take_back(at(2)), None);
        waker.owe(owed(6), at(3));
        assert_eq!(waker.take_back(at(4)), Some(owed(6)));
        assert_eq!(waker.take(at(4)), None);
        assert_eq!(waker.times_late(), 0);
    }

    #[test]
    fn what_is_late_is_done_by_somebody_else_even_if_the_waker_had_taken_it() {
        let waker = Waker::default();
        waker.owe(owed(5), at(1));
        assert_eq!(waker.overdue(at(1 + LATE_NS)), None);
        assert_eq!(waker.overdue(at(2 + LATE_NS)), Some(owed(5)));
        assert_eq!((waker.times_late(), waker.take(at(3 + LATE_NS))), (1, None));
        waker.owe(owed(6), at(1));
        assert_eq!(waker.take(at(2)), Some(owed(6)));
        let once_more = Owed { page: 6, recorded_from_ns: 0 };
        assert_eq!(waker.overdue(at(2 + LATE_NS)), Some(once_more));
        assert_eq!(waker.overdue(at(3 + LATE_NS)), None);
        assert_eq!(waker.times_late(), 1);
    }

    #[test]
    fn who_waits_behind_the_evictor_may_wait_for_longer() {
        let waker = Waker::default();
        waker.owe(owed(5), at(0));
        let behind = |now_ns| Moment { now_ns, evictions: 1 };
        assert_eq!(waker.overdue(behind(LATE_BEHIND_EVICTOR_NS)), None);
        assert_eq!(waker.overdue(behind(1 + LATE_BEHIND_EVICTOR_NS)), Some(owed(5)));
    }

    /// Three threads as the handler, the waker and the evictor, with times that make everything late;
    /// one time in eight the waker never comes to the end of it. Everybody who waits is woken.
    #[test]
    fn nobody_is_forgotten() {
        const PAGES: usize = 200_000;
        let waker = Waker::default();
        let woken: Vec<AtomicU32> = (0..=PAGES).map(|_| AtomicU32::new(0)).collect();
        let is_over = AtomicBool::new(false);
        let now = at(2 * LATE_NS);
        let wake = |owed: Option<Owed>| {
            let Some(owed) = owed else { return false };
            woken[owed.page].fetch_add(1, Ordering::Relaxed);
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
            scope.spawn(|| until_over(&|| wake(waker.overdue(now))));
            scope.spawn(|| {
                until_over(&|| wake(waker.take(now).filter(|owed| !owed.page.is_multiple_of(8))))
            });
            for page in 1..=PAGES {
                wake(waker.take_back(now).or_else(|| waker.unfinished()));
                waker.owe(owed(page), at(1));
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
