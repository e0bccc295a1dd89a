//! Many datagrams per system call: `recvmmsg` and `sendmmsg` over buffers made once.
//!
//! The calls are made directly (libc would write to a thread-local errno, and rustix has no
//! `recvmmsg`).

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;

/// Datagrams of one batch.
pub(super) const BATCH_LEN: usize = 32;

/// Buffers and addresses for up to [`BATCH_LEN`] datagrams. Allocates when made, never after.
pub(super) struct Batch {
    slots: Box<[Slot]>,
    slot_len: usize,
    buffers: Box<[u8]>,
    filled: usize,
}

#[derive(Clone, Copy)]
struct Slot {
    len: usize,
    address: RawAddress,
}

impl Batch {
    /// An empty batch for datagrams of up to `slot_len` bytes.
    pub(super) fn new(slot_len: usize) -> Self {
        let empty = Slot { len: 0, address: RawAddress::EMPTY };
        Self {
            slots: vec![empty; BATCH_LEN].into_boxed_slice(),
            slot_len,
            buffers: vec![0; slot_len * BATCH_LEN].into_boxed_slice(),
            filled: 0,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.filled == BATCH_LEN
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// The datagrams received last, each with its sender. Those of other address families, or
    /// longer than a slot, are left out.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        let buffers = self.buffers.chunks_exact(self.slot_len);
        let filled = self.slots[..self.filled].iter().zip(buffers);
        filled.filter_map(|(slot, buffer)| {
            let address = slot.address.decode()?;
            Some((address, buffer.get(..slot.len)?))
        })
    }

    /// The next free buffer; what is put there goes out after [`Batch::push`].
    ///
    /// # Panics
    /// When the batch is full.
    pub(super) fn next_buffer(&mut self) -> &mut [u8] {
        let start = self.filled * self.slot_len;
        &mut self.buffers[start..start + self.slot_len]
    }

    /// Adds the datagram in [`Batch::next_buffer`] to those to be sent.
    pub(super) fn push(&mut self, to: SocketAddr, len: usize) {
        assert!(len <= self.slot_len);
        self.slots[self.filled] = Slot { len, address: RawAddress::encode(to) };
        self.filled += 1;
    }

    /// Receives what is there, without waiting; returns how many datagrams.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        self.filled = 0;
        let mut iovecs = [IoVec::EMPTY; BATCH_LEN];
        let mut headers = [const { MaybeUninit::<MMsgHdr>::uninit() }; BATCH_LEN];
        let buffers = self.buffers.chunks_exact_mut(self.slot_len);
        for (index, (slot, buffer)) in self.slots.iter_mut().zip(buffers).enumerate() {
            iovecs[index] = IoVec { base: buffer.as_mut_ptr().cast(), len: buffer.len() };
            slot.address = RawAddress::EMPTY;
            let name = (&raw mut slot.address.bytes).cast();
            headers[index].write(MMsgHdr::new(name, RawAddress::LEN, &raw mut iovecs[index]));
        }
        let received = loop {
            // SAFETY: every header is initialised and points to a buffer, an address and an
            // io vector that live and are not otherwise used until the call is over.
            match unsafe { recvmmsg(socket, headers.as_mut_ptr().cast(), BATCH_LEN) } {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break 0,
                Err(errno) => return Err(errno),
            }
        };
        for (slot, header) in self.slots.iter_mut().zip(&headers[..received]) {
            // SAFETY: all headers were initialised above; the kernel has only updated them.
            let header = unsafe { header.assume_init_ref() };
            // One that did not fit gets a length that no slot has, and so is passed over.
            slot.len = if header.flags & MSG_TRUNC == 0 { header.len as usize } else { usize::MAX };
        }
        self.filled = received;
        Ok(received)
    }

