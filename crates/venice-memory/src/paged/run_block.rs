//! The run block: memory that `venice run` and the processes of its program share.
//!
//! One memfd, made by the supervisor and mapped by every process with an attached shim. It holds
//! the budget, the donors and their slabs, the table of processes, the counters of `--stats`, and
//! for each far slot the set of processes that hold it.
//!
//! Invariant: everything in it is atomic, and no process ever waits here for another one. A process
//! killed at any instruction harms no other process.

mod activity;
mod contents;
mod disk_frames;
mod donor;
mod end_messages;
mod fault_times;
mod layout;
mod log_histogram;
mod page_sizes;
mod processes;
mod readers;
mod reclaim;
mod refault_distances;
mod replicas;
mod slab_locations;
mod slab_states;
mod suspicion;
mod writers;

use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use venice_fabric::LinkModel;

use self::activity::ActivityTable;
pub use self::activity::Owner;
pub use self::disk_frames::FRAMES as BEHIND_FRAMES;
pub use self::donor::{Donor, Fate, HERE};
pub use self::end_messages::{EndMessages, MESSAGE_BYTES};
pub use self::fault_times::FaultTimes;
pub use self::processes::{Charge, Process};
pub use self::readers::Accesses;
use self::readers::MAX_READERS;
pub use self::replicas::{
    FragmentsAt, MAX_COPIES, MAX_REPLICAS, MAX_SLAB_REPLICAS, Replica, ReplicaAt, ReplicaState,
    Slab, Targets,
};
pub use self::slab_locations::Mobility;
use self::slab_locations::SlabLocations;
pub use self::suspicion::{SILENT_LEASES, SuspicionOutcome, SuspicionResolver};
pub use self::writers::{Batches, MAX_WRITERS};
use super::coding::Coding;
use super::sys;
pub use venice_wire::PortKind;

/// Most processes of one run that page at a time. A holder is one bit of a 64-bit word.
pub const MAX_PROCESSES: usize = 64;
/// Most donors of one run, over its whole life. A further grant of the same node counts again.
pub const MAX_DONORS: usize = 2048;
/// Most slabs of one run (256 GiB).
pub const MAX_SLABS: usize = 1 << 14;
/// Far slots (pages) of a slab that is not coded. See [`RunBlock::slab_slots`].
pub const SLAB_SLOTS: u32 = (venice_wire::SLAB_BYTES / super::PAGE as u64) as u32;

/// Replicas over a run's whole life for each replica it begins with: donors come and go.
const LIVES_OF_A_REPLICA: usize = 256;

/// The lease assumed until [`RunBlock::set_lease`] is called.
const LEASE_BY_DEFAULT: Duration = Duration::from_secs(10);

const MAGIC: u64 = u64::from_le_bytes(*b"VENRUN23");

