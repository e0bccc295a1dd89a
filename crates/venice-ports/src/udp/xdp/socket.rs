//! An AF_XDP socket on one receive queue of an interface: whole frames, in memory of this process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_send_buffer_size_force, set_xdp_rx_ring_size, set_xdp_tx_ring_size,
    set_xdp_umem_completion_ring_size, set_xdp_umem_fill_ring_size, set_xdp_umem_reg,
    xdp_mmap_offsets, xdp_statistics,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions, XdpUmemReg,
    XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, send, socket_with};

use super::retry_while_busy;
use super::ring::{Mapping, Ring};

/// Frames for each direction, and places in each ring.
const FRAMES: u32 = 512;
/// Largest frame that the kernel supports without huge pages, in bytes.
pub(super) const FRAME_BYTES: usize = 4096;
const FRAME: u64 = FRAME_BYTES as u64;
/// Room of one transmission, two frames one behind the other, in bytes: a page with all its
/// headers.
const PAIR_BYTES: u64 = 2 * FRAME;
/// Longest packet that is joined from several frames, in bytes.
const JOINED_BYTES: usize = 16 << 10;
/// Number of free pairs at which completed ones are collected.
const FEW_PAIRS: usize = FRAMES as usize / 8;
/// Send buffer of the socket, in bytes, the kernel's own records included.
const SEND_BYTES: usize = 8 << 20;

/// The socket, its frames and its rings.
#[derive(Debug)]
pub(super) struct XskSocket {
    received: Ring<XdpDesc>,
    fill: Ring<u64>,
    transmit: Ring<XdpDesc>,
    completed: Ring<u64>,
    /// Free pairs of frames for transmission.
    free: Vec<u64>,
    /// Received part of a packet of several frames.
    joined: Vec<u8>,
    /// True if the transmission ring holds frames that the kernel has not taken yet.
    has_unsent: bool,
    // Field order: the kernel releases the frames before they are unmapped.
    fd: OwnedFd,
    frames: Mapping,
}

impl XskSocket {
    /// Binds to the queue; nothing arrives before a program at the interface passes it on.
    pub(super) fn bind(interface: u32, queue: u32) -> rustix::io::Result<Self> {
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let frames = Mapping::anonymous(2 * FRAMES as usize * FRAME_BYTES)?;
        // Without the privilege for more, the system's default applies.
        let _ = set_socket_send_buffer_size_force(&fd, SEND_BYTES);
        set_xdp_umem_reg(
            &fd,
            XdpUmemReg {
                addr: frames.at::<u8>(0) as u64,
                len: frames.len() as u64,
                chunk_size: FRAME_BYTES as u32,
                headroom: 0,
                flags: XdpUmemRegFlags::empty(),
                tx_metadata_len: 0,
            },
        )?;
        set_xdp_umem_fill_ring_size(&fd, FRAMES)?;
        set_xdp_umem_completion_ring_size(&fd, FRAMES)?;
        set_xdp_rx_ring_size(&fd, FRAMES)?;
        set_xdp_tx_ring_size(&fd, FRAMES)?;
        let at = xdp_mmap_offsets(&fd)?;
        let mut fill = Ring::map(fd.as_fd(), &at.fr, XDP_UMEM_PGOFF_FILL_RING, FRAMES)?;
        let completed = Ring::map(fd.as_fd(), &at.cr, XDP_UMEM_PGOFF_COMPLETION_RING, FRAMES)?;
        let received = Ring::map(fd.as_fd(), &at.rx, XDP_PGOFF_RX_RING, FRAMES)?;
        let transmit = Ring::map(fd.as_fd(), &at.tx, XDP_PGOFF_TX_RING, FRAMES)?;
        fill.put((0..u64::from(FRAMES)).map(|frame| frame * FRAME));
        bind_when_free(fd.as_fd(), interface, queue)?;
        let pairs = u64::from(FRAMES) / 2..u64::from(FRAMES);
        let free = pairs.map(|pair| pair * PAIR_BYTES).collect();
        let joined = Vec::with_capacity(JOINED_BYTES);
        Ok(Self {
            received,
            fill,
            transmit,
            completed,
            free,
            joined,
            has_unsent: false,
            fd,
            frames,
        })
    }