    /// Sends everything pushed, as far as the socket takes it without waiting, and clears the
    /// batch. What the socket does not take is lost, as datagrams may be; the link above repeats
    /// it.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let mut iovecs = [IoVec::EMPTY; BATCH_LEN];
        let mut headers = [const { MaybeUninit::<MMsgHdr>::uninit() }; BATCH_LEN];
        let count = std::mem::take(&mut self.filled);
        let buffers = self.buffers.chunks_exact_mut(self.slot_len);
        for (index, (slot, buffer)) in self.slots[..count].iter_mut().zip(buffers).enumerate() {
            iovecs[index] = IoVec { base: buffer.as_mut_ptr().cast(), len: slot.len };
            let name = (&raw mut slot.address.bytes).cast();
            headers[index].write(MMsgHdr::new(name, slot.address.len, &raw mut iovecs[index]));
        }
        let mut sent = 0;
        while sent < count {
            let rest = headers[sent..].as_mut_ptr().cast();
            // SAFETY: headers `sent..count` are initialised and point to buffers, addresses and
            // io vectors that live until the call is over.
            match unsafe { sendmmsg(socket, rest, count - sent) } {
                Ok(more) => sent += more,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(()),
                // An unreachable peer is that datagram's bad luck, not the batch's.
                Err(
                    Errno::NETUNREACH
                    | Errno::HOSTUNREACH
                    | Errno::CONNREFUSED
                    | Errno::ACCESS
                    | Errno::PERM
                    | Errno::INVAL
                    | Errno::MSGSIZE
                    | Errno::AFNOSUPPORT,
                ) => sent += 1,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// A `sockaddr_in` or `sockaddr_in6` as the kernel reads and writes it.
#[derive(Clone, Copy)]
struct RawAddress {
    bytes: AlignedBytes,
    len: u32,
}

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct AlignedBytes([u8; RawAddress::LEN as usize]);

impl RawAddress {
    /// Length of a `sockaddr_in6`, the longer of the two.
    const LEN: u32 = 28;
    const V4_LEN: u32 = 16;
    const EMPTY: Self = Self { bytes: AlignedBytes([0; Self::LEN as usize]), len: Self::LEN };
    const INET: u16 = 2;
    const INET6: u16 = 10;

    fn encode(address: SocketAddr) -> Self {
        let mut raw = Self::EMPTY;
        let bytes = &mut raw.bytes.0;
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) => {
                bytes[0..2].copy_from_slice(&Self::INET.to_ne_bytes());
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                raw.len = Self::V4_LEN;
            }
            SocketAddr::V6(v6) => {
                bytes[0..2].copy_from_slice(&Self::INET6.to_ne_bytes());
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            }
        }
        raw
    }

    fn decode(&self) -> Option<SocketAddr> {
        let bytes = &self.bytes.0;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        match u16::from_ne_bytes([bytes[0], bytes[1]]) {
            Self::INET => {
                let ip: [u8; 4] = bytes[4..8].try_into().expect("4 bytes");
                Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
            }
            Self::INET6 => {
                let ip: [u8; 16] = bytes[8..24].try_into().expect("16 bytes");
                // The flow label of what came in does not belong to the peer's identity.
                Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, word(24)).into())
            }
            _ => None,
        }
    }
}

/// The kernel's `struct iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
struct IoVec {
    base: *mut c_void,
    len: usize,
}

impl IoVec {
    const EMPTY: Self = Self { base: ptr::null_mut(), len: 0 };
}

/// The kernel's `struct mmsghdr` with its `struct user_msghdr` unfolded, as 64-bit machines have
/// it.
#[repr(C)]
struct MMsgHdr {
    name: *mut c_void,
    name_len: u32,
    iov: *mut IoVec,
    iov_len: usize,
    control: *mut c_void,
    control_len: usize,
    flags: u32,
    _padding: u32,
    len: u32,
}

const _: () = assert!(size_of::<MMsgHdr>() == 64, "Venice needs a 64-bit machine");

impl MMsgHdr {
    fn new(name: *mut c_void, name_len: u32, iov: *mut IoVec) -> Self {
        let (control, control_len) = (ptr::null_mut(), 0);
        Self {
            name,
            name_len,
            iov,
            iov_len: 1,
            control,
            control_len,
            flags: 0,
            _padding: 0,
            len: 0,
        }
    }
}

const MSG_DONTWAIT: usize = 0x40;
const MSG_NOSIGNAL: usize = 0x4000;
const MSG_TRUNC: u32 = 0x20;

#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const RECVMMSG: usize = 299;
    pub(super) const SENDMMSG: usize = 307;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub(super) const RECVMMSG: usize = 243;
    pub(super) const SENDMMSG: usize = 269;
}

