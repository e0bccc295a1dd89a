//! Ways to move datagrams: plain calls, what the udp port does, io_uring, AF_XDP.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types::Fd};

use super::Waiting;
use xsk::{BURST_FRAMES, Xsk};

pub mod bpf;
pub mod xsk;

/// Room for the longest train.
const ROOM_BYTES: usize = 64 << 10;
/// Messages taken at once.
const MESSAGES: usize = 16;
/// A datagram that takes longer does not come.
const LOST: Duration = Duration::from_millis(100);
/// The group of a ring's buffers.
const GROUP: u16 = 1;

/// One end of an exchange. What does not come is the end of the measurement.
pub trait Way {
    /// Gets ready to receive.
    fn expect(&mut self) {}
    fn send(&mut self, len: usize);
    /// Waits for a datagram; its length, 0 if none came for long.
    fn receive(&mut self) -> usize;
}

/// `send` and `recv`.
pub struct Calls {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl Calls {
    pub fn new(socket: UdpSocket, waiting: Waiting) -> Self {
        socket.set_nonblocking(waiting == Waiting::Spin).unwrap();
        Self { socket, buffer: vec![1; ROOM_BYTES] }
    }
}

impl Way for Calls {
    fn send(&mut self, len: usize) {
        self.socket.send(&self.buffer[..len]).unwrap();
    }

    fn receive(&mut self) -> usize {
        look(|| self.socket.recv(&mut self.buffer).ok())
    }
}

/// `sendmmsg`, `recvmmsg` and, to sleep, `epoll_wait`: as the udp port does it.
pub struct Epoll {
    socket: UdpSocket,
    batch: Batch,
    epoll: Option<libc::c_int>,
}

impl Epoll {
    pub fn new(socket: UdpSocket, waiting: Waiting) -> Self {
        socket.set_nonblocking(true).unwrap();
        let epoll = (waiting == Waiting::Sleep).then(|| {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            // SAFETY: plain calls; the event lives until they are over.
            unsafe {
                let epoll = libc::epoll_create1(0);
                libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &raw mut event);
                epoll
            }
        });
        Self { socket, batch: Batch::new(1), epoll }
    }
}

impl Way for Epoll {
    fn send(&mut self, len: usize) {
        self.batch.send(&self.socket, &[len]);
    }

    fn receive(&mut self) -> usize {
        if let Some(epoll) = self.epoll {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: room for one event, which lives until the call is over.
            unsafe { libc::epoll_wait(epoll, &raw mut event, 1, 100) };
        }
        look(|| self.batch.receive(&self.socket))
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        if let Some(epoll) = self.epoll {
            // SAFETY: it is ours, and nobody uses it any more.
            unsafe { libc::close(epoll) };
        }
    }
}

/// A ring: an answer is sent and the next request awaited by one call.
pub struct Ring {
    ring: IoUring,
    socket: UdpSocket,
    waiting: Waiting,
    buffers: [Vec<u8>; 2],
}

impl Ring {
    pub fn new(socket: UdpSocket, waiting: Waiting) -> Self {
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(8);
        let ring = ring.expect("io_uring is on");
        Self { ring, socket, waiting, buffers: [vec![1; ROOM_BYTES], vec![0; ROOM_BYTES]] }
    }
}

impl Way for Ring {
    fn expect(&mut self) {
        let [_, into] = &mut self.buffers;
        let socket = Fd(self.socket.as_raw_fd());
        let receive = opcode::Recv::new(socket, into.as_mut_ptr(), ROOM_BYTES as u32).build();
        push(&mut self.ring, &receive.user_data(1));
    }

    fn send(&mut self, len: usize) {
        let [from, _] = &self.buffers;
        let socket = Fd(self.socket.as_raw_fd());
        let send = opcode::Send::new(socket, from.as_ptr(), len as u32).build();
        push(&mut self.ring, &send.flags(squeue::Flags::SKIP_SUCCESS));
        // With it goes what waits for the answer.
        self.ring.submit().unwrap();
    }

