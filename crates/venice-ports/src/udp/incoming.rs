//! Many datagrams per system call, coming in: `recvmmsg`, each message perhaps a train of equal
//! datagrams that the kernel has kept together (`UDP_GRO`). Where no more than one message is
//! expected, and frames tell how long they are, `recvfrom`, which costs less.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use venice_wire::Frame;

use super::outgoing::FEW_DATAGRAMS;
use super::raw_address::RawAddress;
use super::syscall::{Control, IoVec, MMsgHdr, MSG_TRUNC, recvfrom, recvmmsg};

/// Messages of one batch.
const MESSAGES: usize = 16;
/// The longest a message can be, train or not.
const MESSAGE_BYTES: usize = 64 << 10;

/// Room for a batch of messages. Allocates when made, never after.
pub(super) struct Incoming {
    headers: Box<[MMsgHdr]>,
    addresses: Box<[RawAddress]>,
    controls: Box<[Control]>,
    /// Only what datagrams were written to becomes resident.
    buffers: Box<[u8]>,
    _iovecs: Box<[IoVec]>,
    filled: usize,
    /// How many to ask for: a look for a second message costs as much as one in vain.
    asked: usize,
    /// Every datagram is a frame of the fabric, unless it is rubbish.
    has_frames: bool,
}

// SAFETY: the pointers in the headers lead to the other boxes, which belong to this one alone.
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
            // SAFETY: within the io vectors, and nobody else uses them.
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
        let (filled, asked, has_frames) = (0, 1, false);
        Self { headers, addresses, controls, buffers, _iovecs: iovecs, filled, asked, has_frames }
    }

    /// Whether every datagram is a frame as it is, neither sealed nor in a packet: then where a
    /// train's datagrams end can be seen without the kernel's telling.
    pub(super) fn set_has_frames(&mut self, has_frames: bool) {
        self.has_frames = has_frames;
    }

    /// Whether the last batch has most likely left some behind. If there are others all the same,
    /// the socket stays readable.
    pub(super) fn is_full(&self) -> bool {
        self.filled == self.asked && self.asked > 1
    }

    /// Whether there was more in the last batch than a message or two have.
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

    /// Receives what is there, without waiting; returns how many messages.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        // The kernel has written its lengths over ours in those it filled last.
        for header in &mut self.headers[..self.filled] {
            header.name_len = RawAddress::LEN;
            header.control_len = Control::SPACE;
        }
        self.asked = (self.filled * 2).clamp(1, MESSAGES);
        self.filled = 0;
        if self.has_frames && self.asked == 1 {
            return self.receive_one(socket);
        }
        let received = loop {
            // SAFETY: every header points to a buffer, an address, a control message and an io
            // vector that live as long as `self` and are not otherwise used until the call is over.
            match unsafe { recvmmsg(socket, self.headers.as_mut_ptr(), self.asked) } {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break 0,
                Err(errno) => return Err(errno),
            }
        };
        if received == 0 {
            // Nothing was written over, and how dense they come is not known to have changed.
            return Ok(0);
        }
        for (address, header) in self.addresses.iter_mut().zip(&self.headers[..received]) {
            address.len = header.name_len;
        }
        self.filled = received;
        Ok(received)
    }

    /// Receives one message, and says of it what the kernel would have said.
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

    /// Calls `take` with every datagram received last and its sender. One that did not fit is
    /// left out.
    pub(super) fn for_each(&mut self, mut take: impl FnMut(&RawAddress, &mut [u8])) {
        let buffers = self.buffers.chunks_exact_mut(MESSAGE_BYTES);
        let messages = self.headers[..self.filled].iter().zip(&self.addresses).zip(&self.controls);
        for (((header, address), control), buffer) in messages.zip(buffers) {
            let len = header.len as usize;
            if header.flags & MSG_TRUNC != 0 || len > MESSAGE_BYTES {
                continue;
            }
            let each = if header.control_len > 0 { control.segment_bytes() } else { None };
            // Datagrams that came together lie one behind the other; the last may be shorter.
            match each {
                None => take(address, &mut buffer[..len]),
                Some(each) => buffer[..len].chunks_mut(each).for_each(|one| take(address, one)),
            }
        }
    }
}
