//! The program's two threads that use far memory, the evictor that writes pages and the handler
//! that reads them, and a model of each page's contents.

use std::sync::{Arc, Mutex};

use venice_simkernel::random::Stream;

use super::world::{EVICTOR, HANDLER, World};
use super::{ANSWERED_WITHIN_NS, Counts};
use crate::paged::PAGE;
use crate::paged::far::Far;
use crate::paged::run_block::{RunBlockMap, SLAB_SLOTS};
use crate::paged::transfer::{Fetch, Words, WriteOut};

/// Pages in each slab, spread over its slots.
const PAGES: u32 = 8;
/// Longest pause of a thread between accesses, nanoseconds.
const REST_NS: u64 = 500_000_000;
/// Interval at which a pausing thread attends its links, nanoseconds.
const ATTEND_NS: u64 = 250_000_000;
/// Most pages in one batch.
const AT_ONCE: u64 = 5;

/// A far page of the program.
#[derive(Clone, Copy, Debug)]
struct Page {
    slot: u32,
    /// The number of its last write; 0: none, or lost.
    written: u64,
    /// One thread reads or writes it, exclusively, as with the page table's lock.
    is_busy: bool,
}

/// The contents that the program wrote.
pub struct Model {
    pages: Mutex<Vec<Page>>,
}

/// A thread of the program.
pub struct Thread<'a> {
    pub world: &'a Arc<World>,
    pub block: &'a Arc<RunBlockMap>,
    pub model: &'a Model,
    pub far: Far,
    pub rng: Stream,
    pub end_ns: u64,
}

fn contents(slot: u32, written: u64) -> Box<Words> {
    let seed = (u64::from(slot) << 32 | written).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Box::new(std::array::from_fn(|at| {
        seed.wrapping_add((at as u64).wrapping_mul(0x0101_0101_0101_0101))
    }))
}

impl Model {
    /// Creates the model for `slabs` slabs, and marks its slots as held.
    pub fn new(block: &RunBlockMap, slabs: usize) -> Model {
        let slab_slots = block.slab_slots();
        let spread = slab_slots / PAGES;
        assert!(slab_slots >= SLAB_SLOTS);
        let slots = (0..slabs as u32)
            .flat_map(|slab| (0..PAGES).map(move |page| slab * slab_slots + page * spread));
        let page = |slot| {
            block.holders()[slot as usize].fetch_or(1, std::sync::atomic::Ordering::SeqCst);
            Page { slot, written: 0, is_busy: false }
        };
        Model { pages: Mutex::new(slots.map(page).collect()) }
    }

    /// Claims some pages.
    fn claim(&self, rng: &mut Stream, most: u64, which: impl Fn(&Page) -> bool) -> Vec<usize> {
        let mut pages = self.pages.lock().expect("not poisoned");
        let mut claimed = Vec::new();
        for _ in 0..rng.between(1, most) {
            let at = rng.below(pages.len() as u64) as usize;
            if !pages[at].is_busy && which(&pages[at]) {
                pages[at].is_busy = true;
                claimed.push(at);
            }
        }
        claimed
    }

    fn claim_all(&self) -> Vec<usize> {
        let mut pages = self.pages.lock().expect("not poisoned");
        let written = (0..pages.len()).filter(|at| pages[*at].written > 0);
        let all: Vec<_> = written.collect();
        all.iter().for_each(|at| pages[*at].is_busy = true);
        all
    }

    fn page(&self, at: usize) -> Page {
        self.pages.lock().expect("not poisoned")[at]
    }

    fn release(&self, at: usize, written: u64) {
        let page = &mut self.pages.lock().expect("not poisoned")[at];
        (page.written, page.is_busy) = (written, false);
    }
}