/// Counters over all processes of a run.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Counters {
    /// Faults served.
    pub faults: AtomicU64,
    /// Faults on pages never written before.
    pub zero_faults: AtomicU64,
    /// Faults on pages that were still staged. No donor was contacted.
    pub staged_faults: AtomicU64,
    /// Faults that waited for a donor.
    pub far_faults: AtomicU64,
    /// Faults of all these that were served in the thread that touched the page.
    pub in_thread_faults: AtomicU64,
    /// Faults of all these whose threads were left to a waker.
    pub left_to_waker: AtomicU64,
    /// Faults left to a waker that woke the thread too late.
    pub woken_late: AtomicU64,
    /// Moves of a handler to another processor.
    pub handler_moves: AtomicU64,
    /// Pages brought in, prefetched ones included.
    pub pages_in: AtomicU64,
    /// Pages prefetched from far memory.
    pub read_ahead: AtomicU64,
    /// Pages prefetched from the staging buffer: they had not left yet, and are not among those
    /// brought in.
    pub staged_ahead: AtomicU64,
    /// Prefetched pages that were used: a stream has passed them, or a thread waited for them.
    pub prefetch_used: AtomicU64,
    /// Prefetched pages that were wasted: evicted unused.
    pub prefetch_wasted: AtomicU64,
    /// Pages of 4 KiB brought in beside the touched one, as parts of the same large page.
    pub large_in: AtomicU64,
    /// Huge pages brought in whole, as huge pages.
    pub huge_in: AtomicU64,
    /// Huge pages brought in at once, but as 512 small pages.
    pub huge_in_small: AtomicU64,
    /// Allocations of a huge page refused: the machine had no 2 MiB of contiguous memory.
    pub huge_refused: AtomicU64,
    /// Faults on huge-page memory that brought in less than a huge page: part of it was resident or
    /// lost, a fork was under way, or there was no room.
    pub huge_in_part: AtomicU64,
    /// Huge pages evicted whole.
    pub huge_out: AtomicU64,
    /// Pages brought in because the program announced their use (`MADV_WILLNEED`).
    pub wanted_in: AtomicU64,
    /// Pages evicted early or at once because the program advised it.
    pub advised_out: AtomicU64,
    /// Pages written back. In a window: pages placed in far memory.
    pub pages_out: AtomicU64,
    /// Pages evicted without a write: the far copy was clean.
    pub clean_drops: AtomicU64,
    /// Pages evicted without a write: they held only zeros.
    pub zero_drops: AtomicU64,
    /// Pages lost with a donor and touched since.
    pub lost_pages: AtomicU64,
    /// Failed write-backs: all far memory was in use.
    pub far_full: AtomicU64,
    /// Processes that attached, forked children among them.
    pub processes: AtomicU64,
    /// Pages written to the disk by write-behind.
    pub behind_out: AtomicU64,
    /// Pages read from the write-behind file, because no donor had them.
    pub behind_in: AtomicU64,
    /// Delays of an eviction because too many pages waited for the disk.
    pub behind_waits: AtomicU64,
}

/// The shared block of a run. See the module's documentation.
#[derive(Debug)]
#[repr(C)]
pub struct RunBlock {
    magic: u64,
    port: AtomicU32,
    /// Budget of all processes together, in pages.
    pub limit_pages: AtomicU64,
    /// Most pages prefetched at once; 0 turns read-ahead off.
    pub read_ahead_pages: AtomicU32,
    slabs_in_use: AtomicU32,
    donors_in_use: AtomicU32,
    replicas_in_use: AtomicU32,
    slot_count: u32,
    replica_limit: u32,
    /// Frames for pages waiting for the disk; 0 without write-behind.
    behind_frames: u32,
    /// Index of the file's replica of the first slab, plus one; 0 without a file.
    first_on_disk: AtomicU32,
    /// Lease of a grant in milliseconds; 0: unknown.
    lease_ms: AtomicU64,
    /// Copies kept of each slab, or of each fragment of a coded slab.
    pub copies: AtomicU32,
    /// The coding of the slabs as `data` and `parity` of [`Coding`]; 1 and 0: not coded.
    coding: [u32; 2],
    /// Copies, or fragments, of slabs lost since the run began and to be rebuilt.
    pub to_rebuild: AtomicU64,
    /// Copies, or fragments, rebuilt since the run began.
    pub rebuilt: AtomicU64,
    /// Replicas that donors have reclaimed since the run began.
    pub to_move: AtomicU64,
    /// Reclaimed replicas already moved to another donor.
    pub moved: AtomicU64,
    /// Secret seed of the page fingerprints.
    pub fingerprint_seed: AtomicU64,
    /// Node id of this recipient.
    pub node: AtomicU32,
    /// The program's own soft limit on descriptors, until its first process has restored it.
    pub program_descriptor_limit: AtomicU64,
    /// Bytes of the pager in each of [`MEMORY_LIMITS`](super::rlimits::MEMORY_LIMITS), at the start
    /// of the first process.
    pub limit_pads: [AtomicU64; 2],
    /// The device of the run's shared files, major number above minor; 0: there are none.
    pub shared_files_device: AtomicU64,
    /// Far slots in use.
    pub slots_used: AtomicU64,
    /// The most far slots that were in use at the end of an eviction.
    pub most_slots_used: AtomicU64,
    /// The shared hand: processes drop the pages that they share up to this position.
    pub shared_hand: AtomicU64,
    /// Pages by which the run was over its budget at the last measurement of shared memory
    /// ([`sharing`](super::sharing)), until a process has moved the shared hand on by as many.
    pub shared_excess: AtomicU64,
    /// 1: processes share far slots by their contents; one of them has forked.
    shares_contents: AtomicU32,
    /// 1: the slabs are mapped into the program, and no process pages.
    is_window: AtomicU32,
    /// Number of calls to the movers of windows.
    mover_calls: AtomicU32,
    /// 1: faults on large mappings are served in the thread that touches them.
    faults_in_thread: AtomicU32,
    /// The [`PageSize`](super::PageSize) of memory without advice.
    page_size: AtomicU32,
    /// The [`PageSize`](super::PageSize) of memory for which the program advises large pages.
    advised_page_size: AtomicU32,
    /// The link to emulate: latency and router in nanoseconds, bandwidth in bits per second; all 0:
    /// none.
    link: [AtomicU64; 3],
    /// The table of processes.
    pub processes: [Process; MAX_PROCESSES],
    /// The slab locations of each process, in a window.
    locations: [SlabLocations; MAX_PROCESSES],
    donors: [Donor; MAX_DONORS],
    slabs: [Slab; MAX_SLABS],
    replicas: [Replica; MAX_REPLICAS],
    writers: ActivityTable<MAX_WRITERS>,
    readers: ActivityTable<MAX_READERS>,
    /// 1: more threads read mapped slabs than the table has entries.
    has_uncounted_readers: AtomicU32,
    /// The messages with which processes end.
    pub end_messages: EndMessages,
    /// The counters.
    pub counters: Counters,
    histogram: [AtomicU64; log_histogram::BUCKETS],
    refault_distances: [AtomicU64; log_histogram::BUCKETS],
}

