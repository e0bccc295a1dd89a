//! Far memory accessed by byte ranges, for programs without page faults: a swap daemon, a library.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use venice_fabric::Atomic;

use super::PAGE;
use super::descriptors::Descriptors;
use super::far::{Far, FarError};
use super::pager::SharedWindow;
use super::run_block::{Owner, RunBlockMap};
use super::slab_window::{SlabSource, SlabWindow};
use super::transfer::{Fetch, MAX_IN_FLIGHT, Words, WriteOut};

/// The far memory of a run block, bytes `0..len_bytes()`, without a page table. Its user tracks the
/// use of its bytes.
#[derive(Debug)]
pub struct FarMemory {
    block: Arc<RunBlockMap>,
    window: Option<Arc<SlabWindow>>,
}

/// Pieces of a write that a lane has room for without allocation.
const OUTS: usize = 257;

/// A byte range to be read.
#[derive(Debug)]
pub struct ReadPart<'a> {
    /// First byte of the range.
    pub offset: u64,
    /// The destination. Pieces are stored as they arrive.
    pub into: &'a mut [u8],
    /// True if some bytes did not arrive: they are lost with their donor.
    pub is_lost: bool,
}

/// A byte range to be written.
#[derive(Debug)]
pub struct WritePart<'a> {
    /// First byte of the range.
    pub offset: u64,
    /// The source.
    pub from: &'a [u8],
    /// True if some bytes did not arrive: their donor is lost.
    pub is_lost: bool,
}

impl<'a> ReadPart<'a> {
    /// Creates a read of the bytes from `offset` on into `into`.
    pub fn new(offset: u64, into: &'a mut [u8]) -> ReadPart<'a> {
        ReadPart { offset, into, is_lost: false }
    }
}

impl<'a> WritePart<'a> {
    /// Creates a write of the bytes `from` to `offset`.
    pub fn new(offset: u64, from: &'a [u8]) -> WritePart<'a> {
        WritePart { offset, from, is_lost: false }
    }
}

/// An error of reading or writing bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    /// The range is not in the borrowed memory.
    #[error("bytes {offset}+{len_bytes} are beyond the {size_bytes} borrowed")]
    OutOfRange {
        /// First byte of the range.
        offset: u64,
        /// Length of the range, bytes.
        len_bytes: u64,
        /// Bytes borrowed.
        size_bytes: u64,
    },
    /// The offset of an atomic access is not a multiple of eight.
    #[error("atomic access at {0} failed: the offset is not a multiple of eight")]
    Unaligned(u64),
    /// The donor stopped answering during an atomic access, and answers again.
    #[error("atomic access at {offset}: unknown outcome, node {node} did not answer")]
    Unanswered {
        /// Offset of the access, bytes.
        offset: u64,
        /// Name of the donor.
        node: String,
    },
    /// The donors of some bytes are gone, and no other donor has them.
    #[error("bytes {offset}+{len_bytes}: some are lost with node {node}")]
    Lost {
        /// First byte of the range.
        offset: u64,
        /// Length of the range, bytes.
        len_bytes: u64,
        /// Names of the donors.
        node: String,
    },
}

impl FarMemory {
    /// Creates the far memory of `block`. `slabs` returns the descriptors of its replicas (shm
    /// port), which are mapped at their first use.
    ///
    /// # Errors
    /// The kernel's error if no address range is left.
    pub fn new(block: Arc<RunBlockMap>, slabs: SlabSource) -> Result<FarMemory, Errno> {
        let is_mapped = block.port().capabilities().mapped;
        let window = is_mapped.then(|| SlabWindow::new(&block, slabs)).transpose()?;
        Ok(FarMemory { block, window: window.map(Arc::new) })
    }

    /// Maps all current replicas (shm port), instead of at the first access to each. After that no
    /// access makes the kernel allocate memory. A replica that cannot be mapped counts as lost for
    /// the lanes, as at a first access.
    pub fn map_all(&self) {
        let Some(window) = &self.window else { return };
        for (index, replica) in self.block.replicas().iter().enumerate() {
            if self.block.is_written(replica) && !window.is_mapped(index) {
                let _ = window.address(index, 0);
            }
        }
    }

