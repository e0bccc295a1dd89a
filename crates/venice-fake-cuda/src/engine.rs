//! Streams as threads, and what they work on.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::kernel::Function;
use crate::{Code, ILLEGAL_ADDRESS, INVALID_HANDLE, SUCCESS};

/// Memory of the device in bytes.
pub const DEVICE_BYTES: u64 = 512 << 20;
/// Distance between allocations.
const ALIGN: u64 = 512;
/// Devices.
pub const DEVICES: usize = 2;

/// Error of a device that all calls return from then on.
static STICKY: [AtomicI32; DEVICES] = [const { AtomicI32::new(SUCCESS) }; DEVICES];
static NEXT: AtomicUsize = AtomicUsize::new(0x1000);
static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    let mut state = State { next_address: first_address(), ..State::default() };
    for device in 0..DEVICES {
        let lane = Lane::start(device, true).expect("a thread for the default stream");
        state.lanes.insert(device, Arc::new(lane));
    }
    Mutex::new(state)
});

/// Returns the first address of the devices, where nothing of the process is. As with a real driver it
/// is another one in each process.
fn first_address() -> u64 {
    let random = RandomState::new().build_hasher().finish();
    0x1000_0000_0000 + ((random & 0xfff) << 32)
}

/// All objects.
#[derive(Default)]
pub struct State {
    pub lanes: HashMap<usize, Arc<Lane>>,
    /// Destroyed streams whose work goes on.
    ending: Vec<Arc<Lane>>,
    pub events: HashMap<usize, Arc<Event>>,
    pub memory: BTreeMap<u64, Arc<Buffer>>,
    /// Pinned memory of the program: first byte and length.
    pub pinned: BTreeMap<usize, usize>,
    pub modules: HashMap<usize, Vec<usize>>,
    pub functions: HashMap<usize, Function>,
    /// Attributes that were set, by function.
    pub attributes: HashMap<(usize, i32), i32>,
    pub globals: HashMap<(usize, String), u64>,
    /// Devices of contexts that are not primary.
    pub contexts: HashMap<usize, usize>,
    /// Cubins of linkers.
    pub linkers: HashMap<usize, Vec<u8>>,
    /// Limits that were set.
    pub limits: HashMap<i32, usize>,
    /// Memory of streams, and its most.
    pub pool: Pool,
    pub used_bytes: [u64; DEVICES],
    next_address: u64,
}

pub fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a new handle.
pub fn handle() -> usize {
    NEXT.fetch_add(16, Ordering::Relaxed)
}

/// Pool of memory that is allocated in the order of streams.
#[derive(Default)]
pub struct Pool {
    /// Lengths by address.
    pub used: BTreeMap<u64, u64>,
    pub attributes: HashMap<i32, u64>,
    pub most: u64,
}

/// Forgets the failure of a device.
pub fn reset(device: usize) {
    STICKY[device].store(SUCCESS, Ordering::Release);
}

/// Fails once a kernel of a device has failed.
pub fn check(device: usize) -> Result<(), Code> {
    match STICKY[device].load(Ordering::Acquire) {
        SUCCESS => Ok(()),
        code => Err(code),
    }
}

/// Memory of the device.
pub struct Buffer {
    base: *mut u8,
    pub len: usize,
    pub device: usize,
}

// SAFETY: threads reach it by raw copies alone, as those of a device do.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `allocate` made it of a boxed slice of this length.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.base, self.len)) });
    }
}

/// A place in the device's memory.
pub struct Spot {
    buffer: Arc<Buffer>,
    offset: usize,
}

impl Spot {
    pub fn at(&self) -> *mut u8 {
        // SAFETY: `State::spot` checked the range.
        unsafe { self.buffer.base.add(self.offset) }
    }
}

impl State {
    /// Allocates memory; `None`: it is full.
    pub fn allocate(&mut self, device: usize, len: usize) -> Option<u64> {
        if (len as u64).checked_add(self.used_bytes[device])? > DEVICE_BYTES {
            return None;
        }
        // Not zeroed, as a device's is not.
        let base = Box::into_raw(vec![0xcd_u8; len].into_boxed_slice()).cast::<u8>();
        let address = self.next_address;
        self.next_address += (len as u64).next_multiple_of(ALIGN) + ALIGN;
        self.used_bytes[device] += len as u64;
        self.memory.insert(address, Arc::new(Buffer { base, len, device }));
        Some(address)
    }

    pub fn free(&mut self, address: u64) -> bool {
        let Some(buffer) = self.memory.remove(&address) else { return false };
        self.used_bytes[buffer.device] -= buffer.len as u64;
        true
    }

    /// Returns the place of bytes of the device.
    pub fn spot(&self, address: u64, len: usize) -> Option<Spot> {
        let (start, buffer) = self.memory.range(..=address).next_back()?;
        let offset = usize::try_from(address - start).ok()?;
        let fits = offset.checked_add(len).is_some_and(|end| end <= buffer.len);
        fits.then(|| Spot { buffer: Arc::clone(buffer), offset })
    }