    fn receive(&mut self) -> usize {
        if self.waiting == Waiting::Sleep {
            let limit = io_uring::types::Timespec::new().nsec(100_000_000);
            let arguments = io_uring::types::SubmitArgs::new().timespec(&limit);
            let _ = self.ring.submitter().submit_with_args(1, &arguments);
        } else {
            self.ring.submit().unwrap();
        }
        let Self { ring, waiting, .. } = self;
        let len = look(|| {
            if *waiting == Waiting::Spin {
                // What has come is only noted in the kernel; that the interrupt which would do it
                // by itself takes twice as long was measured too.
                let get_events = 1;
                // SAFETY: no argument, so nothing has to live.
                let _ = unsafe { ring.submitter().enter::<()>(0, 0, get_events, None) };
            }
            let done = ring.completion().find(|done| done.user_data() == 1)?;
            Some(done.result().max(0) as usize)
        });
        self.expect();
        len
    }
}

/// What comes one way.
pub enum Sink {
    Calls(UdpSocket, Batch),
    Ring(Box<IoUring>, UdpSocket, Vec<u8>),
    Xsk(Box<Xsk>),
}

impl Sink {
    pub fn by_calls(socket: UdpSocket) -> Self {
        socket.set_nonblocking(true).unwrap();
        Self::Calls(socket, Batch::new(MESSAGES))
    }

    pub fn by_ring(socket: UdpSocket) -> Self {
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(64);
        let mut ring = Box::new(ring.expect("io_uring is on"));
        let mut room = vec![0; MESSAGES * ROOM_BYTES];
        let (at, len) = (room.as_mut_ptr(), ROOM_BYTES as i32);
        let provide = opcode::ProvideBuffers::new(at, len, MESSAGES as u16, GROUP, 0).build();
        push(&mut ring, &provide.flags(squeue::Flags::SKIP_SUCCESS));
        let receive = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), GROUP).build();
        push(&mut ring, &receive.user_data(1));
        Self::Ring(ring, socket, room)
    }

    /// Takes what is there; bytes.
    pub fn take(&mut self) -> usize {
        match self {
            Self::Calls(socket, batch) => batch.receive(socket).unwrap_or(0),
            Self::Ring(ring, socket, room) => take_from(ring, socket, room),
            Self::Xsk(xsk) => xsk.take().unwrap_or(0),
        }
    }
}

fn take_from(ring: &mut IoUring, socket: &UdpSocket, room: &mut [u8]) -> usize {
    let limit = io_uring::types::Timespec::new().nsec(10_000_000);
    let arguments = io_uring::types::SubmitArgs::new().timespec(&limit);
    let _ = ring.submitter().submit_with_args(1, &arguments);
    let done: Vec<_> = ring.completion().collect();
    let mut bytes = 0;
    for done in done {
        if let Some(which) = cqueue::buffer_select(done.flags()) {
            bytes += done.result().max(0) as usize;
            let at = room[usize::from(which) * ROOM_BYTES..].as_mut_ptr();
            let again = opcode::ProvideBuffers::new(at, ROOM_BYTES as i32, 1, GROUP, which).build();
            push(ring, &again.flags(squeue::Flags::SKIP_SUCCESS));
        }
        if done.user_data() == 1 && !cqueue::more(done.flags()) {
            let receive = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), GROUP).build();
            push(ring, &receive.user_data(1));
        }
    }
    bytes
}

pub fn send_once(socket: &UdpSocket, len: usize) {
    let _ = socket.send(&[1; 8192][..len]);
}

/// Frames by one `sendto`.
pub fn frames_by_xsk(mut xsk: Xsk, len: usize) -> Box<dyn FnMut()> {
    Box::new(move || xsk.send_burst(BURST_FRAMES, len))
}

