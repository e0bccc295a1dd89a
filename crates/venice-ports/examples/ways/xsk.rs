//! AF_XDP: frames in memory shared with the kernel, headers made by hand.

use std::io::Error;
use std::marker::PhantomData;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::bpf::{Mode, Redirect};
use super::{Way, look};
use crate::Waiting;

/// Frames for each direction, and room in each ring.
const FRAMES: usize = 512;
const ROOM_BYTES: usize = 4096;
/// Ethernet, IPv4 and UDP.
const HEADER_BYTES: usize = 14 + 20 + 8;
/// As many as the kernel takes from the ring for one call.
pub const BURST_FRAMES: usize = 32;
/// The next frame belongs to the same datagram.
const CONTINUED: u32 = 1;
const PORT: u16 = 7777;
/// The kernel gives up the queue of a socket that is closed a while later.
const LEFT_BEHIND: Duration = Duration::from_secs(2);

/// A socket that takes everything that comes to an interface.
pub struct Xsk {
    waiting: Waiting,
    received: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
    transmit: Ring<libc::xdp_desc>,
    completed: Ring<u64>,
    /// Frames that are nobody's: to transmit.
    free: Vec<u64>,
    addresses: [Ipv4Addr; 2],
    /// A datagram that has begun to come.
    within: bool,
    // In this order: nothing comes any more, the kernel forgets the frames, they go.
    _redirect: Redirect,
    socket: OwnedFd,
    frames: Mapping,
}

impl Xsk {
    /// On `eth0` of this thread's namespace.
    pub fn new(addresses: [Ipv4Addr; 2], mode: Mode, waiting: Waiting) -> Self {
        // SAFETY: plain calls.
        let (interface, socket) = unsafe {
            let interface = libc::if_nametoindex(c"eth0".as_ptr());
            (interface, libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0))
        };
        // SAFETY: fresh from the kernel, if it is one.
        let socket = unsafe { OwnedFd::from_raw_fd(good("socket", i64::from(socket)) as i32) };
        let frames = Mapping::new(2 * FRAMES * ROOM_BYTES, None);
        let [received, fill, transmit, completed] = rings(&socket, &frames);
        let mut fill = Ring::new(&socket, &fill, libc::XDP_UMEM_PGOFF_FILL_RING);
        let completed = Ring::new(&socket, &completed, libc::XDP_UMEM_PGOFF_COMPLETION_RING);
        let received = Ring::new(&socket, &received, libc::XDP_PGOFF_RX_RING as u64);
        let transmit = Ring::new(&socket, &transmit, libc::XDP_PGOFF_TX_RING as u64);
        fill.put((0..FRAMES).map(address));
        bind(&socket, interface);
        let _redirect = Redirect::new(interface, socket.as_fd(), mode);
        let free = (FRAMES..2 * FRAMES).map(address).collect();
        Self {
            waiting,
            received,
            fill,
            transmit,
            completed,
            free,
            addresses,
            within: false,
            _redirect,
            socket,
            frames,
        }
    }

    /// As many datagrams as there are frames for, up to `count`, by one call.
    pub fn send_burst(&mut self, count: usize, len: usize) {
        let Self { completed, free, transmit, frames, addresses, .. } = self;
        completed.take(|address| free.push(address));
        let pieces = (HEADER_BYTES + len).div_ceil(ROOM_BYTES);
        let count = count.min(free.len() / pieces);
        let rest = free.len() - count * pieces;
        let header = header(*addresses, len);
        transmit.put(free.drain(rest..).enumerate().map(|(index, addr)| {
            let piece = index % pieces;
            if piece == 0 {
                // SAFETY: the frame is ours until the kernel has it, and holds the header.
                unsafe { frames.at::<[u8; HEADER_BYTES]>(addr).write(header) };
            }
            let len = (HEADER_BYTES + len - piece * ROOM_BYTES).min(ROOM_BYTES) as u32;
            let options = if piece + 1 < pieces { CONTINUED } else { 0 };
            libc::xdp_desc { addr, len, options }
        }));
        let (fd, dont_wait) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: nothing is passed. What it cannot send yet goes with the next call.
        unsafe { libc::sendto(fd, null_mut(), 0, dont_wait, null_mut(), 0) };
    }

    /// Bytes of the datagrams that are there, `None` if none is.
    pub fn take(&mut self) -> Option<usize> {
        let Self { received, fill, frames, within, .. } = self;
        let (mut bytes, mut count, mut again) = (0, 0, [0; FRAMES]);
        received.take(|frame| {
            if *within {
                bytes += frame.len as usize;
            } else {
                // SAFETY: the frame is ours until it is put into the fill ring again.
                let header = unsafe { frames.at::<[u8; HEADER_BYTES]>(frame.addr).read() };
                // Neighbours' discovery comes too.
                if header[12..14] == [8, 0] && header[36..38] == PORT.to_be_bytes() {
                    bytes += frame.len as usize - HEADER_BYTES;
                }
            }
            *within = frame.options & CONTINUED != 0;
            again[count] = frame.addr - frame.addr % ROOM_BYTES as u64;
            count += 1;
        });
        fill.put(again[..count].iter().copied());
        (bytes > 0).then_some(bytes)
    }

    fn sleep(&self) {
        let mut poll =
            libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which lives until the call is over.
        unsafe { libc::poll(&raw mut poll, 1, 100) };
    }
}