    /// Length of the far memory, bytes.
    pub fn len_bytes(&self) -> u64 {
        self.block.slab_count() as u64 * u64::from(self.block.slab_slots()) * PAGE as u64
    }

    /// True if there is no far memory.
    pub fn is_empty(&self) -> bool {
        self.len_bytes() == 0
    }

    /// The run block.
    pub fn block(&self) -> &Arc<RunBlockMap> {
        &self.block
    }

    /// Creates a lane for one thread.
    ///
    /// # Errors
    /// [`FarError::Coded`] if the memory is coded; otherwise the error of opening the port.
    pub fn lane(self: &Arc<Self>) -> Result<Lane, FarError> {
        if self.block.coding().is_some() {
            return Err(FarError::Coded);
        }
        let far = self.far()?.writing(&self.block, Owner::Lane)?;
        Ok(Lane {
            memory: self.clone(),
            far,
            awaited: [EMPTY; MAX_IN_FLIGHT],
            free: (0..MAX_IN_FLIGHT as u32).collect(),
            outs: Vec::with_capacity(OUTS),
        })
    }

    /// Marks the slot as used. Slots never written are not copied by repair.
    fn use_slot(&self, slot: u32) {
        let word = &self.block.holders()[slot as usize];
        if word.load(Ordering::Relaxed) == 0 {
            word.fetch_or(1, Ordering::AcqRel);
        }
    }

    fn check(&self, offset: u64, len_bytes: usize) -> Result<(), LaneError> {
        let (len_bytes, size_bytes) = (len_bytes as u64, self.len_bytes());
        match offset.checked_add(len_bytes) {
            Some(end) if end <= size_bytes => Ok(()),
            _ => Err(LaneError::OutOfRange { offset, len_bytes, size_bytes }),
        }
    }

    /// The mapped slabs (shm port).
    pub(super) fn shared_window(&self) -> Option<SharedWindow> {
        self.window.clone().map(SharedWindow)
    }

    pub(super) fn far(&self) -> Result<Far, FarError> {
        Far::open(&self.block, self.window.as_ref(), &Arc::new(Descriptors::new(0)), Owner::Lane)
    }

    /// The error of an atomic access without a result.
    fn unanswered(&self, offset: u64, slot: u32) -> LaneError {
        let readable = self.block.readable(self.block.slab_of(slot)).next();
        let Some((_, replica)) = readable else { return self.lost(offset, 8) };
        LaneError::Unanswered { offset, node: self.block.donors()[replica.donor()].name() }
    }

    fn lost(&self, offset: u64, len_bytes: usize) -> LaneError {
        let mut pieces = pieces(offset, len_bytes);
        let dead = pieces.find(|piece| !self.block.slot_is_alive(piece.slot));
        let slab = dead.map_or(0, |piece| self.block.slab_of(piece.slot));
        let had = self.block.replicas_of(slab).map(|(_, replica)| replica.donor());
        let names: Vec<_> = had.map(|donor| self.block.donors()[donor].name()).collect();
        LaneError::Lost { offset, len_bytes: len_bytes as u64, node: names.join(" and ") }
    }
}

/// One thread's access to a [`FarMemory`]. Accesses of one lane happen in their order. Concurrent
/// accesses of two lanes to the same bytes happen in any order, and in pieces; with several copies,
/// two such writes may leave these different. A read allocates nothing, and neither does a write of
/// up to a megabyte: a swap server must not wait for memory.
#[derive(Debug)]
pub struct Lane {
    memory: Arc<FarMemory>,
    far: Far,
    awaited: [Awaited; MAX_IN_FLIGHT],
    /// Tokens of `awaited` without an outstanding request; all of them between two calls.
    free: Vec<u32>,
    outs: Vec<WriteOut>,
}

/// An outstanding piece.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    part: usize,
    at: usize,
    len_bytes: usize,
}

const EMPTY: Awaited = Awaited { part: 0, at: 0, len_bytes: 0 };

impl Drop for Lane {
    fn drop(&mut self) {
        self.far.close(&self.memory.block);
    }
}