/// A mapping of the block in this process.
#[derive(Debug)]
pub struct RunBlockMap {
    block: *const RunBlock,
    len_bytes: usize,
}

// SAFETY: everything reachable through the mapping is atomic or never changes.
unsafe impl Send for RunBlockMap {}
// SAFETY: as above.
unsafe impl Sync for RunBlockMap {}

/// An error of making or mapping a run block.
#[derive(Debug, thiserror::Error)]
pub enum RunBlockError {
    /// The kernel refused.
    #[error("run block could not be {doing}")]
    Kernel {
        /// The operation that failed.
        doing: &'static str,
        /// The kernel's error.
        #[source]
        source: rustix::io::Errno,
    },
    /// The block has the layout of another version.
    #[error("run block has another version: use the shim and `venice` of one build")]
    Version,
    /// A limit of the run block is reached.
    #[error("limit reached: a run uses at most {limit} {what} in its life")]
    TooMany {
        /// The kind of object.
        what: &'static str,
        /// The most of that kind.
        limit: usize,
    },
}

fn kernel(doing: &'static str) -> impl Fn(rustix::io::Errno) -> RunBlockError {
    move |source| RunBlockError::Kernel { doing, source }
}

impl RunBlockMap {
    /// Makes a block for `slabs` slabs with `copies` copies each, and seals its size.
    ///
    /// # Errors
    /// [`RunBlockError::TooMany`] if `copies` exceeds [`MAX_COPIES`] or `slabs` exceeds
    /// [`MAX_SLABS`]; the kernel's error.
    pub fn create(
        port: PortKind,
        slabs: usize,
        copies: usize,
    ) -> Result<(OwnedFd, RunBlockMap), RunBlockError> {
        if copies > MAX_COPIES {
            return Err(RunBlockError::TooMany { what: "copies", limit: MAX_COPIES });
        }
        RunBlockMap::make(port, slabs, copies, [1, 0], 0)
    }

    /// Makes a block for a run with write-behind: far pages are written to a local file too
    /// ([`RunBlock::add_disk`]).
    ///
    /// # Errors
    /// [`RunBlockError::TooMany`] if `copies` exceeds [`MAX_COPIES`] or `slabs` exceeds
    /// [`MAX_SLABS`]; the kernel's error.
    pub fn create_write_behind(
        port: PortKind,
        slabs: usize,
        copies: usize,
    ) -> Result<(OwnedFd, RunBlockMap), RunBlockError> {
        if copies > MAX_COPIES {
            return Err(RunBlockError::TooMany { what: "copies", limit: MAX_COPIES });
        }
        RunBlockMap::make(port, slabs, copies, [1, 0], BEHIND_FRAMES as u32)
    }

