//! The shm port: the donor's slabs, mapped. An access is a copy without the donor's processor; over
//! an emulated link it takes the link's time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use venice_fabric::{FabricError, LinkModel};
use venice_ports::channels::Channels;
use venice_ports::shm::MappedSlab;

use super::lender::Lender;
use super::lent::WINDOW;
use super::{Bed, MEMORY_BYTES, half, sizes_of};
use crate::channels::buffer::PageAligned;
use crate::channels::measure::{Effort, Ends, on_cpu};
use crate::channels::path::FarEnd;
use crate::channels::series::{Medium, Operation, Point, Series, System};

/// Number of loads of a word before the other side counts as dead.
const MAX_LOOKS: u64 = 1 << 32;
/// Offset of the far end's answers: the other half of the first slab.
const FAR_OFFSET: usize = 8 << 20;
/// Words of one cache line.
const LINE_WORDS: usize = 8;
/// Outstanding CRMA accesses, or bytes and descriptors of bulk transfers, over a slow link.
const ACCESSES: usize = 64;
const BULK_BYTES: usize = 8 << 20;
const DESCRIPTORS: usize = 32;

/// A recipient with the donor's memory mapped.
pub(in crate::channels) struct ShmBed {
    pub(super) channels: Channels,
    bytes: PageAligned,
    is_slow: bool,
    under_way: usize,
    spare: Vec<Vec<u8>>,
    _lender: Lender,
}

impl ShmBed {
    /// Maps the memory.
    ///
    /// # Errors
    /// When the system gives no memory or socket.
    pub(in crate::channels) fn lay(model: Option<LinkModel>) -> Result<Self> {
        let lender = Lender::start()?;
        Ok(Self {
            channels: lender.channels(model)?,
            bytes: PageAligned::new(MEMORY_BYTES / 2, 0xa5),
            is_slow: model.is_some(),
            under_way: 0,
            spare: Vec::new(),
            _lender: lender,
        })
    }

