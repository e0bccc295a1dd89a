//! Receives many datagrams per system call: `recvmmsg`, in which each message may be a train of
//! equal datagrams that the kernel has kept together (`UDP_GRO`). If no more than one message is
//! expected, and frames contain their length, `recvfrom`, which costs less.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use venice_wire::Frame;

use super::outgoing::FEW_DATAGRAMS;
use super::raw_address::RawAddress;
use super::syscall::{Control, IoVec, MMsgHdr, MSG_TRUNC, recvfrom, recvmmsg};

/// Messages of one batch.
const MESSAGES: usize = 16;
/// Longest message in bytes, train or not.
const MESSAGE_BYTES: usize = 64 << 10;

/// Buffers for a batch of messages. Allocates on construction only.
pub(super) struct Incoming {
    headers: Box<[MMsgHdr]>,
    addresses: Box<[RawAddress]>,
    controls: Box<[Control]>,
    /// Only pages that datagrams were written to become resident.
    buffers: Box<[u8]>,
    _iovecs: Box<[IoVec]>,
    filled: usize,
    /// Number of messages to receive: a look for a second message costs as much as one in vain.
    batch_len: usize,
    /// True if every datagram is a plain frame of the fabric, or invalid.
    has_frames: bool,
}

// SAFETY: the pointers in the headers lead to the other boxes, which this value alone owns.
unsafe impl Send for Incoming {}

impl Incoming {
    pub(super) fn new() -> Self {
        let mut addresses = vec![RawAddress::EMPTY; MESSAGES].into_boxed_slice();
        let mut controls = vec![Control::EMPTY; MESSAGES].into_boxed_slice();
        let mut buffers = vec![0; MESSAGES * MESSAGE_BYTES].into_boxed_slice();
        let mut iovecs = vec![IoVec::EMPTY; MESSAGES].into_boxed_slice();
        let mut headers = vec![MMsgHdr::EMPTY; MESSAGES].into_boxed_slice();
        let (first_buffer, first_iovec) = (buffers.as_mut_ptr(), iovecs.as_mut_ptr());
        let (first_address, first_control) = (addresses.as_mut_ptr(), controls.as_mut_ptr());
        for (index, header) in headers.iter_mut().enumerate() {
            // SAFETY: within the buffers, which have room for all messages.
            let base = unsafe { first_buffer.add(index * MESSAGE_BYTES) };
            // SAFETY: within the io vectors, which nothing else uses.
            unsafe { *first_iovec.add(index) = IoVec { base: base.cast(), len: MESSAGE_BYTES } };
            // SAFETY: all three have as many elements as there are headers.
            unsafe {
                header.name = first_address.add(index).cast();
                header.control = first_control.add(index).cast();
                header.iov = first_iovec.add(index);
            }
            header.iov_len = 1;
            header.name_len = RawAddress::LEN;
            header.control_len = Control::SPACE;
        }
        let (filled, batch_len, has_frames) = (0, 1, false);
        Self {
            headers,
            addresses,
            controls,
            buffers,
            _iovecs: iovecs,
            filled,
            batch_len,
            has_frames,
        }
    }

    /// Sets whether every datagram is a plain frame, neither sealed nor in a packet: the frames'
    /// lengths then separate the datagrams of a train without the kernel's segment size.
    pub(super) fn set_has_frames(&mut self, has_frames: bool) {
        self.has_frames = has_frames;
    }

    /// True if the last batch has most likely left messages behind. If there are others
    /// nevertheless, the socket stays readable.
    pub(super) fn is_full(&self) -> bool {
        self.filled == self.batch_len && self.batch_len > 1
    }

    /// True if the last batch held more than a message or two.
    pub(super) fn is_stream(&self) -> bool {
        let mut controls = self.headers[..self.filled].iter().zip(&self.controls);
        let is_train = |(header, control): (&MMsgHdr, &Control)| {
            header.control_len > 0
                && control
                    .segment_bytes()
                    .is_some_and(|each| FEW_DATAGRAMS * each < header.len as usize)
        };
        self.filled > FEW_DATAGRAMS || controls.any(is_train)
    }

    /// Receives waiting messages without blocking; returns how many.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        // The kernel has overwritten the lengths in the headers that it filled last.
        for header in &mut self.headers[..self.filled] {
            header.name_len = RawAddress::LEN;
            header.control_len = Control::SPACE;
        }
        self.batch_len = (self.filled * 2).clamp(1, MESSAGES);
        self.filled = 0;
        if self.has_frames && self.batch_len == 1 {
            return self.receive_one(socket);
        }
        let received = loop {
            // SAFETY: every header points to a buffer, an address, a control message and an io
            // vector that live as long as `self` and are not otherwise used until the call is over.
            match unsafe { recvmmsg(socket, self.headers.as_mut_ptr(), self.batch_len) } {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break 0,
                Err(errno) => return Err(errno),
            }
        };
        if received == 0 {
            // Nothing was overwritten, and the density of arrivals is not known to have changed.
            return Ok(0);
        }
        for (address, header) in self.addresses.iter_mut().zip(&self.headers[..received]) {
            address.len = header.name_len;
        }
        self.filled = received;
        Ok(received)
    }

    /// Receives one message, and fills in its header as the kernel would have.
    fn receive_one(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        let (into, from) = (&mut self.buffers[..MESSAGE_BYTES], &mut self.addresses[0]);
        let len = loop {
            match recvfrom(socket, into, from) {
                Ok(len) => break len,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(0),
                Err(errno) => return Err(errno),
            }
        };
        let header = &mut self.headers[0];
        (header.len, header.flags, header.control_len) = (len as u32, 0, 0);
        if let Some(each) = Frame::announced_len(into).filter(|each| *each < len) {
            self.controls[0] = Control::coalesced(each as u16);
            header.control_len = Control::SPACE;
        }
        self.filled = 1;
        Ok(1)
    }

    /// Calls `take` with every datagram of the last batch and its sender. Skips one that did not
    /// fit.
    pub(super) fn for_each(&mut self, mut take: impl FnMut(&RawAddress, &mut [u8])) {
        let buffers = self.buffers.chunks_exact_mut(MESSAGE_BYTES);
        let messages = self.headers[..self.filled].iter().zip(&self.addresses).zip(&self.controls);
        for (((header, address), control), buffer) in messages.zip(buffers) {
            let len = header.len as usize;
            if header.flags & MSG_TRUNC != 0 || len > MESSAGE_BYTES {
                continue;
            }
            let each = if header.control_len > 0 { control.segment_bytes() } else { None };
            // Datagrams of a train lie one behind the other; the last may be shorter.
            match each {
                None => take(address, &mut buffer[..len]),
                Some(each) => buffer[..len].chunks_mut(each).for_each(|one| take(address, one)),
            }
        }
    }
}
