//! Far memory as one thread reaches it: mapped slabs, frames over UDP, or an RDMA device.
//!
//! Each thread has its own [`Far`], so no thread waits for another.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use venice_fabric::Atomic;
use venice_ports::verbs::VerbsError;

use super::PAGE;
use super::descriptors::Descriptors;
use super::framed::Framed;
use super::run_block::{Owner, PortKind, RunBlockMap, SLAB_SLOTS};
use super::shm_far::ShmFar;
use super::slab_window::SlabWindow;
use super::sys::{self, Errno};
use super::transfer::{Fetch, Words, WriteOut};
use super::udp_far::UdpDonors;
use super::verbs_far::VerbsDonors;
use super::write_behind::Disk;

/// Longest wait of a page without a claimed frame for room in the write-behind queue, nanoseconds.
const DISK_WAIT_NS: u64 = 2_000_000_000;
/// Interval of the checks for room, nanoseconds.
const LOOK_NS: u64 = 1_000_000;

/// One thread's access to the donors' slabs.
pub struct Far {
    port: Port,
    /// The thread's entry in the table of writers, if it writes.
    writer: Option<usize>,
    /// The write-behind file, if there is one.
    disk: Option<Disk>,
    /// True if the last page that was [`Fetch::Ready`] came from the disk.
    is_from_disk: bool,
}

enum Port {
    /// The slabs are mapped.
    Shm(Box<ShmFar>),
    /// Frames over UDP.
    Udp(Box<Framed<UdpDonors>>),
    /// Requests of an RDMA device.
    Verbs(Box<Framed<VerbsDonors>>),
}