    /// Makes a block for coded slabs. Each has the room of as many slabs as a page has data
    /// fragments.
    ///
    /// # Errors
    /// [`RunBlockError::TooMany`] if `slabs` exceeds [`MAX_SLABS`]; the kernel's error.
    pub fn create_coded(
        port: PortKind,
        slabs: usize,
        coding: Coding,
    ) -> Result<(OwnedFd, RunBlockMap), RunBlockError> {
        let coding = [coding.data() as u32, coding.parity() as u32];
        RunBlockMap::make(port, slabs, 1, coding, 0)
    }

    fn make(
        port: PortKind,
        slabs: usize,
        copies: usize,
        coding: [u32; 2],
        behind_frames: u32,
    ) -> Result<(OwnedFd, RunBlockMap), RunBlockError> {
        if slabs > MAX_SLABS {
            return Err(RunBlockError::TooMany { what: "slabs", limit: MAX_SLABS });
        }
        let [data, parity] = coding;
        let slot_count = slabs as u32 * SLAB_SLOTS * data;
        let len_bytes = len_bytes(slot_count, behind_frames);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("venice-run", flags).map_err(kernel("made"))?;
        rustix::fs::ftruncate(&fd, len_bytes as u64).map_err(kernel("sized"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(kernel("sealed"))?;
        let memory = map_fd(fd.as_fd(), len_bytes)?;
        // SAFETY: no other thread has the mapping yet.
        unsafe {
            (*memory).magic = MAGIC;
            (*memory).slot_count = slot_count;
            (*memory).behind_frames = behind_frames;
            (*memory).replica_limit =
                (slabs * copies * (data + parity) as usize * LIVES_OF_A_REPLICA) as u32;
            (*memory).coding = coding;
            (*memory).copies = AtomicU32::new(copies as u32);
            (*memory).port = AtomicU32::new(port as u32);
        }
        Ok((fd, RunBlockMap { block: memory, len_bytes }))
    }

    /// Maps the block of `fd`.
    ///
    /// # Errors
    /// [`RunBlockError::Version`] if the block has another layout; the kernel's error.
    pub fn open(fd: BorrowedFd<'_>) -> Result<RunBlockMap, RunBlockError> {
        let len_bytes = rustix::fs::fstat(fd).map_err(kernel("measured"))?.st_size as usize;
        if len_bytes < size_of::<RunBlock>() {
            return Err(RunBlockError::Version);
        }
        let block = map_fd(fd, len_bytes)?;
        let map = RunBlockMap { block, len_bytes };
        if map.magic != MAGIC || self::len_bytes(map.slot_count, map.behind_frames) != len_bytes {
            return Err(RunBlockError::Version);
        }
        Ok(map)
    }

    /// The processes that hold each far slot: bit `i` is process `i`.
    pub fn holders(&self) -> &[AtomicU64] {
        &self.tail()[..self.slot_count as usize]
    }

    /// One bit for each far slot: written while its slab was being copied.
    fn marks(&self) -> &[AtomicU64] {
        let first = self.slot_count as usize;
        &self.tail()[first..first + first / 64]
    }

    fn tail(&self) -> &[AtomicU64] {
        let words = tail_words(self.slot_count, self.behind_frames);
        // SAFETY: the block is followed by its tail, within the mapping.
        unsafe {
            let first = self.block.add(1).cast::<AtomicU64>();
            std::slice::from_raw_parts(first, words)
        }
    }
}

/// Returns the words that follow the block: a word of holders, a bit, and the words of the content
/// index for each slot. With frames also half a word for each slot, and a word for each frame.
fn tail_words(slot_count: u32, behind_frames: u32) -> usize {
    let slots = slot_count as usize;
    let behind = if behind_frames > 0 { slots / 2 + behind_frames as usize } else { 0 };
    slots + slots / 64 + behind + slots * contents::WORDS_PER_SLOT
}

fn len_bytes(slot_count: u32, behind_frames: u32) -> usize {
    let words = tail_words(slot_count, behind_frames) * size_of::<AtomicU64>();
    size_of::<RunBlock>() + words + RunBlockMap::frames_bytes(slot_count, behind_frames)
}

impl std::ops::Deref for RunBlockMap {
    type Target = RunBlock;

    fn deref(&self) -> &RunBlock {
        // SAFETY: mapped for as long as `self` lives; zeroed memory is a valid block.
        unsafe { &*self.block }
    }
}

impl Drop for RunBlockMap {
    fn drop(&mut self) {
        // SAFETY: all borrows of the block borrow `self`.
        unsafe { sys::unmap(self.block.cast_mut().cast(), self.len_bytes) };
    }
}

fn map_fd(fd: BorrowedFd<'_>, len_bytes: usize) -> Result<*mut RunBlock, RunBlockError> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
    let memory = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), len_bytes, protection, MapFlags::SHARED, fd, 0)
    };
    let memory = memory.map_err(kernel("mapped"))?;
    sys::lock_on_fault(memory as usize, len_bytes);
    sys::leave_out_of_dumps(memory as usize, len_bytes.next_multiple_of(super::PAGE));
    Ok(memory.cast())
}