impl Thread<'_> {
    /// Writes pages out until the end.
    pub fn evict(&mut self, counts: &Counts) {
        let mut number = 0;
        while self.world.now_ns() < self.end_ns {
            self.rest(EVICTOR);
            let claimed = self.model.claim(&mut self.rng, AT_ONCE, |_| true);
            let slots: Vec<u32> = claimed.iter().map(|at| self.model.page(*at).slot).collect();
            let pages: Vec<_> =
                slots.iter().zip(number + 1..).map(|(s, n)| contents(*s, n)).collect();
            let sources = pages.iter().map(|page| page.as_ptr() as usize).zip(&slots);
            let mut writes: Vec<_> =
                sources.map(|(source, slot)| WriteOut::page(source, *slot)).collect();
            let began_ns = self.world.now_ns();
            self.far.write_all(self.block, &mut writes);
            self.answered(began_ns, "a write");
            for (at, write) in claimed.iter().zip(&writes) {
                number += 1;
                if write.lost {
                    self.lose(write.slot, counts);
                }
                self.model.release(*at, if write.lost { 0 } else { number });
            }
            counts.writes(writes.len());
        }
    }

    /// Reads pages until the end, and finally all of them.
    pub fn read(&mut self, counts: &Counts) {
        while self.world.now_ns() < self.end_ns {
            self.rest(HANDLER);
            let claimed = self.model.claim(&mut self.rng, AT_ONCE, |page| page.written > 0);
            self.read_pages(&claimed, counts);
        }
        // The evictor has ended, or is about to.
        self.world.wait(HANDLER, self.end_ns + ANSWERED_WITHIN_NS, false);
        self.read_pages(&self.model.claim_all(), counts);
    }

    fn read_pages(&mut self, claimed: &[usize], counts: &Counts) {
        let began_ns = self.world.now_ns();
        let mut buffer = Box::new([0; PAGE / 8]);
        let mut left = 0;
        for (token, at) in claimed.iter().enumerate() {
            loop {
                match self.far.fetch(self.block, self.model.page(*at).slot, token as u32) {
                    Fetch::Pending => left += 1,
                    Fetch::Lost => self.read_is_lost(*at, counts),
                    Fetch::Full => {
                        self.far.turn();
                        left -= self.take(claimed, &mut buffer, counts);
                        self.answered(began_ns, "room for a read");
                        continue;
                    }
                    Fetch::Ready(_) => unreachable!("no slab is mapped"),
                }
                break;
            }
        }
        self.far.flush();
        while left > 0 {
            let came = self.take(claimed, &mut buffer, counts);
            left -= came;
            if came == 0 {
                self.far.turn();
                self.answered(began_ns, "a read");
            }
        }
    }

    /// Checks the pages received; returns their number.
    fn take(&mut self, claimed: &[usize], buffer: &mut Words, counts: &Counts) -> usize {
        let mut came = 0;
        while let Some((token, arrived)) = self.far.poll(self.block, buffer) {
            came += 1;
            let at = claimed[token as usize];
            if !arrived {
                self.read_is_lost(at, counts);
                continue;
            }
            let Page { slot, written, .. } = self.model.page(at);
            if *buffer != *contents(slot, written) {
                self.world.fail(format!("slot {slot} differs from its last write ({written})"));
            }
            self.model.release(at, written);
            counts.reads(1);
        }
        came
    }

    fn read_is_lost(&self, at: usize, counts: &Counts) {
        let slot = self.model.page(at).slot;
        if self.block.slot_is_alive(slot) {
            self.world.fail(format!("slot {slot} reported lost, but its slab is alive"));
        }
        self.lose(slot, counts);
        self.model.release(at, 0);
    }

    fn lose(&self, slot: u32, counts: &Counts) {
        counts.losses(1);
        let may_be = self.world.state().loss_checker.may_be_lost(self.block.slab_of(slot));
        if let Err(wrong) = may_be {
            self.world.fail(wrong);
        }
    }

    fn answered(&self, began_ns: u64, what: &str) {
        let took_ns = self.world.now_ns() - began_ns;
        if took_ns > ANSWERED_WITHIN_NS {
            self.world.fail(format!("{what} took {} ms", took_ns / 1_000_000));
        }
    }

    fn rest(&mut self, actor: usize) {
        let until_ns = self.world.now_ns() + self.rng.between(1, REST_NS);
        while self.world.now_ns() < until_ns {
            self.far.attend(self.block);
            let next_ns = until_ns.min(self.world.now_ns() + ATTEND_NS);
            self.world.wait(actor, next_ns, false);
        }
    }
}