/// Trains by one `sendmmsg`.
pub fn trains_by_calls<const N: usize>(socket: UdpSocket, lens: [usize; N]) -> Box<dyn FnMut()> {
    let mut batch = Batch::new(N);
    Box::new(move || batch.send(&socket, &lens))
}

/// Trains by one `io_uring_enter`.
pub fn trains_by_ring<const N: usize>(socket: UdpSocket, lens: [usize; N]) -> Box<dyn FnMut()> {
    let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(64);
    let (mut ring, bytes) = (ring.expect("io_uring is on"), vec![1u8; ROOM_BYTES]);
    Box::new(move || {
        for len in lens {
            let send = opcode::Send::new(Fd(socket.as_raw_fd()), bytes.as_ptr(), len as u32);
            push(&mut ring, &send.build());
        }
        ring.submit_and_wait(N).unwrap();
        ring.completion().for_each(drop);
    })
}

/// Messages moved by one call. Each has a buffer of its own.
pub struct Batch {
    headers: Box<[libc::mmsghdr]>,
    _iovecs: Box<[libc::iovec]>,
    _room: Box<[u8]>,
}

// SAFETY: the pointers lead to the other boxes, which belong to this one alone.
unsafe impl Send for Batch {}

impl Batch {
    fn new(messages: usize) -> Self {
        let mut room = vec![1u8; messages * ROOM_BYTES].into_boxed_slice();
        let mut iovecs: Box<[_]> = room
            .chunks_exact_mut(ROOM_BYTES)
            .map(|one| libc::iovec { iov_base: one.as_mut_ptr().cast(), iov_len: ROOM_BYTES })
            .collect();
        let headers = iovecs.iter_mut().map(|iovec| {
            // SAFETY: all zeroes is an empty header.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (iovec, 1);
            header
        });
        Self { headers: headers.collect(), _iovecs: iovecs, _room: room }
    }

    fn send(&mut self, socket: &UdpSocket, lens: &[usize]) {
        for (header, len) in self.headers.iter_mut().zip(lens) {
            // SAFETY: each header points to an io vector of this batch.
            unsafe { (*header.msg_hdr.msg_iov).iov_len = *len };
        }
        let (headers, count) = (self.headers.as_mut_ptr(), lens.len() as u32);
        // SAFETY: headers, io vectors and buffers live until the call is over.
        unsafe { libc::sendmmsg(socket.as_raw_fd(), headers, count, libc::MSG_DONTWAIT) };
    }

    /// Takes what is there; bytes, `None` if nothing is.
    fn receive(&mut self, socket: &UdpSocket) -> Option<usize> {
        for header in &mut self.headers {
            // SAFETY: each header points to an io vector of this batch, with so much room.
            unsafe { (*header.msg_hdr.msg_iov).iov_len = ROOM_BYTES };
        }
        let (headers, count) = (self.headers.as_mut_ptr(), self.headers.len() as u32);
        let none = std::ptr::null_mut();
        // SAFETY: headers, io vectors and buffers live until the call is over.
        let received =
            unsafe { libc::recvmmsg(socket.as_raw_fd(), headers, count, libc::MSG_DONTWAIT, none) };
        let received = usize::try_from(received).ok()?;
        Some(self.headers[..received].iter().map(|header| header.msg_len as usize).sum())
    }
}

fn push(ring: &mut IoUring, entry: &squeue::Entry) {
    // SAFETY: buffers and sockets that entries name live as long as their ring is used.
    unsafe { ring.submission().push(entry) }.expect("the ring has room");
}

/// Looks until there is something, or for a tenth of a second.
fn look(mut find: impl FnMut() -> Option<usize>) -> usize {
    let start = Instant::now();
    loop {
        if let Some(len) = find() {
            return len;
        }
        if start.elapsed() > LOST {
            return 0;
        }
        std::hint::spin_loop();
    }
}