impl RunBlock {
    /// The port of this run.
    pub fn port(&self) -> PortKind {
        let number = self.port.load(Ordering::Relaxed);
        let port = PortKind::ALL.into_iter().find(|port| *port as u32 == number);
        // Only `create` writes it.
        port.unwrap_or_else(|| panic!("run block: unknown port {number}"))
    }

    /// True if the slabs are mapped into the program itself ([`Window`](super::Window)).
    pub fn is_window(&self) -> bool {
        self.is_window.load(Ordering::Relaxed) != 0
    }

    /// Maps the slabs into the program. Called before any process attaches.
    pub fn set_window(&self) {
        self.is_window.store(1, Ordering::Relaxed);
    }

    /// True if faults on large mappings are served in the thread that touches them.
    pub fn faults_in_thread(&self) -> bool {
        self.faults_in_thread.load(Ordering::Relaxed) != 0
    }

    /// Enables in-thread faults, of mapped memory only. Called before any process attaches.
    ///
    /// # Panics
    /// If the run's port maps nothing.
    pub fn set_faults_in_thread(&self) {
        assert!(self.port().capabilities().mapped, "in-thread faults need mapped memory");
        self.faults_in_thread.store(1, Ordering::Relaxed);
    }

    /// The emulated link that every access to far memory takes the time of; `None`: none is
    /// emulated.
    pub fn link(&self) -> Option<LinkModel> {
        let [latency_ns, router_ns, bandwidth_bps] =
            [0, 1, 2].map(|at: usize| self.link[at].load(Ordering::Relaxed));
        let bandwidth_bps = NonZeroU64::new(bandwidth_bps);
        let link = LinkModel { latency_ns, router_ns, bandwidth_bps };
        (link != LinkModel::default()).then_some(link)
    }