impl Lane {
    /// Reads the bytes from `offset` on into `into`.
    ///
    /// # Errors
    /// [`LaneError`]; with [`LaneError::Lost`] part of `into` may have been filled.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), LaneError> {
        let len_bytes = into.len();
        let mut part = [ReadPart::new(offset, into)];
        self.read_all(&mut part)?;
        if part[0].is_lost { Err(self.memory.lost(offset, len_bytes)) } else { Ok(()) }
    }

    /// Writes the bytes `from` to `offset`. They have arrived when it returns.
    ///
    /// # Errors
    /// [`LaneError`]; with [`LaneError::Lost`] part of them may have arrived.
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), LaneError> {
        let mut part = [WritePart::new(offset, from)];
        self.write_all(&mut part)?;
        if part[0].is_lost { Err(self.memory.lost(offset, from.len())) } else { Ok(()) }
    }

    /// Reads all of `parts`, many pieces at a time. Returns when each piece has arrived or is lost.
    ///
    /// # Errors
    /// [`LaneError::OutOfRange`], before any read.
    pub fn read_all(&mut self, parts: &mut [ReadPart<'_>]) -> Result<(), LaneError> {
        for part in parts.iter_mut() {
            part.is_lost = false;
            self.memory.check(part.offset, part.into.len())?;
        }
        let mut free = std::mem::take(&mut self.free);
        for index in 0..parts.len() {
            for piece in pieces(parts[index].offset, parts[index].into.len()) {
                self.request(parts, index, piece, &mut free);
            }
        }
        while free.len() < MAX_IN_FLIGHT {
            self.take_arrivals(parts, &mut free);
        }
        self.free = free;
        self.far.end_read_section(&self.memory.block);
        Ok(())
    }

    /// Adds to the eight bytes at `offset`, a little-endian number that wraps around, in one atomic
    /// step, and returns the earlier value. It is atomic as long as no donor of it is lost
    /// meanwhile.
    ///
    /// # Errors
    /// [`LaneError`].
    pub fn fetch_add(&mut self, offset: u64, add: u64) -> Result<u64, LaneError> {
        self.atomic(offset, Atomic::FetchAdd(add))
    }

    /// Replaces the eight bytes at `offset` by `new` if they are `expected`, in one atomic step
    /// like [`Lane::fetch_add`], and returns the earlier value.
    ///
    /// # Errors
    /// [`LaneError`].
    pub fn compare_swap(&mut self, offset: u64, expected: u64, new: u64) -> Result<u64, LaneError> {
        self.atomic(offset, Atomic::CompareSwap { expected, new })
    }

    fn atomic(&mut self, offset: u64, atomic: Atomic) -> Result<u64, LaneError> {
        self.memory.check(offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(LaneError::Unaligned(offset));
        }
        let slot = (offset / PAGE as u64) as u32;
        self.memory.use_slot(slot);
        let old = self.far.atomic(&self.memory.block, slot, (offset % PAGE as u64) as u32, atomic);
        old.ok_or_else(|| self.memory.unanswered(offset, slot))
    }

    fn request(
        &mut self,
        parts: &mut [ReadPart<'_>],
        part: usize,
        piece: Piece,
        free: &mut Vec<u32>,
    ) {
        let len_bytes = piece.within.len();
        loop {
            let Some(&token) = free.last() else {
                self.take_arrivals(parts, free);
                continue;
            };
            let within = piece.within.clone();
            match self.far.fetch_part(&self.memory.block, piece.slot, within, token) {
                Fetch::Ready(source) => {
                    // SAFETY: mapped for as long as the memory is, and within a slot of it.
                    let bytes =
                        unsafe { std::slice::from_raw_parts(source as *const u8, len_bytes) };
                    parts[part].into[piece.at..piece.at + len_bytes].copy_from_slice(bytes);
                    return self.far.hold_for_bytes(len_bytes);
                }
                Fetch::Pending => {
                    free.pop();
                    self.awaited[token as usize] = Awaited { part, at: piece.at, len_bytes };
                    return;
                }
                Fetch::Full => self.take_arrivals(parts, free),
                Fetch::Lost => {
                    parts[part].is_lost = true;
                    return;
                }
            }
        }
    }

    /// Waits for at least one arrival, and stores all of them.
    fn take_arrivals(&mut self, parts: &mut [ReadPart<'_>], free: &mut Vec<u32>) {
        let mut buffer = [0u64; PAGE / 8];
        let mut any = false;
        loop {
            while let Some((token, arrived)) = self.far.poll(&self.memory.block, &mut buffer) {
                any = true;
                free.push(token);
                let Awaited { part, at, len_bytes } = self.awaited[token as usize];
                let part = &mut parts[part];
                part.is_lost |= !arrived;
                if arrived {
                    copy_out(&buffer, &mut part.into[at..at + len_bytes]);
                }
            }
            if any {
                return;
            }
            self.far.turn();
        }
    }

    /// Writes all of `parts`, many pieces at a time. Returns when each piece is at its donor or
    /// lost.
    ///
    /// # Errors
    /// [`LaneError::OutOfRange`], before any write.
    pub fn write_all(&mut self, parts: &mut [WritePart<'_>]) -> Result<(), LaneError> {
        self.outs.clear();
        for part in parts.iter_mut() {
            part.is_lost = false;
            self.memory.check(part.offset, part.from.len())?;
            let source = part.from.as_ptr() as usize;
            for piece in pieces(part.offset, part.from.len()) {
                let (within, source) = (piece.within, source + piece.at);
                self.memory.use_slot(piece.slot);
                let len_bytes = within.len() as u32;
                self.outs.push(WriteOut::part(source, piece.slot, within.start, len_bytes));
            }
        }
        self.far.write_all(&self.memory.block, &mut self.outs);
        let mut outs = self.outs.iter();
        for part in parts {
            let count = pieces(part.offset, part.from.len()).count();
            part.is_lost = outs.by_ref().take(count).filter(|out| out.lost).count() > 0;
        }
        Ok(())
    }
}

/// The part of a range in one slot.
struct Piece {
    slot: u32,
    /// The bytes of the slot.
    within: Range<u32>,
    /// The offset in the range.
    at: usize,
}

fn pieces(offset: u64, len_bytes: usize) -> impl Iterator<Item = Piece> {
    let page = PAGE as u64;
    let end = offset + len_bytes as u64;
    let first = offset / page;
    let slots = if len_bytes == 0 { first..first } else { first..end.div_ceil(page) };
    slots.map(move |slot| {
        let (start, stop) = ((slot * page).max(offset), ((slot + 1) * page).min(end));
        Piece {
            slot: slot as u32,
            within: (start - slot * page) as u32..(stop - slot * page) as u32,
            at: (start - offset) as usize,
        }
    })
}

fn copy_out(words: &Words, into: &mut [u8]) {
    for (bytes, word) in into.chunks_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes()[..bytes.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paged::run_block::{Fate, PortKind, ReplicaAt};
    use std::os::fd::OwnedFd;

    fn memory(slabs: usize) -> Arc<FarMemory> {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, slabs, 1).unwrap();
        let mut memfds = Vec::new();
        for index in 0..slabs {
            let donor = block.add_donor(&format!("node{index}"), index as u32, "").unwrap();
            let at = ReplicaAt { donor, remote_addr: 0, grant: index as u64, key: 0 };
            block.add_slab(at).unwrap();
            let fd = rustix::fs::memfd_create("slab", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&fd, venice_wire::SLAB_BYTES).unwrap();
            memfds.push(fd);
        }
        let source: SlabSource = Box::new(move |replica| {
            memfds.get(replica).map(|fd: &OwnedFd| fd.try_clone().unwrap().into())
        });
        Arc::new(FarMemory::new(Arc::new(block), source).unwrap())
    }

    #[test]
    fn ranges_split_at_pages() {
        let cut: Vec<_> =
            pieces(4090, 4110).map(|piece| (piece.slot, piece.within, piece.at)).collect();
        assert_eq!(cut, [(0, 4090..4096, 0), (1, 0..4096, 6), (2, 0..8, 4102)]);
        assert_eq!(pieces(4096, 0).count(), 0);
    }

    #[test]
    fn writes_and_atomics_read_back() {
        let memory = memory(2);
        let mut lane = memory.lane().unwrap();
        let bytes: Vec<u8> = (0..20_000u32).map(|at| (at % 251) as u8).collect();
        let offset = venice_wire::SLAB_BYTES - 10_001;
        lane.write(offset, &bytes).unwrap();
        let mut back = vec![0; bytes.len()];
        memory.lane().unwrap().read(offset, &mut back).unwrap();
        assert!(back == bytes);
        let end = memory.len_bytes();
        assert!(matches!(lane.read(end - 1, &mut [0; 2]), Err(LaneError::OutOfRange { .. })));
        assert!(matches!(lane.write(u64::MAX, &[1]), Err(LaneError::OutOfRange { .. })));
        lane.read(end, &mut []).unwrap();
        assert_eq!(lane.fetch_add(end - 8, 5), Ok(0));
        assert_eq!(lane.compare_swap(end - 8, 5, u64::MAX), Ok(5));
        assert_eq!(lane.compare_swap(end - 8, 5, 7), Ok(u64::MAX));
        assert_eq!(lane.fetch_add(end - 8, 2), Ok(u64::MAX));
        lane.read(end - 8, &mut back[..8]).unwrap();
        assert_eq!(back[..8], 1u64.to_le_bytes());
        assert_eq!(lane.fetch_add(12, 1), Err(LaneError::Unaligned(12)));
        assert!(matches!(lane.fetch_add(end, 1), Err(LaneError::OutOfRange { .. })));
    }

    #[test]
    fn ready_page_stays_until_section_ends() {
        let memory = memory(1);
        let block = memory.block();
        memory.lane().unwrap().write(0, &[7; 8]).unwrap();
        let mut far = memory.far().unwrap();
        let Fetch::Ready(_) = far.fetch(block, 0, 0) else { panic!("it is mapped") };
        block.donors()[0].lose(Fate::Died);
        let noted = block.accesses();
        assert!(!block.are_accesses_over(&noted), "a read is under way");
        assert_eq!(far.fetch(block, 0, 0), Fetch::Lost);
        assert!(!block.are_accesses_over(&noted), "the address is still in use");
        far.end_read_section(block);
        assert!(block.are_accesses_over(&noted));
        assert_eq!(far.fetch(block, 0, 0), Fetch::Lost);
        let noted = block.accesses();
        far.close(block);
        assert!(block.are_accesses_over(&noted), "a closed thread reads nothing");
        let mut lane = memory.lane().unwrap();
        assert!(lane.read(0, &mut [0; 8]).is_err());
        assert!(
            block.are_accesses_over(&block.accesses()),
            "a lane ends its read section after a read"
        );
    }

    #[test]
    fn unreachable_last_copy_is_kept() {
        let memory = memory(2);
        let nowhere = FarMemory::new(memory.block().clone(), Box::new(|_| None)).unwrap();
        let (mut lane, mut other) = (memory.lane().unwrap(), Arc::new(nowhere).lane().unwrap());
        lane.write(0, &[7; 8]).unwrap();
        assert!(matches!(other.write(0, &[9; 8]), Err(LaneError::Lost { .. })));
        assert!(other.fetch_add(0, 1).is_err() && other.read(0, &mut [0; 8]).is_err());
        let mut back = [0; 8];
        lane.read(0, &mut back).unwrap();
        assert_eq!(back, [7; 8], "the last copy stays");
    }

    #[test]
    fn dead_donor_fails_only_its_bytes() {
        let memory = memory(2);
        let mut lane = memory.lane().unwrap();
        memory.block().donors()[1].lose(Fate::Died);
        let (mut here, mut gone) = ([0u8; 16], [0u8; 16]);
        let mut parts =
            [ReadPart::new(0, &mut here), ReadPart::new(venice_wire::SLAB_BYTES, &mut gone)];
        lane.read_all(&mut parts).unwrap();
        assert_eq!(parts.map(|part| part.is_lost), [false, true]);
        let error = lane.write(venice_wire::SLAB_BYTES - 4, &[1; 8]).unwrap_err();
        assert!(error.to_string().contains("node1"), "{error}");
        assert!(matches!(lane.fetch_add(venice_wire::SLAB_BYTES, 1), Err(LaneError::Lost { .. })));
    }
}
