//! Far memory that is mapped: slabs of donors on this machine.

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

/// Mapped slabs, with the emulated link if there is one.
pub struct ShmFar {
    window: Arc<SlabWindow>,
    /// The emulated link: every access takes the time of one over it.
    link: Option<AccessLink>,
    coded: Option<Coded>,
    owner: Owner,
    /// The thread's entry in the table of readers, once it reads.
    reader: Option<usize>,
    /// True while it may use addresses of mapped slabs.
    is_reading: bool,
}

/// The state for encoding and decoding pages.
struct Coded {
    codec: Codec,
    pieces: Pieces,
}

impl ShmFar {
    /// Creates the access of one thread of `owner` to the slabs that `window` maps.
    pub fn new(block: &RunBlockMap, window: &Arc<SlabWindow>, owner: Owner) -> ShmFar {
        let coded = block.coding().map(|coding| {
            let (codec, pieces) = (Codec::new(coding), Pieces::new(coding));
            Coded { codec, pieces }
        });
        let (window, link) = (window.clone(), block.link().map(AccessLink::new));
        ShmFar { window, link, coded, owner, reader: None, is_reading: false }
    }

    /// Begins a read section, before a readable replica is looked up. Until [`ShmFar::end_read_section`] no
    /// memory readable now is freed.
    pub fn begin_read_section(&mut self, block: &RunBlockMap) {
        if std::mem::replace(&mut self.is_reading, true) {
            return;
        }
        if self.reader.is_none() {
            self.reader = block.claim_reader(self.owner);
        }
        if let Some(reader) = self.reader {
            block.begin_read_section(reader);
        }
    }

    /// Ends the read section: no address looked up is used any more.
    pub fn end_read_section(&mut self, block: &RunBlockMap) {
        if std::mem::take(&mut self.is_reading)
            && let Some(reader) = self.reader
        {
            block.end_read_section(reader);
        }
    }

    /// Frees the thread's entry among the readers.
    pub fn close(&mut self, block: &RunBlockMap) {
        self.is_reading = false;
        if let Some(reader) = self.reader.take() {
            block.free_reader(reader);
        }
    }

    /// The end of an access that starts now, nanoseconds; 0 without an emulated link.
    fn due_ns(&mut self, over: impl FnOnce(&mut AccessLink, u64) -> u64) -> u64 {
        self.link.as_mut().map_or(0, |link| over(link, monotonic_ns()))
    }

    /// Waits the time of a read of `len_bytes` over the link.
    pub fn hold_for_bytes(&mut self, len_bytes: usize) {
        wait_until(self.due_ns(|link, now_ns| link.bulk_read_ns(now_ns, len_bytes)));
    }

    /// The address of a slot's contents: in a readable replica until [`ShmFar::end_read_section`]; of
    /// coded memory, in a buffer until the next call.
    pub fn address(&mut self, block: &RunBlockMap, slot: u32) -> Option<usize> {
        self.begin_read_section(block);
        let ShmFar { window, coded, .. } = self;
        let slab = block.slab_of(slot);
        let Some(coded) = coded else {
            let offset = block.offset_of(slot);
            return block.retry_on_change(slab, || {
                let mut replicas = block.readable(slab);
                replicas.find_map(|(replica, _)| window.address(replica, offset))
            });
        };
        let put = block.retry_on_change(slab, || coded.decode(block, window, slot).then_some(()));
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
            coded.encode(page);
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
            // SAFETY: the source does not change until this is done. The slot is written by this
            // thread alone, or by a copier that detects a torn page.
            let is_there = unsafe { window.put(replica, offset, source, len_bytes) };
            page.is_missed |= !is_there && !block.drop_replica(entry);
            if is_there && block.state(entry) == ReplicaState::Live {
                page.reached |= 1 << entry.fragment();
            }
        }
    }

    /// Changes eight bytes of a slot in one replica atomically; `None`: it cannot be mapped here.
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
        // SAFETY: eight aligned bytes of the mapped slab, which lives as long as the calling lane.
        // Other processes access them atomically, or accept torn values.
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

    /// Reads a replica's part of `slots`.
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

    /// Writes a replica's part of `slots`.
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
            // SAFETY: a page of our own; a thread that writes the slot meanwhile marks it.
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
            let is_there = coded.decode(block, &self.window, slot);
            if is_there {
                let Coded { codec, pieces } = coded;
                codec.copy_fragment(pieces, fragment, bytes_of_mut(page));
            }
            is_there
        })
    }
}

impl Coded {
    /// Reads enough fragments of a slot, data fragments first, and restores the page; `false`:
    /// there are too few.
    fn decode(&mut self, block: &RunBlockMap, window: &SlabWindow, slot: u32) -> bool {
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

    /// Computes all fragments of a page.
    fn encode(&mut self, page: &WriteOut) {
        assert_eq!(page.len_bytes as usize, PAGE, "coded pages are written whole");
        // SAFETY: the page does not change until the write is done.
        self.pieces.page().copy_from_slice(unsafe { page.bytes() });
        let coding = self.codec.coding();
        for fragment in coding.data()..coding.fragments() {
            self.codec.compute(&mut self.pieces, fragment);
        }
    }
}