    /// Destroys a stream: what was given to it goes on. False if there is none.
    pub fn end_lane(&mut self, stream: usize) -> bool {
        let Some(lane) = self.lanes.remove(&stream) else { return false };
        self.ending.retain(|it| !it.tail().has_passed());
        self.ending.push(lane);
        true
    }

    pub fn is_pinned(&self, at: usize, len: usize) -> bool {
        let last = self.pinned.range(..=at).next_back();
        last.is_some_and(|(start, bytes)| at + len <= start + bytes)
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Jobs that have been given to a lane and that have ended.
#[derive(Default)]
struct Counts {
    given: u64,
    ended: u64,
}

/// A stream.
pub struct Lane {
    sender: Mutex<Sender<Job>>,
    counts: Arc<(Mutex<Counts>, Condvar)>,
    pub device: usize,
    /// True if it waits for the default stream, and the default stream for it.
    is_blocking: bool,
}

/// A point of a lane.
pub struct Point {
    counts: Arc<(Mutex<Counts>, Condvar)>,
    number: u64,
}

impl Point {
    /// Returns the same point.
    pub fn again(&self) -> Self {
        Self { counts: Arc::clone(&self.counts), number: self.number }
    }

    pub fn wait(&self) {
        let counts = self.counts.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.counts.1.wait_while(counts, |it| it.ended < self.number));
    }

    pub fn has_passed(&self) -> bool {
        self.counts.0.lock().unwrap_or_else(PoisonError::into_inner).ended >= self.number
    }
}

impl Lane {
    /// Starts a stream; `None`: there are too many threads.
    pub fn start(device: usize, is_blocking: bool) -> Option<Self> {
        let (sender, jobs) = channel::<Job>();
        let counts = Arc::<(Mutex<Counts>, Condvar)>::default();
        let its = Arc::clone(&counts);
        let run = move || {
            for job in jobs {
                job();
                its.0.lock().unwrap_or_else(PoisonError::into_inner).ended += 1;
                its.1.notify_all();
            }
        };
        std::thread::Builder::new().spawn(run).ok()?;
        Some(Self { sender: Mutex::new(sender), counts, device, is_blocking })
    }

    /// Returns the point behind all that was given to it.
    pub fn tail(&self) -> Point {
        let number = self.counts.0.lock().unwrap_or_else(PoisonError::into_inner).given;
        Point { counts: Arc::clone(&self.counts), number }
    }

    fn give(&self, job: Job) -> Point {
        self.counts.0.lock().unwrap_or_else(PoisonError::into_inner).given += 1;
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = sender.send(job);
        self.tail()
    }
}

/// Returns the lane of a stream: the numbers 0 to 2 stand for the default one of a device.
pub fn lane_of(device: usize, stream: usize) -> usize {
    if stream <= 2 { device } else { stream }
}

/// Gives a job to a stream, behind what it has to wait for. A job that fails ends all work.
pub fn enqueue(
    device: usize,
    stream: usize,
    job: impl FnOnce() -> Result<(), Code> + Send + 'static,
) -> Result<Point, Code> {
    let state = state();
    let stream = lane_of(device, stream);
    let lane = state.lanes.get(&stream).ok_or(INVALID_HANDLE)?;
    let (device, default) = (lane.device, lane.device);
    let others = state.lanes.iter().filter(|(id, other)| {
        other.device == device
            && other.is_blocking
            && lane.is_blocking
            && **id != stream
            && (stream == default || **id == default)
    });
    let ending = state.ending.iter().filter(|other| {
        other.device == device && other.is_blocking && lane.is_blocking && stream == default
    });
    let waits = others.map(|(_, other)| other).chain(ending);
    let waits: Vec<Point> = waits.map(|other| other.tail()).collect();
    Ok(lane.give(Box::new(move || {
        waits.iter().for_each(Point::wait);
        if check(device).is_ok()
            && let Err(code) = job()
        {
            STICKY[device].store(code, Ordering::Release);
        }
    })))
}

/// Waits for all streams of a device, the destroyed ones as well.
pub fn synchronize(device: usize) -> Result<(), Code> {
    let points: Vec<Point> = {
        let state = state();
        let lanes = state.lanes.values().chain(&state.ending);
        lanes.filter(|it| it.device == device).map(|it| it.tail()).collect()
    };
    points.iter().for_each(Point::wait);
    check(device)
}

/// An event.
#[derive(Default)]
pub struct Event {
    pub point: Mutex<Option<Point>>,
    pub time: Mutex<Option<Instant>>,
}

/// Fails as a kernel does that leaves its memory.
pub fn inside(spot: Option<Spot>) -> Result<Spot, Code> {
    spot.ok_or(ILLEGAL_ADDRESS)
}
