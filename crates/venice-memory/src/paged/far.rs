//! Far memory as one thread reaches it: by mapping, by frames over UDP, or by an RDMA device.
//!
//! Each thread has its own [`Far`], so none waits for another.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use venice_fabric::Atomic;
use venice_ports::channels::AccessLink;
use venice_ports::verbs::VerbsError;
use venice_ports::{hold_until, monotonic_ns};

use super::PAGE;
use super::descriptors::Descriptors;
use super::framed::Framed;
use super::run_block::{Owner, PortKind, ReplicaState, RunBlockMap, SLAB_SLOTS};
use super::slab_window::SlabWindow;
use super::sys::{self, Errno};
use super::transfer::{Fetch, Words, WriteOut};
use super::udp_far::UdpDonors;
use super::verbs_far::VerbsDonors;

/// One thread's way to the donors' slabs.
pub struct Far {
    way: Way,
    /// The thread's place among those that write, once it does.
    writer: Option<usize>,
}

enum Way {
    /// The slabs are mapped.
    Shm(ShmFar),
    /// They are asked for by frames.
    Udp(Box<Framed<UdpDonors>>),
    /// They are asked for by an RDMA device.
    Verbs(Box<Framed<VerbsDonors>>),
}

/// Why a thread has no way to the donors.
#[derive(Debug, thiserror::Error)]
pub enum FarError {
    /// The kernel gave no socket, or a donor's address is none.
    #[error("no UDP port to the donors can be opened ({0})")]
    Udp(#[source] Errno),
    /// They cannot be reached by RDMA.
    #[error("{}", with_cause(.0))]
    Verbs(#[source] VerbsError),
    /// Too many threads of this run write.
    #[error("more threads write to this run's far memory than it has places for")]
    TooManyWriters,
}

/// The shim says one line, so what caused an error stands in it.
fn with_cause(error: &VerbsError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

impl std::fmt::Debug for Far {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Far").field("writer", &self.writer).finish_non_exhaustive()
    }
}

/// Mapped slabs, and the link to them if one is emulated.
struct ShmFar {
    window: Arc<SlabWindow>,
    /// Every access takes as long as over it.
    link: Option<AccessLink>,
}

impl ShmFar {
    /// When an access that starts now is over; 0 if no link is emulated.
    fn due_ns(&mut self, over: impl FnOnce(&mut AccessLink, u64) -> u64) -> u64 {
        self.link.as_mut().map_or(0, |link| over(link, monotonic_ns()))
    }

    /// The address of a slot in a replica that can be read.
    fn address(&self, block: &RunBlockMap, slot: u32) -> Option<usize> {
        let mut replicas = block.readable((slot / SLAB_SLOTS) as usize);
        replicas.find_map(|(replica, _)| self.window.address(replica, slot))
    }

    fn write_all(&mut self, block: &RunBlockMap, pages: &mut [WriteOut]) {
        let len_bytes = pages.iter().map(|page| page.len_bytes as usize).sum();
        let due_ns = self.due_ns(|link, now_ns| link.bulk_write_ns(now_ns, len_bytes));
        for page in pages {
            let targets = block.targets((page.slot / SLAB_SLOTS) as usize);
            page.is_marking = targets.is_marking;
            page.lost = true;
            for replica in targets.replicas() {
                let WriteOut { source, slot, skip_bytes, len_bytes, .. } = *page;
                // SAFETY: the source stays as it is until this is done; the slot is written by
                // this thread alone, or by a copier that takes a torn page for what it is.
                let is_there =
                    unsafe { self.window.put(replica, slot, skip_bytes, source, len_bytes) };
                let entry = &block.replicas()[replica];
                page.is_missed |= !is_there && !block.give_up(entry);
                page.lost &= !is_there || block.state(entry) != ReplicaState::Live;
            }
        }
        hold_until(due_ns);
    }

    fn atomic(
        &mut self,
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
        let at = self.window.address(replica, slot)? + skip_bytes as usize;
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
        hold_until(due_ns);
        Some(old)
    }

    fn move_slots(
        &self,
        replica: usize,
        slots: &[u32],
        pages: &mut [Words],
        is_write: bool,
    ) -> bool {
        let mut both = slots.iter().zip(pages);
        both.all(|(&slot, page)| {
            if !is_write {
                return self.window.get(replica, slot, page);
            }
            let source = page.as_ptr() as usize;
            // SAFETY: a page of our own; who writes the slot meanwhile marks it.
            unsafe { self.window.put(replica, slot, 0, source, PAGE as u32) }
        })
    }
}

impl Far {
    /// A way for one thread to the donors of `block`; `window` is where their slabs are mapped.
    ///
    /// # Errors
    /// [`FarError`].
    pub fn open(
        block: &RunBlockMap,
        window: Option<&Arc<SlabWindow>>,
        descriptors: &Descriptors,
    ) -> Result<Far, FarError> {
        let way = match (block.port(), window) {
            (PortKind::Shm, Some(window)) => {
                let link = block.link().map(AccessLink::new);
                Way::Shm(ShmFar { window: window.clone(), link })
            }
            (PortKind::Verbs, _) => VerbsDonors::open(block, descriptors)
                .map(|verbs| Way::Verbs(Box::new(Framed::new(verbs))))
                .map_err(FarError::Verbs)?,
            _ => UdpDonors::open(block, descriptors)
                .map(|udp| Way::Udp(Box::new(Framed::new(udp))))
                .map_err(FarError::Udp)?,
        };
        Ok(Far { way, writer: None })
    }

    /// The same for a thread that writes too.
    ///
    /// # Errors
    /// [`FarError::TooManyWriters`].
    pub fn writing(self, block: &RunBlockMap, owner: Owner) -> Result<Far, FarError> {
        let writer = block.claim_writer(owner).ok_or(FarError::TooManyWriters)?;
        Ok(Far { writer: Some(writer), ..self })
    }

    /// Gives up the place among those that write.
    pub fn close(&mut self, block: &RunBlockMap) {
        if let Some(writer) = self.writer.take() {
            block.free_writer(writer);
        }
    }

    /// Is every page there at once, without waiting for an answer?
    pub fn is_mapped(&self) -> bool {
        matches!(self.way, Way::Shm(_))
    }

    /// Asks for the page in `slot`; `token` comes back with it.
    pub fn fetch(&mut self, block: &RunBlockMap, slot: u32, token: u32) -> Fetch {
        self.fetch_part(block, slot, 0..PAGE as u32, token)
    }

    /// Asks for `part` of what is in `slot`, in bytes; `token` comes back with it.
    pub fn fetch_part(
        &mut self,
        block: &RunBlockMap,
        slot: u32,
        part: Range<u32>,
        token: u32,
    ) -> Fetch {
        match &mut self.way {
            Way::Shm(shm) => match shm.address(block, slot) {
                Some(address) => Fetch::Ready(address + part.start as usize),
                None => Fetch::Lost,
            },
            Way::Udp(udp) => udp.fetch(block, slot, part, token),
            Way::Verbs(verbs) => verbs.fetch(block, slot, part, token),
        }
    }

    /// The page in `slot`, waited for: its address, which is that of `buffer` unless the slab is
    /// mapped. `None`: its donors are dead.
    pub fn fetch_at_once(
        &mut self,
        block: &RunBlockMap,
        slot: u32,
        buffer: &mut Words,
    ) -> Option<usize> {
        let arrived = match &mut self.way {
            Way::Shm(shm) => return shm.address(block, slot),
            Way::Udp(udp) => udp.fetch_at_once(block, slot, buffer),
            Way::Verbs(verbs) => verbs.fetch_at_once(block, slot, buffer),
        };
        arrived.then_some(buffer.as_ptr() as usize)
    }

    /// Writes all of `pages` out and returns when every one is with all its donors or lost.
    ///
    /// # Panics
    /// If this is not a [`Far::writing`] one.
    pub fn write_all(&mut self, block: &RunBlockMap, pages: &mut [WriteOut]) {
        let writer = self.writer.expect("a thread that writes has said so");
        block.begin_batch(writer);
        match &mut self.way {
            Way::Shm(shm) => shm.write_all(block, pages),
            Way::Udp(udp) => udp.write_all(block, pages),
            Way::Verbs(verbs) => verbs.write_all(block, pages),
        }
        for page in pages.iter_mut() {
            if std::mem::take(&mut page.is_marking) {
                block.mark(page.slot);
            }
            page.lost |= std::mem::take(&mut page.is_missed);
        }
        block.end_batch(writer);
    }

    /// Reads slots of one replica into `pages`, whatever its state; `false`: it failed.
    pub fn read_slots(
        &mut self,
        block: &RunBlockMap,
        replica: usize,
        slots: &[u32],
        pages: &mut [Words],
    ) -> bool {
        self.move_slots(block, replica, slots, pages, false)
    }

    /// Writes `pages` to slots of one replica, for a copier; `false`: it failed.
    pub fn write_slots(
        &mut self,
        block: &RunBlockMap,
        replica: usize,
        slots: &[u32],
        pages: &mut [Words],
    ) -> bool {
        self.move_slots(block, replica, slots, pages, true)
    }

    fn move_slots(
        &mut self,
        block: &RunBlockMap,
        replica: usize,
        slots: &[u32],
        pages: &mut [Words],
        is_write: bool,
    ) -> bool {
        match &mut self.way {
            Way::Shm(shm) => shm.move_slots(replica, slots, pages, is_write),
            Way::Udp(udp) => udp.move_slots(block, replica, slots, pages, is_write),
            Way::Verbs(verbs) => verbs.move_slots(block, replica, slots, pages, is_write),
        }
    }

    /// Changes the eight bytes of a slot after `skip_bytes`, a multiple of eight, as one step, and
    /// returns what was there before; `None`: they are lost. It is done to the first copy that can
    /// be read; the others are added what that changed by, so that they agree in whatever order
    /// such changes come to them.
    ///
    /// # Panics
    /// If this is not a [`Far::writing`] one.
    pub fn atomic(
        &mut self,
        block: &RunBlockMap,
        slot: u32,
        skip_bytes: u32,
        atomic: Atomic,
    ) -> Option<u64> {
        let writer = self.writer.expect("a thread that writes has said so");
        let slab = (slot / SLAB_SLOTS) as usize;
        begin_atomic(block, writer, slab);
        let targets = block.targets(slab);
        let (mut old, mut is_missed) = (None, false);
        while let Some(first) = block.first_readable(slab)
            && old.is_none()
        {
            old = self.atomic_on(block, first, slot, skip_bytes, atomic);
            if let Some(delta) = old.map(|old| change_of(atomic, old)).filter(|&delta| delta != 0) {
                let add = Atomic::FetchAdd(delta);
                for other in targets.replicas().filter(|&replica| replica != first) {
                    let is_there = self.atomic_on(block, other, slot, skip_bytes, add).is_some();
                    is_missed |= !is_there && !block.give_up(&block.replicas()[other]);
                }
            } else if old.is_none() && block.is_readable(&block.replicas()[first]) {
                // Not lost, but it cannot be reached from here.
                break;
            }
        }
        if targets.is_marking {
            block.mark(slot);
        }
        block.end_batch(writer);
        // The last copy that is live lacks it.
        old.filter(|_| !is_missed)
    }

    fn atomic_on(
        &mut self,
        block: &RunBlockMap,
        replica: usize,
        slot: u32,
        skip_bytes: u32,
        atomic: Atomic,
    ) -> Option<u64> {
        match &mut self.way {
            Way::Shm(shm) => shm.atomic(replica, slot, skip_bytes, atomic),
            Way::Udp(udp) => udp.atomic(block, replica, slot, skip_bytes, atomic),
            Way::Verbs(verbs) => verbs.atomic(block, replica, slot, skip_bytes, atomic),
        }
    }

    /// What to poll for pages that were asked for, readied for a sleep, -1: nothing; and for how
    /// many milliseconds at most, -1: for ever.
    pub fn wait_fds(&mut self, block: &RunBlockMap) -> ([i32; 2], i32) {
        match &mut self.way {
            Way::Shm(_) => ([-1, -1], -1),
            Way::Udp(udp) => {
                let fds = [udp.donors().fd(), udp.donors().arm_timer()];
                (fds, udp.sleep_ms(block))
            }
            Way::Verbs(verbs) => (verbs.donors().wait_fds(), verbs.sleep_ms(block)),
        }
    }

    /// Sends what was asked for.
    pub fn flush(&mut self) {
        if let Way::Udp(udp) = &mut self.way {
            udp.flush();
        }
    }

    /// Waits a little for something to come.
    pub fn turn(&mut self) {
        match &mut self.way {
            Way::Shm(_) => {}
            Way::Udp(udp) => udp.turn(),
            Way::Verbs(verbs) => verbs.turn(),
        }
    }

    /// Hears of donors that took their memory back, and has the pager know; for a thread that asks
    /// for nothing at present.
    pub fn attend(&mut self, block: &RunBlockMap) {
        if let Way::Udp(udp) = &mut self.way {
            udp.attend(block);
        }
    }

    /// The next page that came (`true`) or will not come: its donors are dead (`false`).
    pub fn poll(&mut self, block: &RunBlockMap, buffer: &mut Words) -> Option<(u32, bool)> {
        match &mut self.way {
            Way::Shm(_) => None,
            Way::Udp(udp) => udp.poll(block, buffer),
            Way::Verbs(verbs) => verbs.poll(block, buffer),
        }
    }

    /// With an emulated link: waits as long as `pages` pages that were just fetched would have
    /// taken over it. Nobody else is served meanwhile; the link carries one page at a time anyway.
    pub fn hold_for(&mut self, pages: usize) {
        self.hold_for_bytes(pages * PAGE);
    }

    /// As [`Far::hold_for`], for so many bytes.
    pub fn hold_for_bytes(&mut self, len_bytes: usize) {
        if let Way::Shm(shm) = &mut self.way {
            hold_until(shm.due_ns(|link, now_ns| link.bulk_read_ns(now_ns, len_bytes)));
        }
    }

    /// How many slots from `slot` on lie in a row at the address of `slot`.
    pub fn contiguous_from(slot: u32) -> u32 {
        SLAB_SLOTS - slot % SLAB_SLOTS
    }
}

/// Begins the batch that an atomic access is, once the copy it is done to first does not change.
fn begin_atomic(block: &RunBlockMap, writer: usize, slab: usize) {
    loop {
        block.begin_batch(writer);
        if !block.is_turning(slab) || block.first_readable(slab).is_none() {
            return;
        }
        block.end_batch(writer);
        sys::yield_now();
    }
}

/// By how much an atomic access changed the number, modulo 2^64.
fn change_of(atomic: Atomic, old: u64) -> u64 {
    match atomic {
        Atomic::FetchAdd(add) => add,
        Atomic::CompareSwap { expected, new } if expected == old => new.wrapping_sub(old),
        Atomic::CompareSwap { .. } => 0,
    }
}