impl Way for Xsk {
    fn send(&mut self, len: usize) {
        self.send_burst(1, len);
    }

    fn receive(&mut self) -> usize {
        if self.waiting == Waiting::Sleep {
            self.sleep();
        }
        look(|| self.take())
    }
}

fn address(frame: usize) -> u64 {
    (frame * ROOM_BYTES) as u64
}

/// To everybody on the wire: the program asks nobody's address. Without the optional checksum.
fn header([from, to]: [Ipv4Addr; 2], len: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..6].fill(0xff);
    header[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 8, 0]);
    header[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17]);
    header[16..18].copy_from_slice(&((28 + len) as u16).to_be_bytes());
    header[26..30].copy_from_slice(&from.octets());
    header[30..34].copy_from_slice(&to.octets());
    let words = header[14..34].as_chunks().0.iter();
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    header[24..26].copy_from_slice(&(!folded as u16).to_be_bytes());
    header[34..36].copy_from_slice(&PORT.to_be_bytes());
    header[36..38].copy_from_slice(&PORT.to_be_bytes());
    header[38..40].copy_from_slice(&((8 + len) as u16).to_be_bytes());
    header
}

/// Frames and rings are made known; where in their mappings the parts of the rings lie: received,
/// fill, transmit, completed.
fn rings(socket: &OwnedFd, frames: &Mapping) -> [libc::xdp_ring_offset; 4] {
    let region = libc::xdp_umem_reg {
        addr: frames.at::<u8>(0) as u64,
        len: frames.len as u64,
        chunk_size: ROOM_BYTES as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &region);
    let (size, send_bytes) = (FRAMES as u32, 8 << 20);
    set::<i32>(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &send_bytes);
    set(socket, libc::SOL_XDP, libc::XDP_UMEM_FILL_RING, &size);
    set(socket, libc::SOL_XDP, libc::XDP_UMEM_COMPLETION_RING, &size);
    set(socket, libc::SOL_XDP, libc::XDP_RX_RING, &size);
    set(socket, libc::SOL_XDP, libc::XDP_TX_RING, &size);
    // SAFETY: plain numbers.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&offsets) as libc::socklen_t;
    let (fd, into) = (socket.as_raw_fd(), (&raw mut offsets).cast());
    // SAFETY: room for the offsets, which lives until the call is over.
    let got =
        unsafe { libc::getsockopt(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, into, &raw mut len) };
    good("XDP_MMAP_OFFSETS", i64::from(got));
    [offsets.rx, offsets.fr, offsets.tx, offsets.cr]
}