    /// Sets the link to emulate. Called before any process attaches.
    pub fn set_link(&self, link: &LinkModel) {
        let bandwidth_bps = link.bandwidth_bps.map_or(0, NonZeroU64::get);
        let words = [link.latency_ns, link.router_ns, bandwidth_bps];
        for (word, value) in self.link.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The lease: the time for which a donor keeps a grant that is not renewed.
    pub fn lease(&self) -> Duration {
        match self.lease_ms.load(Ordering::Relaxed) {
            0 => LEASE_BY_DEFAULT,
            lease_ms => Duration::from_millis(lease_ms),
        }
    }

    /// Sets the lease.
    pub fn set_lease(&self, lease: Duration) {
        self.lease_ms.store(lease.as_millis() as u64, Ordering::Relaxed);
    }

    /// Adds a donor and returns its index.
    ///
    /// # Errors
    /// [`RunBlockError::TooMany`] after [`MAX_DONORS`] donors.
    pub fn add_donor(&self, name: &str, node: u32, udp: &str) -> Result<usize, RunBlockError> {
        let index = self.donors_in_use.load(Ordering::Relaxed) as usize;
        let too_many = RunBlockError::TooMany { what: "donors", limit: MAX_DONORS };
        let donor = self.donors.get(index).ok_or(too_many)?;
        donor.set_up(name, node, udp);
        self.donors_in_use.store(index as u32 + 1, Ordering::Release);
        Ok(index)
    }

    /// Checks that one more grant, and a replica in it, fit into the tables. Entries are never
    /// removed, so a long run may fill them.
    ///
    /// # Errors
    /// [`RunBlockError::TooMany`] if a table is full.
    /// [`RunBlockError::TooMany`].
    pub fn has_room(&self) -> Result<(), RunBlockError> {
        let limit = self.replica_limit();
        if self.donors().len() >= MAX_DONORS {
            return Err(RunBlockError::TooMany { what: "donors", limit: MAX_DONORS });
        }
        if self.replicas().len() >= limit {
            return Err(RunBlockError::TooMany { what: "copies of slabs", limit });
        }
        Ok(())
    }

    /// The donors in use.
    pub fn donors(&self) -> &[Donor] {
        &self.donors[..self.donors_in_use.load(Ordering::Acquire) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_wire::{GrantId, SealKey};

    fn at(donor: usize) -> ReplicaAt {
        ReplicaAt { donor, remote_addr: 0, grant: 1, key: 2 }
    }

    #[test]
    fn mappings_share_one_block() {
        let (fd, here) = RunBlockMap::create(PortKind::Udp, 2, 1).unwrap();
        let there = RunBlockMap::open(fd.as_fd()).unwrap();
        let donor = here.add_donor("node7", 7, "127.0.0.1:9").unwrap();
        assert!(there.donors()[donor].seal().is_none());
        let seal = (GrantId(5), SealKey(std::array::from_fn(|byte| byte as u8)));
        here.donors()[donor].set_seal(seal.0, seal.1);
        assert!(there.donors()[donor].seal() == Some(seal));
        here.add_slab(at(donor)).unwrap();
        here.add_slab(at(donor)).unwrap();
        assert!(here.add_slab(at(donor)).is_err(), "only two fit");
        assert_eq!(there.donors()[0].name(), "node7");
        assert_eq!(there.replicas()[1].slab(), 1);
        assert_eq!(there.holders().len(), 2 * SLAB_SLOTS as usize);
        here.donors()[0].lose(Fate::Revoked);
        here.donors()[0].lose(Fate::Died);
        assert_eq!(there.donors()[0].fate(), Some(Fate::Revoked), "the first cause stands");
        assert!(!there.slot_is_alive(0));
    }

    #[test]
    fn slab_survives_with_one_complete_replica() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 2).unwrap();
        for name in ["a", "b", "c"] {
            block.add_donor(name, 0, "").unwrap();
        }
        block.add_slab(at(0)).unwrap();
        let second = block.add_replica(0, at(1), ReplicaState::Live).unwrap();
        let indexes = |targets: Targets| targets.replicas().collect::<Vec<_>>();
        assert_eq!(indexes(block.targets(0)), [0, 1]);
        block.lose_donor_of(0, Fate::Died);
        assert!(block.slot_is_alive(SLAB_SLOTS - 1));
        let third = block.add_replica(0, at(2), ReplicaState::Building).unwrap();
        let targets = block.targets(0);
        assert!(targets.is_marking);
        assert_eq!(indexes(targets), [third, second], "it replaces the lost one");
        assert_eq!(block.readable(0).map(|(index, _)| index).collect::<Vec<_>>(), [second]);
        let [second, third] = [second, third].map(|replica| &block.replicas()[replica]);
        assert!(!block.drop_replica(second), "a replica being built is incomplete");
        let (from, to) = (ReplicaState::Building, ReplicaState::Live);
        assert!(block.transition(third, from, to) && !block.transition(second, from, to));
        assert!(block.drop_replica(second) && block.drop_replica(second), "dropping is idempotent");
        assert!(!block.drop_replica(third) && block.slot_is_alive(0));
        assert_eq!(block.state(&block.replicas()[0]), ReplicaState::Dropped, "its slot was reused");
        block.lose_donor_of(2, Fate::Died);
        assert!(!block.slot_is_alive(0), "a death needs no consent");
    }

    #[test]
    fn marks_taken_once_batches_end() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 2).unwrap();
        block.mark(65);
        assert!(!block.take_mark(64) && block.take_mark(65) && !block.take_mark(65));
        let (one, two) = (
            block.claim_writer(Owner::Process(3)).unwrap(),
            block.claim_writer(Owner::Lane).unwrap(),
        );
        block.begin_batch(one);
        let seen = block.batches();
        block.begin_batch(two);
        assert!(!block.are_over(&seen));
        block.end_batch(one);
        block.begin_batch(one);
        assert!(block.are_over(&seen), "a batch that began later is not waited for");
        let seen = block.batches();
        block.free_threads_of(Owner::Process(3));
        assert!(!block.are_over(&seen));
        block.free_writer(two);
        assert!(block.are_over(&seen), "a dead process writes no more");
    }
}