    /// True if nothing has come.
    pub(super) fn is_empty(&self) -> bool {
        self.received.is_empty()
    }

    /// Passes waiting packets on, as many as a ring holds at most; returns whether there were any.
    pub(super) fn take(&mut self, mut each: impl FnMut(&mut [u8])) -> bool {
        let Self { received, fill, frames, joined, .. } = self;
        let mut taken = 0;
        while taken < FRAMES
            && let Some(frame) = received.take(taken)
        {
            taken += 1;
            // SAFETY: the frame is ours until it is put into the fill ring again.
            let bytes = unsafe { frames.bytes(frame.addr, frame.len as usize) };
            let goes_on = frame.options.contains(XdpDescOptions::XDP_PKT_CONTD);
            if joined.is_empty() && !goes_on {
                each(bytes);
            } else {
                let room = JOINED_BYTES - joined.len();
                // A packet that is too long is cut off, and dropped by the parser.
                joined.extend_from_slice(&bytes[..bytes.len().min(room)]);
                if !goes_on {
                    each(joined);
                    joined.clear();
                }
            }
            fill.put(std::iter::once(frame.addr - frame.addr % FRAME));
        }
        received.release(taken);
        taken > 0
    }

    /// Puts a packet of `head` and `body` into the ring; returns false if there is no room.
    pub(super) fn put(&mut self, head: &[u8], body: &[u8]) -> bool {
        if self.free.len() < FEW_PAIRS {
            self.collect();
        }
        let len = (head.len() + body.len()) as u64;
        if len > PAIR_BYTES {
            return false;
        }
        let Some(addr) = self.free.pop() else { return false };
        // SAFETY: the pair is ours until the kernel has it.
        let pair = unsafe { self.frames.bytes(addr, len as usize) };
        let (head_room, body_room) = pair.split_at_mut(head.len());
        head_room.copy_from_slice(head);
        body_room.copy_from_slice(body);
        let descriptor = |addr, len: u64, options| XdpDesc { addr, len: len as u32, options };
        let last = XdpDescOptions::empty();
        if len <= FRAME {
            self.transmit.put([descriptor(addr, len, last)].into_iter());
        } else {
            let first = descriptor(addr, FRAME, XdpDescOptions::XDP_PKT_CONTD);
            let rest = descriptor(addr + FRAME, len - FRAME, last);
            self.transmit.put([first, rest].into_iter());
        }
        self.has_unsent = true;
        true
    }

    /// Makes the kernel send the frames in the ring. Those that it does not take, because it is
    /// busy or the interface is down, go the next time; the link above replays losses.
    pub(super) fn flush(&mut self) {
        while std::mem::take(&mut self.has_unsent) {
            match send(&self.fd, &[], SendFlags::DONTWAIT) {
                Ok(_) => {}
                Err(Errno::INTR) => self.has_unsent = true,
                Err(_) => {
                    self.has_unsent = true;
                    return;
                }
            }
        }
    }

    /// Returns the number of received packets that were lost for lack of room.
    pub(super) fn lost(&self) -> u64 {
        xdp_statistics(&self.fd).map_or(0, |kernel| {
            let for_frames = kernel.rx_fill_ring_empty_descs.unwrap_or(0);
            kernel.rx_dropped + kernel.rx_ring_full.unwrap_or(0) + for_frames
        })
    }

    /// Collects the frames that the kernel has sent.
    fn collect(&mut self) {
        let mut taken = 0;
        while let Some(addr) = self.completed.take(taken) {
            taken += 1;
            // The second frame of a pair is freed with the first.
            if addr % PAIR_BYTES == 0 {
                self.free.push(addr);
            }
        }
        self.completed.release(taken);
    }
}

impl AsFd for XskSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Binds in copy mode, which every interface supports, and retries while the queue is busy.
fn bind_when_free(fd: BorrowedFd<'_>, interface: u32, queue: u32) -> rustix::io::Result<()> {
    let flags = SocketAddrXdpFlags::XDP_COPY | SocketAddrXdpFlags::XDP_USE_SG;
    let address = SocketAddrXdp::new(flags, interface, queue);
    retry_while_busy(|| bind(fd, &address))
}