/// An error of opening the access to the donors.
#[derive(Debug, thiserror::Error)]
pub enum FarError {
    /// The kernel gave no socket, or a donor's address is invalid.
    #[error("UDP port to the donors failed to open: {0}")]
    Udp(#[source] Errno),
    /// The donors are unreachable by RDMA.
    #[error("{}", with_cause(.0))]
    Verbs(#[source] VerbsError),
    /// A part of a coded page is neither readable nor writable.
    #[error("coded memory allows whole pages only: use copies instead")]
    Coded,
    /// The run has more writing threads than [`MAX_WRITERS`](super::run_block::MAX_WRITERS).
    #[error("writer limit reached: too many threads of this run write to far memory")]
    TooManyWriters,
}

/// Formats an error with its cause, because the shim prints one line only.
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

impl Far {
    /// Opens the access of one thread of `owner` to the donors of `block`; `window` maps their
    /// slabs.
    ///
    /// # Errors
    /// [`FarError::Udp`] or [`FarError::Verbs`] if the port cannot be opened.
    pub fn open(
        block: &RunBlockMap,
        window: Option<&Arc<SlabWindow>>,
        descriptors: &Arc<Descriptors>,
        owner: Owner,
    ) -> Result<Far, FarError> {
        let port = match (block.port(), window) {
            (PortKind::Shm, Some(window)) => Port::Shm(Box::new(ShmFar::new(block, window, owner))),
            (PortKind::Verbs, _) => VerbsDonors::open(block, descriptors)
                .map(|verbs| Port::Verbs(Box::new(Framed::new(verbs, block))))
                .map_err(FarError::Verbs)?,
            (PortKind::Udp, _) | (PortKind::Shm, None) => UdpDonors::open(block, descriptors)
                .map(|udp| Port::Udp(Box::new(Framed::new(udp, block))))
                .map_err(FarError::Udp)?,
        };
        Ok(Far { port, writer: None, disk: None, is_from_disk: false })
    }

    /// Opens an access over links of the simulator.
    #[cfg(test)]
    pub(super) fn simulated(block: &RunBlockMap, wire: super::survival::SimulatedWire) -> Far {
        let donors = UdpDonors::over(super::udp_far::wire::Wire::Simulated(Box::new(wire)));
        let port = Port::Udp(Box::new(Framed::new(donors, block)));
        Far { port, writer: None, disk: None, is_from_disk: false }
    }

    /// Adds an entry in the table of writers, for a thread that also writes.
    ///
    /// # Errors
    /// [`FarError::TooManyWriters`] if the table is full.
    pub fn writing(self, block: &RunBlockMap, owner: Owner) -> Result<Far, FarError> {
        let writer = block.claim_writer(owner).ok_or(FarError::TooManyWriters)?;
        Ok(Far { writer: Some(writer), ..self })
    }

    /// Sets the write-behind file by its descriptor; `None`: there is none.
    pub fn set_disk(&mut self, fd: Option<i32>) {
        self.disk = fd.map(Disk::new);
    }

    /// Claims frames so that `count` pages can be written without waiting for the disk; `false`:
    /// too many others wait, and none is claimed.
    pub fn reserve(&mut self, block: &RunBlockMap, count: usize) -> bool {
        let writer = self.writer.expect("opened with Far::writing");
        self.disk.as_mut().is_none_or(|disk| disk.reserve(block, writer, count))
    }

    /// Claims up to `count` frames, for a thread that goes on in any case: it keeps the claimed
    /// ones.
    pub fn reserve_more(&mut self, block: &RunBlockMap, count: usize) -> bool {
        let writer = self.writer.expect("opened with Far::writing");
        self.disk.as_mut().is_none_or(|disk| disk.reserve_more(block, writer, count))
    }

    /// Frees the claimed frames of a thread that writes nothing at present.
    pub fn release(&mut self, block: &RunBlockMap) {
        if let Some(disk) = &mut self.disk {
            disk.release(block);
        }
    }

    /// Frees the thread's entries among the writers and the readers of mapped slabs.
    pub fn close(&mut self, block: &RunBlockMap) {
        if let Some(writer) = self.writer.take() {
            block.free_writer(writer);
        }
        if let Port::Shm(shm) = &mut self.port {
            shm.close(block);
        }
    }

    /// Begins a read section, before the thread looks up a readable or writable replica itself.
    pub fn begin_read_section(&mut self, block: &RunBlockMap) {
        if let Port::Shm(shm) = &mut self.port {
            shm.begin_read_section(block);
        }
    }

    /// Ends the read section: the thread no longer uses any address that was [`Fetch::Ready`]. Call it
    /// often, because reclaimed memory is freed only after all threads have.
    pub fn end_read_section(&mut self, block: &RunBlockMap) {
        if let Port::Shm(shm) = &mut self.port {
            shm.end_read_section(block);
        }
    }

    /// True if every page is available at once, without a request.
    pub fn is_mapped(&self) -> bool {
        matches!(self.port, Port::Shm(_))
    }

    /// Requests the page in `slot`; [`Far::poll`] returns it with `token`. The address of
    /// [`Fetch::Ready`] is valid until [`Far::end_read_section`].
    pub fn fetch(&mut self, block: &RunBlockMap, slot: u32, token: u32) -> Fetch {
        self.fetch_part(block, slot, 0..PAGE as u32, token)
    }

    /// Requests the bytes `part` of `slot`; [`Far::poll`] returns them with `token`. The address of
    /// [`Fetch::Ready`] in coded memory, or from the disk, is valid until the next call.
    pub fn fetch_part(
        &mut self,
        block: &RunBlockMap,
        slot: u32,
        part: Range<u32>,
        token: u32,
    ) -> Fetch {
        let start = part.start as usize;
        let fetched = match &mut self.port {
            Port::Shm(shm) => match shm.address(block, slot) {
                Some(address) => Fetch::Ready(address + start),
                None => Fetch::Lost,
            },
            Port::Udp(udp) => udp.fetch(block, slot, part, token),
            Port::Verbs(verbs) => verbs.fetch(block, slot, part, token),
        };
        self.is_from_disk = false;
        match self.disk.as_mut().filter(|_| fetched == Fetch::Lost) {
            None => fetched,
            Some(disk) => {
                let page = disk.page(block, slot);
                self.is_from_disk = page.is_some();
                page.map_or(Fetch::Lost, |address| Fetch::Ready(address + start))
            }
        }
    }

    /// True if the last page that was [`Fetch::Ready`] came from the disk. Its neighbours in memory
    /// are not its neighbours in the slab then.
    pub fn is_from_disk(&self) -> bool {
        self.is_from_disk
    }

    /// Reads the page in `slot` from the write-behind file; `false` if that lacks it.
    pub fn read_disk(&mut self, block: &RunBlockMap, slot: u32, page: &mut Words) -> bool {
        let disk = self.disk.as_mut();
        disk.is_some_and(|disk| disk.pages(block, &[slot], std::slice::from_mut(page)))
    }

    /// Reads the page in `slot`, waits for it, and returns its address, which is that of `buffer`
    /// unless the slab is mapped. `None`: its donors are dead.
    pub fn fetch_at_once(
        &mut self,
        block: &RunBlockMap,
        slot: u32,
        buffer: &mut Words,
    ) -> Option<usize> {
        let here = buffer.as_ptr() as usize;
        let fetched = match &mut self.port {
            Port::Shm(shm) => shm.address(block, slot),
            Port::Udp(udp) => udp.fetch_at_once(block, slot, buffer).then_some(here),
            Port::Verbs(verbs) => verbs.fetch_at_once(block, slot, buffer).then_some(here),
        };
        fetched.or_else(|| self.read_disk(block, slot, buffer).then_some(here))
    }

    /// Writes all of `pages`. Returns when each is with all its donors or lost.
    ///
    /// # Panics
    /// If the thread has no entry among the writers ([`Far::writing`]).
    pub fn write_all(&mut self, block: &RunBlockMap, pages: &mut [WriteOut]) {
        let writer = self.writer.expect("opened with Far::writing");
        block.begin_batch(writer);
        for page in pages.iter_mut() {
            page.reached = 0;
            self.write_behind(block, writer, page);
        }
        match &mut self.port {
            Port::Shm(shm) => shm.write_all(block, pages),
            Port::Udp(udp) => udp.write_all(block, pages),
            Port::Verbs(verbs) => verbs.write_all(block, pages),
        }
        for page in pages.iter_mut() {
            if std::mem::take(&mut page.is_marking) {
                block.mark(page.slot);
            }
            if std::mem::take(&mut page.is_behind)
                && block.disk_replica(block.slab_of(page.slot)).is_some()
            {
                page.reached |= 1;
            }
            let is_short = (page.reached.count_ones() as usize) < block.data_fragments();
            page.lost = std::mem::take(&mut page.is_missed) | is_short;
        }
        block.end_batch(writer);
    }

    /// Queues a page for the write-behind file. The thread normally has a claimed frame. If not, it
    /// waits for a while, and then the file's replica misses the page.
    fn write_behind(&mut self, block: &RunBlockMap, writer: usize, page: &mut WriteOut) {
        let Some(disk) = &mut self.disk else { return };
        assert_eq!(page.len_bytes as usize, PAGE, "write-behind takes whole pages");
        let slab = block.slab_of(page.slot);
        let until_ns = sys::monotonic_ns() + DISK_WAIT_NS;
        while let Some((_, replica)) = block.disk_replica(slab) {
            // SAFETY: the page does not change until the write is done, and the slot is the caller's.
            page.is_behind = unsafe { disk.put(block, writer, page.slot, page.source) };
            if page.is_behind || sys::monotonic_ns() > until_ns && block.drop_replica(replica) {
                return;
            }
            sys::futex_wait(&AtomicU32::new(0), 0, Some(LOOK_NS), false);
        }
    }

    /// Reads one replica's part of `slots` to the beginning of each of `pages`, whatever its state;
    /// `false`: it failed.
    pub fn read_slots(
        &mut self,
        block: &RunBlockMap,
        replica: usize,
        slots: &[u32],
        pages: &mut [Words],
    ) -> bool {
        if block.is_disk_replica(replica) {
            return self.disk.as_mut().is_some_and(|disk| disk.pages(block, slots, pages));
        }
        match &mut self.port {
            Port::Shm(shm) => shm.read_slots(block, replica, slots, pages),
            Port::Udp(udp) => udp.move_slots(block, replica, slots, pages, false),
            Port::Verbs(verbs) => verbs.move_slots(block, replica, slots, pages, false),
        }
    }

    /// Writes `pages` to one replica, for a copier; `false`: it failed.
    pub fn write_slots(
        &mut self,
        block: &RunBlockMap,
        replica: usize,
        slots: &[u32],
        pages: &mut [Words],
    ) -> bool {
        match &mut self.port {
            Port::Shm(shm) => shm.write_slots(block, replica, slots, pages),
            Port::Udp(udp) => udp.move_slots(block, replica, slots, pages, true),
            Port::Verbs(verbs) => verbs.move_slots(block, replica, slots, pages, true),
        }
    }

    /// Computes a fragment of coded `slots` from others, with the result of [`Far::read_slots`];
    /// `false`: too few are left, or `stop` was set.
    pub fn compute_slots(
        &mut self,
        block: &RunBlockMap,
        fragment: usize,
        slots: &[u32],
        pages: &mut [Words],
        stop: &AtomicBool,
    ) -> bool {
        match &mut self.port {
            Port::Shm(shm) => shm.compute_slots(block, fragment, slots, pages),
            Port::Udp(udp) => udp.compute_slots(block, fragment, slots, pages, stop),
            Port::Verbs(verbs) => verbs.compute_slots(block, fragment, slots, pages, stop),
        }
    }

    /// Changes the eight bytes of a slot after `skip_bytes`, a multiple of eight, in one atomic
    /// step, and returns the earlier value; `None`: they are lost. The first readable copy is
    /// changed. The difference is added to the other copies, so that they agree in whatever order
    /// such changes reach them.
    ///
    /// # Panics
    /// If the thread has no entry among the writers ([`Far::writing`]), or the memory is coded.
    pub fn atomic(
        &mut self,
        block: &RunBlockMap,
        slot: u32,
        skip_bytes: u32,
        atomic: Atomic,
    ) -> Option<u64> {
        let writer = self.writer.expect("opened with Far::writing");
        assert!(block.coding().is_none(), "coded memory has no atomic accesses");
        let slab = block.slab_of(slot);
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
                    is_missed |= !is_there && !block.drop_replica(&block.replicas()[other]);
                }
            } else if old.is_none() && block.is_readable(&block.replicas()[first]) {
                // Not lost, but unreachable from here.
                break;
            }
        }
        if targets.is_marking {
            block.mark(slot);
        }
        block.end_batch(writer);
        // Otherwise the last live copy misses the change.
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
        match &mut self.port {
            Port::Shm(shm) => shm.atomic(block, replica, slot, skip_bytes, atomic),
            Port::Udp(udp) => udp.atomic(block, replica, slot, skip_bytes, atomic),
            Port::Verbs(verbs) => verbs.atomic(block, replica, slot, skip_bytes, atomic),
        }
    }

    /// The descriptors to poll for outstanding pages, prepared for a sleep (-1: none), and the
    /// longest sleep in milliseconds (-1: unlimited).
    pub fn wait_fds(&mut self, block: &RunBlockMap) -> ([i32; 2], i32) {
        match &mut self.port {
            Port::Shm(_) => ([-1, -1], -1),
            Port::Udp(udp) => {
                let fds = [udp.donors().fd(), udp.donors().arm_timer()];
                (fds, udp.sleep_ms(block))
            }
            Port::Verbs(verbs) => (verbs.donors().wait_fds(), verbs.sleep_ms(block)),
        }
    }

    /// Sends the requests made so far.
    pub fn flush(&mut self) {
        if let Port::Udp(udp) = &mut self.port {
            udp.flush();
        }
    }

    /// Waits a short time for an arrival.
    pub fn turn(&mut self) {
        match &mut self.port {
            Port::Shm(_) => {}
            Port::Udp(udp) => udp.turn(),
            Port::Verbs(verbs) => verbs.turn(),
        }
    }

    /// Sleeps for `time`.
    pub fn rest(&mut self, time: Duration) {
        match &mut self.port {
            Port::Shm(_) => std::thread::sleep(time),
            Port::Udp(udp) => udp.rest(time),
            Port::Verbs(verbs) => verbs.rest(time),
        }
    }

    /// Processes revocations by donors and records them in the run block, for a thread without
    /// outstanding requests.
    pub fn attend(&mut self, block: &RunBlockMap) {
        if let Port::Udp(udp) = &mut self.port {
            udp.attend(block);
        }
    }

    /// Returns the next page received (`true`) or lost with its donors (`false`).
    pub fn poll(&mut self, block: &RunBlockMap, buffer: &mut Words) -> Option<(u32, bool)> {
        match &mut self.port {
            Port::Shm(_) => None,
            Port::Udp(udp) => udp.poll(block, buffer),
            Port::Verbs(verbs) => verbs.poll(block, buffer),
        }
    }

    /// Waits the time that `pages` pages just fetched take over the emulated link, if one is
    /// emulated. The thread serves nothing meanwhile: the link carries one page at a time anyway.
    pub fn hold_for(&mut self, pages: usize) {
        self.hold_for_bytes(pages * PAGE);
    }

    /// Waits like [`Far::hold_for`] for `len_bytes` bytes.
    pub fn hold_for_bytes(&mut self, len_bytes: usize) {
        if let Port::Shm(shm) = &mut self.port {
            shm.hold_for_bytes(len_bytes);
        }
    }

    /// The slots before and after `slot` that are contiguous with it in memory when it is
    /// [`Fetch::Ready`].
    pub fn in_a_row(&self, block: &RunBlockMap, slot: u32) -> (u32, u32) {
        match block.coding() {
            None if !self.is_from_disk => (slot % SLAB_SLOTS, SLAB_SLOTS - 1 - slot % SLAB_SLOTS),
            // Coded pages and pages from the disk are buffered one at a time.
            _ => (0, 0),
        }
    }
}

/// Begins the batch of an atomic access, once the first readable copy is stable.
fn begin_atomic(block: &RunBlockMap, writer: usize, slab: usize) {
    loop {
        block.begin_batch(writer);
        if !block.is_releasing(slab) || block.first_readable(slab).is_none() {
            return;
        }
        block.end_batch(writer);
        sys::yield_now();
    }
}

/// The difference by which an atomic access changed the number, modulo 2^64.
fn change_of(atomic: Atomic, old: u64) -> u64 {
    match atomic {
        Atomic::FetchAdd(add) => add,
        Atomic::CompareSwap { expected, new } if expected == old => new.wrapping_sub(old),
        Atomic::CompareSwap { .. } => 0,
    }
}
