//! The evictor: keeps the process within its budget, off the fault path.
//!
//! Sweep chunks of consecutive pages leave the program for the staging ring ([`chunks`]). The
//! ring's oldest chunks are written out first and their frames freed ([`retire`]). A page that is
//! touched while it is staged is brought back whole, and counts as young again. Cold pages leave
//! first ([`cold`]). Huge pages leave by slots of their own ([`huge`]). Pages shared with other
//! processes since a `fork` are charged once ([`sharing`](super::sharing), [`splits`]) and leave all of them ([`shared_hand`]).

mod chunks;
mod cold;
mod huge;
mod retire;
mod shared;
mod shared_hand;
mod splits;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::budget::{high_watermark, low_watermark, managed_pages};
use super::end::die_unsupervised;
use super::far::Far;
use super::page_size::HUGE_PAGES;
use super::pager::{Guarded, NO_CPU, Pager, ring_chunks};
use super::presence::Presence;
use super::staging::{CHUNK_FRAMES, Frame};
use super::sys::{self, Errno, PollFd};
use super::thread::{self, PROCESS_STAT, ThreadCount};
use super::transfer::WriteOut;
use chunks::{Exhausted, Victims};
use retire::Leaving;
use splits::Splits;

/// Most chunks retired and filled in one turn with the lock held.
const BATCH_CHUNKS: usize = 4;
/// Most pages retired at once: those of the chunks, or those of a huge page.
const MOST_AT_ONCE: usize =
    if BATCH_CHUNKS * CHUNK_FRAMES > HUGE_PAGES { BATCH_CHUNKS * CHUNK_FRAMES } else { HUGE_PAGES };
/// Period at which the budget is checked when nothing happens, in nanoseconds.
const TICK_NS: u64 = 20_000_000;
/// The same while the waker is in use, which must be checked more often.
const SHORT_TICK_NS: u64 = 5_000_000;
/// The same while the process makes its own copies of pages that it shared.
const SPLITTING_TICK_NS: u64 = 2_000_000;
/// Pause of the evictor when it can do nothing, in nanoseconds.
const IDLE_NS: u64 = 1_000_000;
/// Time that a program may stand still for want of far memory before it is ended, in nanoseconds.
const FAR_FULL_PATIENCE_NS: u64 = 500_000_000;
/// Period at which the process's own anonymous memory is measured, in nanoseconds.
const MEASURE_EVERY_NS: u64 = 50_000_000;

/// The evictor's state.
pub struct Evictor {
    pager: &'static Pager,
    far: Far,
    writes: Vec<WriteOut>,
    leaving: Vec<Leaving>,
    statm_fd: i32,
    stat_fd: i32,
    presence: Presence,
    splits: Splits,
    /// Shared pages that this thread has made own copies of, to evict them.
    copied: AtomicU64,
    /// The position up to which its shared pages were dropped.
    shared_seen: u64,
    /// Resident and shared pages when the clock hand found only shared ones.
    all_shared: [u64; 2],
    /// The time until which that holds.
    all_shared_until_ns: u64,
    measured_ns: u64,
    overhead_pages: u64,
    cpu: usize,
    exhausted: bool,
    /// Turns in a row in which no page could be moved: locked, pinned or protected pages.
    futile_turns: u64,
    far_full_since_ns: Option<u64>,
    idle: AtomicU32,
    /// State of the random generator.
    random_state: u64,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// A page moved, or may move in the next turn.
    Progress,
    /// There is nothing to evict.
    Nothing,
    /// There are pages to evict, and no far memory to take them.
    FarFull,
}

/// The thread's body; `evictor` is the address of a leaked [`Evictor`].
pub extern "C" fn run(evictor: usize) -> ! {
    // SAFETY: `start::threads` leaked it for this thread alone.
    let evictor = unsafe { &mut *(evictor as *mut Evictor) };
    evictor.pager.image.add_thread();
    evictor.begin();
    loop {
        evictor.turn();
        if evictor.pager.pause.is_asked() {
            evictor.leave();
            thread::exit();
        }
    }
}

/// The thread's body where a pager ends before its process does.
pub fn run_until_ended(mut evictor: Evictor) {
    evictor.begin();
    while !evictor.pager.is_ending() {
        evictor.turn();
    }
}