/// # Safety
/// `headers` points to `count` initialised headers, each good for receiving into.
unsafe fn recvmmsg(
    socket: BorrowedFd<'_>,
    headers: *mut MMsgHdr,
    count: usize,
) -> rustix::io::Result<usize> {
    let fd = socket.as_raw_fd() as usize;
    // SAFETY: as promised by the caller; a null time-out is allowed.
    unsafe { system_call(number::RECVMMSG, [fd, headers as usize, count, MSG_DONTWAIT, 0]) }
}

/// # Safety
/// `headers` points to `count` initialised headers, each good for sending from.
unsafe fn sendmmsg(
    socket: BorrowedFd<'_>,
    headers: *mut MMsgHdr,
    count: usize,
) -> rustix::io::Result<usize> {
    let fd = socket.as_raw_fd() as usize;
    let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    // SAFETY: as promised by the caller.
    unsafe { system_call(number::SENDMMSG, [fd, headers as usize, count, flags, 0]) }
}

/// # Safety
/// The arguments suit the system call, which must be one that upholds Rust's rules.
#[cfg(target_arch = "x86_64")]
unsafe fn system_call(number: usize, arguments: [usize; 5]) -> rustix::io::Result<usize> {
    let result: isize;
    // SAFETY: the kernel's calling convention; rcx and r11 are clobbered, memory may be written.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    to_result(result)
}

/// # Safety
/// The arguments suit the system call, which must be one that upholds Rust's rules.
#[cfg(target_arch = "aarch64")]
unsafe fn system_call(number: usize, arguments: [usize; 5]) -> rustix::io::Result<usize> {
    let result: isize;
    // SAFETY: the kernel's calling convention; memory may be written.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") arguments[0] => result,
            in("x1") arguments[1],
            in("x2") arguments[2],
            in("x3") arguments[3],
            in("x4") arguments[4],
            options(nostack),
        );
    }
    to_result(result)
}

fn to_result(result: isize) -> rustix::io::Result<usize> {
    match result {
        0.. => Ok(result as usize),
        _ => Err(Errno::from_raw_os_error(-result as i32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    /// A non-blocking socket of the standard library, to check against.
    fn socket(address: &str) -> UdpSocket {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    }

    fn round_trip(local: &str) {
        let (ours, theirs) = (socket(local), socket(local));
        let (our_address, their_address) =
            (ours.local_addr().unwrap(), theirs.local_addr().unwrap());

        let mut out = Batch::new(64);
        for byte in 0..BATCH_LEN as u8 {
            out.next_buffer()[..3].fill(byte);
            out.push(their_address, 3);
        }
        assert!(out.is_full());
        out.send(ours.as_fd()).unwrap();
        assert!(out.is_empty());

        let mut buffer = [0; 100];
        for byte in 0..BATCH_LEN as u8 {
            let (len, from) = theirs.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..len], from), ([byte; 3].as_slice(), our_address));
            theirs.send_to(&buffer[..len - 1], our_address).unwrap();
        }
        theirs.send_to(&[1; 65], our_address).unwrap();
        theirs.send_to(&[], our_address).unwrap();

        let mut incoming = Batch::new(64);
        assert_eq!(incoming.receive(ours.as_fd()), Ok(BATCH_LEN));
        for (byte, (from, datagram)) in incoming.datagrams().enumerate() {
            assert_eq!((datagram, from), ([byte as u8; 2].as_slice(), their_address));
        }
        assert_eq!(incoming.receive(ours.as_fd()), Ok(2));
        let rest: Vec<_> = incoming.datagrams().collect();
        assert_eq!(rest, [(their_address, [].as_slice())], "the over-long one is left out");
        assert_eq!(incoming.receive(ours.as_fd()), Ok(0));
    }

    #[test]
    fn datagrams_go_out_and_come_in_as_they_are_v4() {
        round_trip("127.0.0.1:0");
    }

    #[test]
    fn datagrams_go_out_and_come_in_as_they_are_v6() {
        if UdpSocket::bind("[::1]:0").is_ok() {
            round_trip("[::1]:0");
        }
    }

    #[test]
    fn an_impossible_peer_does_not_stop_the_batch() {
        let (ours, theirs) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
        let mut out = Batch::new(8);
        for to in ["[::1]:9".parse().unwrap(), theirs.local_addr().unwrap()] {
            out.next_buffer().fill(5);
            out.push(to, 8);
        }
        out.send(ours.as_fd()).unwrap();
        assert_eq!(theirs.recv(&mut [0; 8]).unwrap(), 8);
    }
}
