//! Far memory that is mapped: slabs of donors on this host.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use venice_fabric::Atomic;
use venice_ports::channels::AccessLink;
use venice_ports::{monotonic_ns, wait_until};

use super::PAGE;
use super::coding::{Codec, Pieces};
use super::run_block::{Owner, ReplicaState, RunBlockMap};
use super::slab_window::SlabWindow;
use super::transfer::{Words, WriteOut, bytes_of, bytes_of_mut};

/// Mapped slabs, and the link to them if one is emulated.
pub struct ShmFar {
    window: Arc<SlabWindow>,
    /// Every access takes as long as over it.
    link: Option<AccessLink>,
    coded: Option<Coded>,
    owner: Owner,
    /// The thread's place among those that read mapped slabs, once it does.
    visitor: Option<usize>,
    /// It may have addresses of such.
    is_visiting: bool,
}

/// What coded pages are put together with.
struct Coded {
    codec: Codec,
    pieces: Pieces,
}

impl ShmFar {
    /// The way of one thread of `owner` to what `window` maps.
    pub fn new(block: &RunBlockMap, window: &Arc<SlabWindow>, owner: Owner) -> ShmFar {
        let coded = block.coding().map(|coding| {
            let (codec, pieces) = (Codec::new(coding), Pieces::new(coding));
            Coded { codec, pieces }
        });
        let (window, link) = (window.clone(), block.link().map(AccessLink::new));
        ShmFar { window, link, coded, owner, visitor: None, is_visiting: false }
    }

    /// Before it is looked up what can be read: from here on until [`ShmFar::end_visit`] no memory is
    /// freed that can be read now.
    pub fn begin_visit(&mut self, block: &RunBlockMap) {
        if std::mem::replace(&mut self.is_visiting, true) {
            return;
        }
        if self.visitor.is_none() {
            self.visitor = block.claim_visitor(self.owner);
        }
        if let Some(visitor) = self.visitor {
            block.begin_visit(visitor);
        }
    }

    /// No address that was looked up is used any more.
    pub fn end_visit(&mut self, block: &RunBlockMap) {
        if std::mem::take(&mut self.is_visiting)
            && let Some(visitor) = self.visitor
        {
            block.end_visit(visitor);
        }
    }

    /// The thread reads no more.
    pub fn close(&mut self, block: &RunBlockMap) {
        self.is_visiting = false;
        if let Some(visitor) = self.visitor.take() {
            block.free_visitor(visitor);
        }
    }

    /// When an access that starts now is over; 0 if no link is emulated.
    fn due_ns(&mut self, over: impl FnOnce(&mut AccessLink, u64) -> u64) -> u64 {
        self.link.as_mut().map_or(0, |link| over(link, monotonic_ns()))
    }

    /// Waits as long as reading so much takes over the link.
    pub fn hold_for_bytes(&mut self, len_bytes: usize) {
        wait_until(self.due_ns(|link, now_ns| link.bulk_read_ns(now_ns, len_bytes)));
    }

    /// The address of what a slot holds: in a replica that can be read, until [`ShmFar::end_visit`],
    /// or, coded, put together here until the next call.
    pub fn address(&mut self, block: &RunBlockMap, slot: u32) -> Option<usize> {
        self.begin_visit(block);
        let ShmFar { window, coded, .. } = self;
        let slab = block.slab_of(slot);
        let Some(coded) = coded else {
            let offset = block.offset_of(slot);
            return block.look(slab, || {
                let mut replicas = block.readable(slab);
                replicas.find_map(|(replica, _)| window.address(replica, offset))
            });
        };
        let put = block.look(slab, || coded.put_together(block, window, slot).then_some(()));
        put.map(|()| coded.pieces.page().as_ptr() as usize)
    }

    /// Writes all of `pages`.
    pub fn write_all(&mut self, block: &RunBlockMap, pages: &mut [WriteOut]) {
        let len_bytes = pages.iter().map(|page| page.len_bytes as usize).sum();
        let due_ns = self.due_ns(|link, now_ns| link.bulk_write_ns(now_ns, len_bytes));
        for page in pages {
            self.write(block, page);
        }
        wait_until(due_ns);
    }

    fn write(&mut self, block: &RunBlockMap, page: &mut WriteOut) {
        let ShmFar { window, coded, .. } = self;
        let targets = block.targets(block.slab_of(page.slot));
        page.is_marking = targets.is_marking;
        if let Some(coded) = coded {
            coded.take_apart(page);
        }
        let offset = block.offset_of(page.slot) + page.skip_bytes as usize;
        for replica in targets.replicas() {
            let entry = &block.replicas()[replica];
            let (source, len_bytes) = match coded {
                None => (page.source as *const u8, page.len_bytes as usize),
                Some(coded) => {
                    let fragment = coded.pieces.fragment(entry.fragment());
                    (fragment.as_ptr(), fragment.len())
                }
            };
            // SAFETY: the source stays as it is until this is done; the slot is written by this
            // thread alone, or by a copier that takes a torn page for what it is.
            let is_there = unsafe { window.put(replica, offset, source, len_bytes) };
            page.is_missed |= !is_there && !block.give_up(entry);
            if is_there && block.state(entry) == ReplicaState::Live {
                page.reached |= 1 << entry.fragment();
            }
        }
    }