    /// Starts an access; returns true if it was accepted.
    fn start(&mut self, operation: Operation, len: usize) -> Result<bool> {
        let channels = &mut self.channels;
        let begun = match operation {
            Operation::Read => channels.start_read(0, WINDOW, len as u32),
            Operation::Write => channels.start_write(0, WINDOW, &self.bytes[..len]),
            Operation::Atomic => channels.start_fetch_add(0, WINDOW, 1),
            Operation::BulkRead | Operation::BulkWrite => {
                let mut buffer = self.spare.pop().unwrap_or_default();
                buffer.resize(len, 0xa5);
                let begun = if operation == Operation::BulkRead {
                    channels.start_rdma_read(0, WINDOW, buffer)
                } else {
                    channels.start_rdma_write(0, WINDOW, buffer)
                };
                begun.map_err(|rejected| rejected.error)
            }
            other => bail!("{} is not an access", other.title()),
        };
        match begun {
            Ok(()) => {
                self.under_way += 1;
                Ok(true)
            }
            Err(FabricError::WouldBlock) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until an access completes; returns how many did.
    fn finish_some(&mut self) -> Result<usize> {
        let mut over = 0;
        look_until(|| {
            while let Some(done) = self.channels.poll()? {
                done.result.map_err(|error| anyhow!("an access failed: {error}"))?;
                over += 1;
            }
            while let Some(done) = self.channels.poll_rdma()? {
                done.result.map_err(|error| anyhow!("a bulk transfer failed: {error}"))?;
                self.spare.push(done.buffer);
                over += 1;
            }
            Ok(over > 0)
        })?;
        self.under_way -= over;
        Ok(over)
    }
}

impl Bed for ShmBed {
    fn once(&mut self, operation: Operation, len: usize) -> Result<()> {
        let len = std::hint::black_box(len);
        let (channels, bytes) = (&mut self.channels, &mut self.bytes);
        match operation {
            Operation::Read => channels.read(WINDOW, &mut bytes[..len])?,
            Operation::Write => channels.write(WINDOW, &bytes[..len])?,
            Operation::Atomic => drop(channels.fetch_add(WINDOW, 1)?),
            Operation::BulkRead => channels.rdma_read(WINDOW, &mut bytes[..len])?,
            Operation::BulkWrite => channels.rdma_write(WINDOW, &bytes[..len])?,
            other => bail!("{} is not an access", other.title()),
        }
        std::hint::black_box(bytes);
        Ok(())
    }

    /// Without a slow link the processor itself is the channel: one access after the other.
    fn many(&mut self, operation: Operation, len: usize) -> Result<u64> {
        if !self.is_slow {
            return self.once(operation, len).map(|()| len as u64);
        }
        let limit = match operation {
            Operation::BulkRead | Operation::BulkWrite => (BULK_BYTES / len).clamp(2, DESCRIPTORS),
            _ => ACCESSES,
        };
        while self.under_way < limit && self.start(operation, len)? {}
        Ok(self.finish_some()? as u64 * len as u64)
    }

    fn settle(&mut self) -> Result<()> {
        while self.under_way > 0 {
            self.finish_some()?;
        }
        Ok(())
    }
}

/// Returns the word at `offset`, a multiple of 8, as both ends see it.
fn word(slab: &MappedSlab, offset: usize) -> &AtomicU64 {
    assert!(offset.is_multiple_of(8) && offset + 8 <= slab.len_bytes());
    // SAFETY: an aligned word inside the mapping, which lives as long as the borrow; all who share
    // it use atomics too, or copy it whole.
    unsafe { AtomicU64::from_ptr(slab.as_ptr().add(offset).cast()) }
}

/// Returns the byte at `offset`, as both ends see it.
fn byte(slab: &MappedSlab, offset: usize) -> &AtomicU8 {
    assert!(offset < slab.len_bytes());
    // SAFETY: the same as in `word`; a byte is always aligned.
    unsafe { AtomicU8::from_ptr(slab.as_ptr().add(offset)) }
}

/// Polls until `found`.
fn look_until(mut found: impl FnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..MAX_LOOKS {
        if found()? {
            return Ok(());
        }
        std::hint::spin_loop();
    }
    bail!("the other core does not answer")
}

/// Measures one way of a write as other benchmarks do: each side writes to the other in turn, and
/// polls its last byte for the other's.
///
/// # Errors
/// When the far end cannot be started or stops answering.
pub(in crate::channels) fn one_way_writes(
    effort: &Effort,
    ends: Ends,
    sizes: &[u64],
) -> Result<Series> {
    let series = Series::new(System::Venice, Medium::Shm, Operation::Write, "");
    if ends.near_cpu == ends.far_cpu {
        return Ok(series.absent("needs two processors"));
    }
    let mut points = Vec::new();
    for size_bytes in sizes_of(Operation::Write, sizes) {
        let latency = half(write_and_answer(effort, ends, size_bytes as usize)?);
        points.push(Point { size_bytes, latency: Some(latency), bandwidth_bytes_per_s: None });
    }
    Ok(Series { points, ..series })
}

fn write_and_answer(
    effort: &Effort,
    ends: Ends,
    len: usize,
) -> Result<crate::channels::series::Latency> {
    let lender = Lender::start()?;
    let (mut near, mut far) = (lender.channels(None)?, lender.channels(None)?);
    let (near_memory, far_memory) = (lender.own_memory()?, lender.own_memory()?);
    for at in [len - 1, FAR_OFFSET + len - 1] {
        byte(&near_memory.slab, at).store(0, Ordering::Release);
    }
    let answer = move |(), stop: &AtomicBool| {
        let (mut bytes, mut turn) = (vec![0u8; len], 1u8);
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..1 << 14 {
                if byte(&far_memory.slab, len - 1).load(Ordering::Acquire) == turn {
                    bytes[len - 1] = turn;
                    // A failed write shows as a missing answer.
                    let _ = far.write(WINDOW + FAR_OFFSET as u64, &bytes);
                    turn = turn.wrapping_add(1);
                }
                std::hint::spin_loop();
            }
        }
    };
    let (_far, ()) = FarEnd::start(None, ends.far_cpu, || Ok(((), ())), answer)?;
    on_cpu(ends.near_cpu, || {
        let (mut bytes, mut turn) = (vec![0u8; len], 1u8);
        effort.latency(|| {
            bytes[len - 1] = turn;
            near.write(WINDOW, &bytes)?;
            let answered = byte(&near_memory.slab, FAR_OFFSET + len - 1);
            look_until(|| Ok(answered.load(Ordering::Acquire) == turn))?;
            turn = turn.wrapping_add(1);
            Ok(())
        })
    })
}

/// Measures reads of 64 bytes that the donor has just written: they come out of its processor's
/// cache, so they cost a read of shared data, not a read of the own cache.
///
/// # Errors
/// When the far end cannot be started or stops answering.
pub(in crate::channels) fn fresh_reads(effort: &Effort, ends: Ends) -> Result<Series> {
    let variant = "just written by the donor";
    let series = Series::new(System::Venice, Medium::Shm, Operation::Read, variant);
    if ends.near_cpu == ends.far_cpu {
        return Ok(series.absent("needs two processors"));
    }
    const DATA: usize = 0;
    const ASKED: usize = 4096;
    const WRITTEN: usize = 8192;
    let set = |slab: &MappedSlab, value: u64| {
        (0..LINE_WORDS).for_each(|at| word(slab, DATA + 8 * at).store(value, Ordering::Relaxed));
        word(slab, WRITTEN).store(value, Ordering::Release);
    };
    let lender = Lender::start()?;
    let mut near = lender.channels(None)?;
    let memory = Arc::new(lender.own_memory()?.slab);
    word(&memory, ASKED).store(0, Ordering::Release);
    set(&memory, 0);
    let theirs = Arc::clone(&memory);
    let answer = move |(), stop: &AtomicBool| {
        let mut turn = 1;
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..1 << 14 {
                if word(&theirs, ASKED).load(Ordering::Acquire) == turn {
                    set(&theirs, turn);
                    turn += 1;
                }
                std::hint::spin_loop();
            }
        }
    };
    let (_far, ()) = FarEnd::start(None, ends.far_cpu, || Ok(((), ())), answer)?;
    let latency = on_cpu(ends.near_cpu, || {
        let mut turn = 0u64;
        effort.latency_of(|| {
            turn += 1;
            word(&memory, ASKED).store(turn, Ordering::Release);
            look_until(|| Ok(word(&memory, WRITTEN).load(Ordering::Acquire) == turn))?;
            let mut line = [0u8; 8 * LINE_WORDS];
            let start = Instant::now();
            near.read(WINDOW + DATA as u64, &mut line)?;
            let line = std::hint::black_box(line);
            let ns = start.elapsed().as_nanos() as u64;
            if line.chunks(8).any(|word| word != turn.to_le_bytes()) {
                bail!("a read returned bytes other than the last written");
            }
            Ok(ns.saturating_sub(effort.clock_cost_ns))
        })
    })?;
    let point = Point { size_bytes: 64, latency: Some(latency), bandwidth_bytes_per_s: None };
    Ok(Series { points: vec![point], ..series })
}