/// To queue 0; frames are copied, the only thing that a veth offers.
fn bind(socket: &OwnedFd, interface: u32) {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_COPY | libc::XDP_USE_SG,
        sxdp_ifindex: interface,
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    };
    let len = size_of_val(&address) as libc::socklen_t;
    let (fd, start) = (socket.as_raw_fd(), Instant::now());
    let mut bound = -1;
    while bound < 0 && start.elapsed() < LEFT_BEHIND {
        // SAFETY: the address lives until the call is over.
        bound = unsafe { libc::bind(fd, (&raw const address).cast(), len) };
        if Error::last_os_error().raw_os_error() != Some(libc::EBUSY) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    good("bind", i64::from(bound));
}

fn set<T>(socket: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) {
    let (fd, len) = (socket.as_raw_fd(), size_of::<T>() as libc::socklen_t);
    let value: *const T = value;
    // SAFETY: the value lives until the call is over.
    let set = unsafe { libc::setsockopt(fd, level, name, value.cast(), len) };
    good(&format!("option {name}"), i64::from(set));
}

fn good(what: &str, returned: i64) -> i64 {
    assert!(returned >= 0, "AF_XDP, {what}: {}", Error::last_os_error());
    returned
}

/// One of the kernel's rings. One end is ours, the other the kernel's.
struct Ring<T> {
    mapping: Mapping,
    producer: u64,
    consumer: u64,
    entries: u64,
    _holds: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn new(socket: &OwnedFd, offsets: &libc::xdp_ring_offset, at: u64) -> Self {
        let len = offsets.desc as usize + FRAMES * size_of::<T>();
        let mapping = Mapping::new(len, Some((socket, at)));
        let libc::xdp_ring_offset { producer, consumer, desc, .. } = *offsets;
        Self { mapping, producer, consumer, entries: desc, _holds: PhantomData }
    }

    fn counter(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: a counter lies there, and both ends use it as an atomic.
        unsafe { &*self.mapping.at::<AtomicU32>(offset) }
    }

    fn entry(&self, count: u32) -> *mut T {
        let index = u64::from(count) % FRAMES as u64;
        self.mapping.at(self.entries + index * size_of::<T>() as u64)
    }

    /// There are no more frames than a ring holds.
    fn put(&mut self, entries: impl Iterator<Item = T>) {
        let mut produced = self.counter(self.producer).load(Ordering::Relaxed);
        for entry in entries {
            // SAFETY: the kernel has consumed what lay there, and does not look before we say so.
            unsafe { self.entry(produced).write(entry) };
            produced = produced.wrapping_add(1);
        }
        self.counter(self.producer).store(produced, Ordering::Release);
    }

    fn take(&mut self, mut each: impl FnMut(T)) {
        let mut consumed = self.counter(self.consumer).load(Ordering::Relaxed);
        let produced = self.counter(self.producer).load(Ordering::Acquire);
        if consumed == produced {
            return;
        }
        while consumed != produced {
            // SAFETY: the kernel has produced it, and leaves it until it is consumed.
            each(unsafe { self.entry(consumed).read() });
            consumed = consumed.wrapping_add(1);
        }
        self.counter(self.consumer).store(consumed, Ordering::Release);
    }
}

/// Memory shared with the kernel, until dropped.
struct Mapping {
    start: *mut u8,
    len: usize,
}

// SAFETY: it is memory, no thread's own.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(len: usize, of: Option<(&OwnedFd, u64)>) -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (fd, kind, offset) = match of {
            Some((socket, at)) => (socket.as_raw_fd(), libc::MAP_SHARED, at as i64),
            None => (-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, 0),
        };
        let flags = kind | libc::MAP_POPULATE;
        // SAFETY: a new mapping, wherever there is room.
        let start = unsafe { libc::mmap(null_mut(), len, access, flags, fd, offset) };
        assert_ne!(start, libc::MAP_FAILED, "AF_XDP, mmap: {}", Error::last_os_error());
        Self { start: start.cast(), len }
    }

    fn at<T>(&self, offset: u64) -> *mut T {
        let offset = offset as usize;
        assert!(offset + size_of::<T>() <= self.len, "within the mapping");
        // SAFETY: within the mapping.
        unsafe { self.start.add(offset).cast() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody uses it any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