    /// Changes eight bytes of a slot in one replica; `None`: that cannot be mapped here.
    pub fn atomic(
        &mut self,
        block: &RunBlockMap,
        replica: usize,
        slot: u32,
        skip_bytes: u32,
        atomic: Atomic,
    ) -> Option<u64> {
        let request_bytes = match atomic {
            Atomic::FetchAdd(_) => 8,
            Atomic::CompareSwap { .. } => 16,
        };
        let due_ns = self.due_ns(|link, now_ns| link.single_ns(now_ns, request_bytes, 8));
        let at = self.window.address(replica, block.offset_of(slot))? + skip_bytes as usize;
        assert!(at.is_multiple_of(8), "checked by the caller");
        // SAFETY: eight aligned bytes of the mapped window, which lives as long as the lane that
        // asks; other processes use them atomically or know what they do.
        let number = unsafe { AtomicU64::from_ptr(at as *mut u64) };
        let old = match atomic {
            Atomic::FetchAdd(add) => number.fetch_add(add, Ordering::SeqCst),
            Atomic::CompareSwap { expected, new } => {
                match number.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(old) | Err(old) => old,
                }
            }
        };
        wait_until(due_ns);
        Some(old)
    }

    /// Reads what a replica has of `slots`.
    pub fn read_slots(
        &mut self,
        block: &RunBlockMap,
        replica: usize,
        slots: &[u32],
        pages: &mut [Words],
    ) -> bool {
        let len_bytes = block.fragment_bytes();
        let mut both = slots.iter().zip(pages);
        both.all(|(&slot, page)| {
            self.window.get(replica, block.offset_of(slot), &mut bytes_of_mut(page)[..len_bytes])
        })
    }

    /// Writes that to a replica.
    pub fn write_slots(
        &mut self,
        block: &RunBlockMap,
        replica: usize,
        slots: &[u32],
        pages: &mut [Words],
    ) -> bool {
        let len_bytes = block.fragment_bytes();
        let mut both = slots.iter().zip(pages);
        both.all(|(&slot, page)| {
            let source = bytes_of(page).as_ptr();
            // SAFETY: a page of our own; who writes the slot meanwhile marks it.
            unsafe { self.window.put(replica, block.offset_of(slot), source, len_bytes) }
        })
    }

    /// Computes a fragment of coded `slots` from others.
    pub fn compute_slots(
        &mut self,
        block: &RunBlockMap,
        fragment: usize,
        slots: &[u32],
        pages: &mut [Words],
    ) -> bool {
        let Some(coded) = &mut self.coded else { return false };
        let mut both = slots.iter().zip(pages);
        both.all(|(&slot, page)| {
            let is_there = coded.put_together(block, &self.window, slot);
            if is_there {
                let Coded { codec, pieces } = coded;
                codec.copy_fragment(pieces, fragment, bytes_of_mut(page));
            }
            is_there
        })
    }
}

impl Coded {
    /// Reads enough fragments of a slot, its own first, and completes the page; `false`: there are
    /// too few.
    fn put_together(&mut self, block: &RunBlockMap, window: &SlabWindow, slot: u32) -> bool {
        let Coded { codec, pieces } = self;
        let (coding, offset) = (codec.coding(), block.offset_of(slot));
        let at = block.fragments_at(block.slab_of(slot));
        let (mut put, mut left) = (0, coding.data());
        for fragment in 0..coding.fragments() {
            if left > 0
                && let Some(replica) = at.replica(fragment)
                && window.get(replica, offset, pieces.fragment(fragment))
            {
                (put, left) = (put | 1 << fragment, left - 1);
            }
        }
        if left == 0 {
            codec.complete(pieces, put);
        }
        left == 0
    }

    /// All fragments of a page.
    fn take_apart(&mut self, page: &WriteOut) {
        assert_eq!(page.len_bytes as usize, PAGE, "coded pages are written whole");
        // SAFETY: it does not change until the write is done.
        self.pieces.page().copy_from_slice(unsafe { page.bytes() });
        let coding = self.codec.coding();
        for fragment in coding.data()..coding.fragments() {
            self.codec.compute(&mut self.pieces, fragment);
        }
    }
}