impl Evictor {
    /// Makes an evictor that has not started yet.
    pub fn new(pager: &'static Pager, far: Far) -> Evictor {
        // Other memory of the process counts only where the pager serves all of it.
        let open = |path: &[u8]| {
            let fd =
                if pager.serves_regions() { Err(Errno::ENOENT) } else { sys::open_readonly(path) };
            fd.map_or(-1, |fd| pager.descriptors.keep(fd))
        };
        Evictor {
            pager,
            far,
            writes: Vec::with_capacity(MOST_AT_ONCE),
            leaving: Vec::with_capacity(MOST_AT_ONCE),
            statm_fd: open(b"/proc/self/statm\0"),
            stat_fd: open(PROCESS_STAT),
            presence: Presence::open(&pager.descriptors),
            splits: Splits::new(pager),
            copied: AtomicU64::new(0),
            shared_seen: pager.block.shared_hand.load(Ordering::Acquire),
            all_shared: [0; 2],
            all_shared_until_ns: 0,
            measured_ns: 0,
            overhead_pages: 0,
            cpu: NO_CPU,
            exhausted: false,
            futile_turns: 0,
            far_full_since_ns: None,
            idle: AtomicU32::new(0),
            random_state: 1,
        }
    }

    fn begin(&mut self) {
        self.cpu = NO_CPU;
        self.pager.evictor_thread.store(sys::gettid(), Ordering::Release);
    }

    /// Keeps the handler from waiting for this thread, which is about to end.
    fn leave(&self) {
        self.pager.evictor_stuck.store(1, Ordering::Relaxed);
        self.announce_progress();
    }

    fn turn(&mut self) {
        let pager = self.pager;
        pager.evictor_bell.store(0, Ordering::Release);
        self.follow_handler();
        pager.complete_late_wakes();
        self.refresh_limit();
        if pager.page_outs.is_any() {
            self.page_out();
        }
        if self.is_run_far_over() {
            self.advance_shared_hand();
        }
        self.drop_shared_pages();
        let limit = || pager.limit_pages.load(Ordering::Relaxed);
        let most = pager.block.largest_page_size();
        if pager.charged() <= high_watermark(limit(), most) {
            pager.evictor_stuck.store(0, Ordering::Relaxed);
            self.far.attend(&pager.block);
            self.far.release(&pager.block);
            sys::futex_wait(&pager.evictor_bell, 0, Some(self.tick_ns()), false);
            return;
        }
        while pager.charged() > low_watermark(limit(), most) {
            self.refresh_limit();
            if self.waits_for_shared_hand() {
                break;
            }
            if !self.reserve_disk_room() {
                self.announce_progress();
                sys::futex_wait(&self.idle, 0, Some(IDLE_NS), false);
                break;
            }
            let outcome = self.with_structure(Evictor::retire_and_fill).unwrap_or(Outcome::Nothing);
            let at_limit = pager.charged() >= limit();
            self.note_far_full(outcome, at_limit);
            let stuck = outcome == Outcome::Nothing;
            pager.evictor_stuck.store(stuck as u32, Ordering::Relaxed);
            self.announce_progress();
            if outcome == Outcome::Nothing || self.is_mostly_shared() || self.is_run_far_over() {
                self.advance_shared_hand();
            }
            self.drop_shared_pages();
            if outcome != Outcome::Progress {
                // Other processes may be able to write.
                self.far.release(&pager.block);
                let found_shared =
                    outcome == Outcome::Nothing && self.swept_victims() == Victims::Own;
                if found_shared {
                    self.note_all_shared();
                }
                sys::futex_wait(&self.idle, 0, Some(IDLE_NS), false);
                break;
            }
            if pager.waker.is_in_use() && pager.charged() < limit() {
                // The thread that the waker is to wake waits for this thread too.
                sys::futex_wait(&pager.evictor_bell, 0, Some(IDLE_NS), false);
                break;
            }
        }
    }

    fn tick_ns(&self) -> u64 {
        match (self.splits.are_many(), self.pager.waker.is_in_use()) {
            (true, _) => SPLITTING_TICK_NS,
            (false, true) => SHORT_TICK_NS,
            (false, false) => TICK_NS,
        }
    }

    /// Evicts the shared pages up to the run's shared hand.
    fn drop_shared_pages(&mut self) {
        while self.reserve_disk_room() {
            match self.follow_shared_hand() {
                Some(Outcome::Progress) => self.announce_progress(),
                Some(Outcome::FarFull | Outcome::Nothing) | None => return,
            }
        }
    }

