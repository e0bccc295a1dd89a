//! One queue of a ublk device: a thread with a ring, on which the kernel slots requests.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use rustix::io::Errno;

use super::protocol::{Call, Request, Turn, turn};
use crate::SwapError;
use crate::backing::Backing;
use crate::clock::monotonic_ns;
use crate::mapping::Mapping;
use crate::ring_slots::{Slots, serve_slots};
use crate::store::Store;

/// The most bytes of one request; the device is configured with it.
pub(super) const MAX_TRANSFER_BYTES: usize = 128 << 10;
/// The most requests that wait at a queue or are being performed. Each has a buffer of the above
/// size.
pub(super) const DEPTH: u16 = 32;
/// Distance of the kernel's lists of two queues: 4096 requests, in whole pages.
const LIST_STRIDE_BYTES: u64 = 24 * 4096;
const PAGE: usize = 4096;

/// A queue and its buffers. Nothing is allocated while it serves.
pub(super) struct Queue {
    device: Arc<File>,
    number: u16,
    depth: u16,
    ring: IoUring,
    /// The requests, one for each tag, as the kernel has written them.
    requests: Mapping,
    /// Their bytes.
    buffers: Mapping,
    store: Store,
    backing: Box<dyn Backing>,
}

impl Queue {
    pub(super) fn new(
        device: Arc<File>,
        (number, depth): (u16, u16),
        store: Store,
        backing: Box<dyn Backing>,
    ) -> Result<Self, SwapError> {
        let at = SwapError::at("mapping a queue of the ublk device");
        let map = || -> Result<_, Errno> {
            let list_bytes = (usize::from(depth) * size_of::<Request>()).next_multiple_of(PAGE);
            let requests =
                Mapping::of(&*device, list_bytes, u64::from(number) * LIST_STRIDE_BYTES)?;
            Ok((requests, Mapping::anonymous(usize::from(depth) * MAX_TRANSFER_BYTES)?))
        };
        let (requests, buffers) = map().map_err(at)?;
        let ring = IoUring::new(u32::from(depth).next_power_of_two());
        let ring = ring.map_err(SwapError::file("make a ring (io_uring_setup) for", "ublk"))?;
        Ok(Self { device, number, depth, ring, requests, buffers, store, backing })
    }

    /// Serves until the device is stopped.
    pub(super) fn serve(mut self) {
        for tag in 0..self.depth {
            self.push(Turn::Fetch, tag, -1);
        }
        // On failure the kernel fails all later requests to the device.
        let slots = usize::from(self.depth);
        if serve_slots(&mut self, slots).is_err() {
            return;
        }
        self.unmap();
    }

    /// Unmaps the memory. Call it only when the kernel owns none of the slots: otherwise it may
    /// still write to the buffers, which then stay mapped.
    fn unmap(self) {
        self.requests.unmap();
        self.buffers.unmap();
    }

    /// Performs the request of a tag and answers it.
    fn answer_tag(&mut self, tag: u16) {
        let started_ns = monotonic_ns();
        let request = self.request(tag);
        let result = self.carry_out(tag, &request);
        self.push(Turn::CommitAndFetch, tag, result);
        if matches!(request.call(), Call::Read | Call::Write) {
            self.store.answered(started_ns, monotonic_ns());
        }
    }

    /// Performs a request; returns the kernel's result: the number of bytes, or a negative error
    /// number.
    fn carry_out(&mut self, tag: u16, request: &Request) -> i32 {
        let (offset, len_bytes) = (request.offset(), request.len_bytes());
        let call = request.call();
        if call == Call::Flush {
            return 0;
        }
        if self.store.check(offset, len_bytes).is_err() {
            return -libc::EINVAL;
        }
        if call == Call::Discard {
            self.store.discard(offset, len_bytes);
            return 0;
        }
        if !matches!(call, Call::Read | Call::Write) {
            return -libc::EOPNOTSUPP;
        }
        if len_bytes > MAX_TRANSFER_BYTES as u64 {
            return -libc::EINVAL;
        }
        let start = self.buffer(tag);
        // SAFETY: the buffer of the tag, as long as any request; from its request until its answer the
        // kernel leaves it alone.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, len_bytes as usize) };
        let carried_out = match call {
            Call::Read => self.store.read(&mut *self.backing, offset, bytes),
            _ => self.store.write(&mut *self.backing, offset, bytes),
        };
        carried_out.map_or(-libc::EIO, |()| len_bytes as i32)
    }

    fn request(&self, tag: u16) -> Request {
        let requests: *const Request = self.requests.start().cast();
        // SAFETY: within the kernel's list, which is mapped; the request of a tag stands still until
        // it is answered.
        unsafe { requests.add(self.slot(tag)).read_volatile() }
    }

    fn buffer(&self, tag: u16) -> *mut u8 {
        // SAFETY: there is a buffer for each tag.
        unsafe { self.buffers.start().add(self.slot(tag) * MAX_TRANSFER_BYTES) }
    }

    fn slot(&self, tag: u16) -> usize {
        assert!(tag < self.depth, "the kernel gives back what it was given");
        usize::from(tag)
    }

    fn push(&mut self, what: Turn, tag: u16, result: i32) {
        let bytes = turn(self.number, tag, result, self.buffer(tag) as u64);
        let device = Fd(self.device.as_raw_fd());
        let entry = opcode::UringCmd16::new(device, what as u32).cmd(bytes).build();
        let entry = entry.user_data(u64::from(tag));
        // SAFETY: the buffer stays mapped for as long as the kernel may have the command.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the ring has an entry for each tag");
    }
}

impl Slots for Queue {
    type Entry = squeue::Entry;

    fn ring(&mut self) -> &mut IoUring {
        &mut self.ring
    }

    fn answer(&mut self, slot: u64) {
        self.answer_tag(slot as u16);
    }
}
