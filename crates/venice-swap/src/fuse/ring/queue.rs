//! A thread with a ring, on which the kernel slots the requests of one or several processors.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use venice_fuse::{MAX_TRANSFER_BYTES, REPLY_HEADER_BYTES, Reply};

use super::protocol::{Head, Turn, turn};
use crate::SwapError;
use crate::backing::Backing;
use crate::clock::monotonic_ns;
use crate::fuse::carry_out::{Exchange, carry_out};
use crate::fuse::protocol::{Call, Request};
use crate::mapping::Mapping;
use crate::ring_slots::{Slots, serve_slots};
use crate::store::Store;

/// A slot is a page with the [`Head`], and the payload.
const HEAD_BYTES: usize = 4096;
const SLOT_BYTES: usize = HEAD_BYTES + MAX_TRANSFER_BYTES;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// Checks that a ring may be made.
pub(super) fn check() -> Result<(), SwapError> {
    ring(1).map(drop)
}

fn ring(slots: usize) -> Result<Ring, SwapError> {
    // Work for the thread is done when it waits for more, not at each interrupt.
    let ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(slots.next_power_of_two() as u32);
    ring.map_err(SwapError::file("make a ring (io_uring_setup) for", "/dev/fuse"))
}

/// The queues of some processors, with one slot in each: the thread performs one request at a time,
/// and later ones wait in the kernel. Nothing is allocated while it serves.
pub(super) struct Queue {
    device: Arc<File>,
    processors: Vec<u16>,
    ring: Ring,
    slots: Mapping,
    store: Store,
    backing: Box<dyn Backing>,
}

impl Queue {
    /// Registers the queues for the calling thread, which is pinned to these processors from now
    /// on.
    pub(super) fn register(
        device: Arc<File>,
        processors: Vec<u16>,
        store: Store,
        backing: Box<dyn Backing>,
    ) -> Result<Self, SwapError> {
        pin_to(&processors);
        let slots = Mapping::anonymous(processors.len() * SLOT_BYTES);
        let slots = slots.map_err(SwapError::at("taking memory for a queue of the FUSE file"))?;
        let ring = ring(processors.len())?;
        let mut queue = Self { device, processors, ring, slots, store, backing };
        queue.register_slots()?;
        Ok(queue)
    }

    fn register_slots(&mut self) -> Result<(), SwapError> {
        let at = SwapError::at("registering a queue of the FUSE file (io_uring)");
        // The kernel has read them when it takes the slots.
        let mut parts = Vec::with_capacity(self.processors.len());
        for slot in 0..self.processors.len() {
            let head = self.head(slot);
            parts.push([
                part(head.cast(), HEAD_BYTES),
                part(self.payload(slot), MAX_TRANSFER_BYTES),
            ]);
        }
        for (slot, parts) in parts.iter().enumerate() {
            self.push(Turn::Register, slot, 0, parts);
        }
        let taken = self.ring.submit();
        // Accepted slots return with a request; no request exists yet.
        let refused = self.ring.completion().find(|completion| completion.result() < 0);
        match (taken, refused) {
            (Ok(_), None) => Ok(()),
            (Ok(_), Some(refused)) => Err(at(Errno::from_raw_os_error(-refused.result()))),
            (Err(error), _) => Err(at(Errno::from_io_error(&error).unwrap_or(Errno::IO))),
        }
    }

    /// Serves until the file system is gone.
    pub(super) fn serve(mut self) {
        let slots = self.processors.len();
        if serve_slots(&mut self, slots).is_err() {
            return;
        }
        // Unmapped only here: while the kernel may own a slot it may write there.
        self.slots.unmap();
    }

    /// Performs the request in a slot and answers it.
    fn answer_at(&mut self, slot: usize) {
        let started_ns = monotonic_ns();
        // SAFETY: the slot has come back, so that the kernel leaves it alone until it is pushed
        // again, and this is the only reference to it.
        let head = unsafe { &mut *self.head(slot) };
        // SAFETY: as above; the payload lies beside the head.
        let payload =
            unsafe { std::slice::from_raw_parts_mut(self.payload(slot), MAX_TRANSFER_BYTES) };
        let commit_id = head.commit_id;
        let bytes = (head.payload_bytes as usize).min(MAX_TRANSFER_BYTES);
        let request = venice_fuse::Request::parse(&head.header, &head.argument, bytes);
        let request = Request::from(request.expect("the header has its whole length"));
        let mut exchange = Slot { header: &mut head.header, payload };
        let len = carry_out(&self.store, &mut *self.backing, request, &mut exchange);
        head.payload_bytes = len as u32;
        self.push(Turn::CommitAndFetch, slot, commit_id, &[]);
        if matches!(request.call, Call::Read { .. } | Call::Write { .. }) {
            self.store.answered(started_ns, monotonic_ns());
        }
    }

    fn push(&mut self, what: Turn, slot: usize, commit_id: u64, parts: &[libc::iovec]) {
        let device = Fd(self.device.as_raw_fd());
        let bytes = turn(self.processors[slot], commit_id);
        let command = opcode::UringCmd80::new(device, what as u32).cmd(bytes);
        let mut entry = command.addr(Some(parts.as_ptr() as u64)).build().user_data(slot as u64);
        set_len(&mut entry, parts.len() as u32);
        // SAFETY: the slot stays mapped for as long as the kernel may have the command.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the ring has an entry for each slot");
    }

    fn head(&self, slot: usize) -> *mut Head {
        assert!(slot < self.processors.len(), "the kernel gives back what it was given");
        // SAFETY: there is a slot for each processor.
        unsafe { self.slots.start().add(slot * SLOT_BYTES).cast() }
    }

    fn payload(&self, slot: usize) -> *mut u8 {
        // SAFETY: it lies within the slot.
        unsafe { self.head(slot).cast::<u8>().add(HEAD_BYTES) }
    }
}

impl Slots for Queue {
    type Entry = squeue::Entry128;

    fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    fn answer(&mut self, slot: u64) {
        self.answer_at(slot as usize);
    }
}

/// A slot that has come back with a request.
struct Slot<'a> {
    header: &'a mut [u8],
    payload: &'a mut [u8],
}

impl Exchange for Slot<'_> {
    fn bytes(&self, len: usize) -> &[u8] {
        &self.payload[..len]
    }

    fn reply(&mut self, unique: u64) -> Reply<'_> {
        Reply::new(&mut self.header[..REPLY_HEADER_BYTES], self.payload, unique)
    }
}

fn part(start: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast(), iov_len: len }
}

/// Sets `len` of `struct io_uring_sqe`, which the crate does not expose for commands.
fn set_len(entry: &mut squeue::Entry128, len: u32) {
    const LEN_OFFSET: usize = 24;
    const { assert!(size_of::<squeue::Entry128>() == 128) };
    // SAFETY: an entry is the kernel's struct of 128 bytes and nothing else.
    let bytes = unsafe { &mut *std::ptr::from_mut(entry).cast::<[u8; 128]>() };
    bytes[LEN_OFFSET..LEN_OFFSET + 4].copy_from_slice(&len.to_ne_bytes());
}

/// Pins the thread to the processors whose requests it serves. If that is refused (processors that
/// are absent, or that this process may not use), an answer costs a wake-up of another core.
fn pin_to(processors: &[u16]) {
    let mut set = CpuSet::new();
    for processor in
        processors.iter().filter(|processor| usize::from(**processor) < CpuSet::MAX_CPU)
    {
        set.set(usize::from(*processor));
    }
    let _ = sched_setaffinity(None, &set);
}