    /// Reserves room among the pages on their way to the disk for what one turn writes, even if all
    /// of it has to be written twice. True if there is room. No lock is held.
    fn reserve_disk_room(&mut self) -> bool {
        let has_room = self.far.reserve(&self.pager.block, self.pages_of_turn());
        if !has_room {
            self.pager.block.counters.behind_waits.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// The most pages that a turn writes, twice.
    fn pages_of_turn(&self) -> usize {
        2 * self.batch() * CHUNK_FRAMES
    }

    /// Moves to the processor chosen by `thread_affinity`, unless the move was already made.
    fn follow_handler(&mut self) {
        let cpu = self.pager.followed_cpu.load(Ordering::Relaxed);
        if cpu != self.cpu {
            self.cpu = cpu;
            sys::pin_to_cpu(cpu);
        }
    }

    /// Ends the program once far memory and the budget have been used up for a while: it cannot go
    /// on. This is like the kernel's out-of-memory kill, with a message that names the remedy.
    fn note_far_full(&mut self, outcome: Outcome, at_limit: bool) {
        if outcome != Outcome::FarFull || !at_limit {
            self.far_full_since_ns = None;
            return;
        }
        let now_ns = sys::monotonic_ns();
        let since_ns = *self.far_full_since_ns.get_or_insert(now_ns);
        if now_ns - since_ns > FAR_FULL_PATIENCE_NS {
            if self.pager.block.donors().iter().any(|donor| donor.is_lost()) {
                sys::die("a donor is lost, and the others have no room for its pages");
            }
            sys::die("far memory is used up and so is --local: run with a larger --remote");
        }
    }

    /// Recomputes the limit: the budget, less the process's memory that is not managed (early heap,
    /// stacks, the pager's own tables).
    fn refresh_limit(&mut self) {
        let pager = self.pager;
        let now_ns = sys::monotonic_ns();
        if now_ns >= self.measured_ns + MEASURE_EVERY_NS {
            self.measured_ns = now_ns;
            self.overhead_pages = self.measure_overhead();
            pager.own_process().overhead_pages.store(self.overhead_pages, Ordering::Relaxed);
            self.check_supervisor();
            self.check_program();
        }
        self.splits.count(pager, self.copied.load(Ordering::Relaxed));
        let allowance = pager.block.allowance_pages(pager.process.load(Ordering::Relaxed));
        let limit = managed_pages(allowance, pager.own_process().charge().overhead_pages);
        pager.limit_pages.store(limit, Ordering::Relaxed);
    }

    fn measure_overhead(&self) -> u64 {
        let managed = self.pager.resident().load(Ordering::Relaxed);
        let mut text = [0u8; 128];
        let Ok(len) = sys::pread(self.statm_fd, 0, &mut text) else {
            return (self.pager.staging.huge().spares() * HUGE_PAGES) as u64;
        };
        let mut fields = text[..len].split(|&b| b == b' ').map(|field| {
            field.iter().fold(0u64, |value, &digit| {
                value.wrapping_mul(10).wrapping_add((digit.wrapping_sub(b'0')) as u64)
            })
        });
        // proc(5): size, resident, shared (file and shmem) pages.
        let resident = fields.nth(1).unwrap_or(0);
        let shared = fields.next().unwrap_or(0);
        resident.saturating_sub(shared).saturating_sub(managed)
    }

    /// Ends the program if the supervisor is gone: leases are no longer renewed, and the memory
    /// will be taken away.
    fn check_supervisor(&self) {
        let mut connection =
            [PollFd { fd: self.pager.supervisor_fd, events: sys::POLLIN, revents: 0 }];
        if sys::poll(&mut connection, 0) > 0 {
            die_unsupervised("`venice run` has ended: this program's far memory is lost");
        }
    }

    /// Ends the process if only the pager's threads are left: a program may end thread by thread
    /// (`exit(2)`, all that a strict seccomp mode allows).
    fn check_program(&self) {
        if let Some(code) = ThreadCount::read(self.stat_fd).and_then(ThreadCount::exit_code) {
            sys::exit(code);
        }
    }

    /// Wakes the threads that wait for room.
    fn announce_progress(&self) {
        self.pager.evictor_progress.fetch_add(1, Ordering::Release);
        sys::futex_wake(&self.pager.evictor_progress, u32::MAX >> 1, false);
    }

    /// Does `work` with the structure lock held, unless the handler is copying this process's
    /// memory into a child.
    fn with_structure<T>(
        &mut self,
        work: impl FnOnce(&mut Evictor, &mut Guarded) -> T,
    ) -> Option<T> {
        let pager = self.pager;
        let _held = pager.lock.hold_as_evictor();
        pager.evictor_busy.store(1, Ordering::SeqCst);
        let worked = (!pager.fork.is_copying()).then(|| {
            // SAFETY: the lock is held.
            work(self, unsafe { &mut *pager.guarded.get() })
        });
        pager.evictor_busy.store(0, Ordering::SeqCst);
        worked
    }

    /// Retires the oldest chunks of the ring and fills them anew.
    fn retire_and_fill(&mut self, guarded: &mut Guarded) -> Outcome {
        let pager = self.pager;
        if let Some(outcome) = self.fit_ring(guarded) {
            return outcome;
        }
        let first = guarded.head_chunk;
        let Some(mut retired) = self.retire(first, guarded) else { return Outcome::FarFull };
        let Some((moved, exhausted)) = self.fill(first, guarded) else { return Outcome::FarFull };
        let Some(of_huge) = self.retire_spent_huge(moved == 0, guarded) else {
            return Outcome::FarFull;
        };
        retired += of_huge;
        guarded.head_chunk = pager.staging.chunk_after(first, self.batch());
        let was_exhausted = std::mem::replace(&mut self.exhausted, exhausted);
        self.futile_turns = if retired + moved == 0 { self.futile_turns + 1 } else { 0 };
        let seen_all = self.futile_turns * (self.batch() * CHUNK_FRAMES) as u64
            >= pager.resident().load(Ordering::Relaxed);
        let nothing = self.futile_turns > 0 && (exhausted && was_exhausted || seen_all);
        let holds_pages = self.ring_holds_pages() || !guarded.huge_out.is_empty();
        if nothing && !holds_pages { Outcome::Nothing } else { Outcome::Progress }
    }

    /// Returns how many chunks are retired and filled in one turn. A short ring has fewer, so that
    /// a page always waits for about half a round before it goes.
    fn batch(&self) -> usize {
        (self.pager.staging.in_use() / 2).clamp(1, BATCH_CHUNKS)
    }

    /// Fits the ring's length to the limit of this process: it grows at once, and shrinks by its
    /// last chunks in each turn, which are retired first. `None`: it has its length.
    fn fit_ring(&mut self, guarded: &mut Guarded) -> Option<Outcome> {
        let staging = &self.pager.staging;
        let limit = self.pager.limit_pages.load(Ordering::Relaxed);
        let (in_use, wanted) = (staging.in_use(), ring_chunks(limit, staging.chunks()));
        if in_use <= wanted {
            staging.use_chunks(wanted);
            return None;
        }
        let kept = in_use - (in_use - wanted).min(self.batch());
        // The chunks that a turn retires beyond the last one are the first ones: that does no harm.
        if self.retire(kept, guarded).is_none() {
            return Some(Outcome::FarFull);
        }
        staging.use_chunks(kept);
        if guarded.head_chunk >= kept {
            guarded.head_chunk = 0;
        }
        Some(Outcome::Progress)
    }

    /// Moves the next sweep chunks into the ring's chunks from `first` on, or a huge page into a
    /// slot. Returns the pages moved, and true if the hand found no more sweep chunks. `None`: far
    /// memory is used up.
    fn fill(&mut self, first: usize, guarded: &mut Guarded) -> Option<(usize, bool)> {
        let staging = &self.pager.staging;
        let mut moved = 0;
        if self.pager.refaults.should_scatter() {
            guarded.hand = self.random_chunk(guarded);
        }
        let swept = self.swept_victims();
        for offset in 0..self.batch() {
            let chunk = staging.frames_of(staging.chunk_after(first, offset));
            let (pages, victims) = match self.next_cold_chunk(guarded) {
                Some(pages) => (pages, Victims::Cold),
                None => match self.next_sweep_chunk(guarded) {
                    Ok(Some(pages)) => (pages, swept),
                    Ok(None) => return Some((moved, false)),
                    Err(Exhausted) => return Some((moved, true)),
                },
            };
            if pages.len() == HUGE_PAGES {
                // That is as much as a turn retires.
                return Some((moved + self.stage_huge(pages, victims, guarded)?, false));
            }
            moved += self.stage(pages, chunk, victims);
        }
        Some((moved, false))
    }

    /// The pages that the clock hand takes: not those that other processes share.
    fn swept_victims(&self) -> Victims {
        let has_forked = self.pager.forks.load(Ordering::Relaxed) > 0;
        let has_company = has_forked && self.pager.block.live_processes().nth(1).is_some();
        if has_company { Victims::Own } else { Victims::All }
    }

    fn ring_holds_pages(&self) -> bool {
        let staging = &self.pager.staging;
        (0..staging.chunks())
            .flat_map(|chunk| staging.frames_of(chunk))
            .any(|frame| staging.holds(frame) != Frame::Empty)
    }
}
