//! Borrowed memory that is read and written by offset: `GetMemory` of the composable-rack paper
//! (section 4, figure 5).

use std::sync::{Mutex, OnceLock};

use venice_recipient::{Copies, Lane, LaneError, RemoteMemory};

use crate::Error;
use crate::device::Device;
use crate::listing::Listing;
use crate::pending::{Outcome, Pending};
use crate::queue::{Access, Queue};
use crate::store::Store;

/// Borrowed memory: bytes `0..len_bytes()`, zeros at first, given back when this is dropped.
///
/// Any thread may access it. Each concurrent access uses its own connection to the donors;
/// concurrent accesses of two threads to the same bytes take effect in any order, in pieces. Use
/// the atomic accesses where that matters.
#[derive(Debug)]
pub struct Memory {
    _listing: Listing,
    /// Dropped after the lanes, which need it.
    queue: OnceLock<Queue>,
    idle_lanes: Mutex<Vec<Lane>>,
    remote: RemoteMemory,
    most_under_way: usize,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("under_way", &self.under_way()).finish_non_exhaustive()
    }
}

impl Memory {
    pub(crate) fn new(remote: RemoteMemory, most_under_way: usize) -> Memory {
        let (listing, idle_lanes) = (Listing::enter(&remote, None), Mutex::new(Vec::new()));
        Memory { _listing: listing, queue: OnceLock::new(), idle_lanes, remote, most_under_way }
    }

    /// Returns its size in bytes: the requested one, in whole slabs of 16 MiB.
    pub fn len_bytes(&self) -> u64 {
        self.remote.len_bytes()
    }

    /// Returns the devices granted with it ([`MemoryOptions::devices`](crate::MemoryOptions)), in the
    /// order of the wants. What is not taken ends with it.
    pub fn take_devices(&mut self) -> Vec<Device> {
        self.remote.take_devices().into_iter().map(Device::new).collect()
    }

    /// Returns the number of devices granted with it and not taken.
    pub fn device_count(&self) -> usize {
        self.remote.device_count()
    }

    /// Returns the required and the missing copies: lost ones are rebuilt on other nodes while the
    /// memory is in use.
    pub fn copies(&self) -> Copies {
        self.remote.copies()
    }

    /// Fills `into` from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::DonorLost`], with `into` partly filled;
    /// [`Error::Unreachable`] if no connection to the donors can be opened.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.with_lane(|lane| lane.read(offset, into))
    }

    /// Stores `from` at `offset`; it is stored when this returns.
    ///
    /// # Errors
    /// Like [`Memory::read`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.with_lane(|lane| lane.write(offset, from))
    }

    /// Starts to fill `buffer` from `offset` on; the outcome carries the buffer. Asynchronous
    /// accesses take effect in the order in which they were started. Waits while
    /// [`MemoryOptions::most_under_way`](crate::MemoryOptions::most_under_way) accesses are
    /// outstanding.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Refused`] and [`Error::Unreachable`] at the first of them.
    pub fn read_async(&self, offset: u64, buffer: Vec<u8>) -> Result<Pending, Error> {
        let (pending, done) = Pending::new();
        self.start_read(offset, buffer, done).map(|()| pending)
    }

    /// Starts to store `buffer` at `offset`; see [`Memory::read_async`].
    ///
    /// # Errors
    /// Like [`Memory::read_async`].
    pub fn write_async(&self, offset: u64, buffer: Vec<u8>) -> Result<Pending, Error> {
        let (pending, done) = Pending::new();
        self.start_write(offset, buffer, done).map(|()| pending)
    }

    /// Like [`Memory::read_async`]; `done` receives the outcome on a thread of the library, which
    /// it must not block.
    ///
    /// # Errors
    /// Like [`Memory::read_async`].
    pub fn start_read(
        &self,
        offset: u64,
        buffer: Vec<u8>,
        done: impl FnOnce(Outcome) + Send + 'static,
    ) -> Result<(), Error> {
        self.submit(Access { offset, buffer, is_write: false, done: Box::new(done) })
    }

    /// Like [`Memory::start_read`], storing `buffer`.
    ///
    /// # Errors
    /// Like [`Memory::read_async`].
    pub fn start_write(
        &self,
        offset: u64,
        buffer: Vec<u8>,
        done: impl FnOnce(Outcome) + Send + 'static,
    ) -> Result<(), Error> {
        self.submit(Access { offset, buffer, is_write: true, done: Box::new(done) })
    }

    /// Returns the number of outstanding asynchronous accesses.
    pub fn under_way(&self) -> usize {
        self.queue.get().map_or(0, Queue::under_way)
    }

    /// Waits until every asynchronous access started before has completed. ([`Memory::write`] is
    /// synchronous.)
    pub fn flush(&self) {
        if let Some(queue) = self.queue.get() {
            queue.drain();
        }
    }

    /// Adds to the eight bytes at `offset`, a little-endian number that wraps around, in one step;
    /// returns the previous value.
    ///
    /// # Errors
    /// Like [`Memory::read`], and [`Error::Unaligned`].
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Error> {
        self.check_aligned(offset)?;
        self.with_lane(|lane| lane.fetch_add(offset, add))
    }

    /// Stores `new` in the eight bytes at `offset` if they equal `expected`, in one step; returns
    /// the previous value.
    ///
    /// # Errors
    /// Like [`Memory::fetch_add`].
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, Error> {
        self.check_aligned(offset)?;
        self.with_lane(|lane| lane.compare_swap(offset, expected, new))
    }

    fn check_aligned(&self, offset: u64) -> Result<(), Error> {
        if offset.is_multiple_of(8) { Ok(()) } else { Err(Error::Unaligned(offset)) }
    }

    fn submit(&self, access: Access) -> Result<(), Error> {
        let (offset, len_bytes) = (access.offset, access.buffer.len() as u64);
        let size_bytes = self.len_bytes();
        if offset.checked_add(len_bytes).is_none_or(|end| end > size_bytes) {
            return Err(Error::OutOfRange { offset, len_bytes, size_bytes });
        }
        self.queue()?.submit(access);
        Ok(())
    }

    fn queue(&self) -> Result<&Queue, Error> {
        if let Some(queue) = self.queue.get() {
            return Ok(queue);
        }
        let started = Queue::start(self.lane()?, self.most_under_way)?;
        // If another thread was faster, this one ends again, unused.
        Ok(self.queue.get_or_init(|| started))
    }

    fn with_lane<T>(
        &self,
        access: impl FnOnce(&mut Lane) -> Result<T, LaneError>,
    ) -> Result<T, Error> {
        let idle = self.idle_lanes.lock().expect(UNPOISONED).pop();
        let mut lane = idle.map_or_else(|| self.lane(), Ok)?;
        let outcome = access(&mut lane);
        self.idle_lanes.lock().expect(UNPOISONED).push(lane);
        outcome.map_err(Error::from)
    }

    fn lane(&self) -> Result<Lane, Error> {
        self.remote.lane().map_err(|error| Error::Unreachable(error.to_string()))
    }
}

const UNPOISONED: &str = "no thread panics while it holds the lock";

impl Store for Memory {
    fn len_bytes(&self) -> u64 {
        Memory::len_bytes(self)
    }

    fn copies(&self) -> Option<Copies> {
        Some(Memory::copies(self))
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        self.read(at, into)
    }

    fn write_at(&self, at: u64, from: &[u8]) -> Result<(), Error> {
        self.write(at, from)
    }
}
