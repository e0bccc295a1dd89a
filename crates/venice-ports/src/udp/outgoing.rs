//! Sends many datagrams per system call: `sendmmsg`, with runs of equal datagrams to one address as
//! one message that the kernel, or the network card, cuts up (`UDP_SEGMENT`). A single datagram
//! goes by `sendto`, which costs less. Frames that the fabric keeps for a replay are sent from
//! where they are kept, and lent payloads from where they are.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use venice_fabric::{KeptBytes, KeptFrame};
use venice_wire::{
    MAX_FRAME_BYTES, MAX_HOP_BYTES, MAX_SEALED_PIECES, SEAL_OVERHEAD_BYTES, SEAL_TAG_BYTES,
    SEALED_HEADER_BYTES,
};

use super::raw_address::RawAddress;
use super::syscall::{Control, IoVec, MMsgHdr, sendmmsg, sendto};
use crate::seal::Sealer;

/// Room for the longest message, in any form of sealing.
const SLOT_BYTES: usize = MAX_HOP_BYTES + MAX_SEALED_PIECES as usize * SEAL_OVERHEAD_BYTES;
/// Longest frames in one train.
pub(super) const TRAIN_FRAMES: usize = TRAIN_BYTES / MAX_FRAME_BYTES;
/// Bytes gathered before they must be sent: two whole trains of the longest frames. The beginning
/// of a third would cost as much as a whole one.
pub(super) const GATHERED_BYTES: usize = 2 * TRAIN_FRAMES * MAX_FRAME_BYTES;
/// Messages gathered before they must be sent.
const GATHERED_MESSAGES: usize = 32;
/// Messages of one batch, with room for the pieces of the last one.
const MESSAGES: usize = GATHERED_MESSAGES + MAX_SEALED_PIECES as usize;
/// Most datagrams at once that do not count as a stream, in a train or single.
pub(super) const FEW_DATAGRAMS: usize = 4;
/// Kept frames gathered before they must be sent: whole trains, too.
const GATHERED_KEPT: usize = 2 * TRAIN_FRAMES;
/// Datagrams in one train: `UDP_MAX_SEGMENTS` of the first kernels with trains.
const TRAIN_DATAGRAMS: usize = 64;
/// Bytes in one train: the limit of IP, less room for every header.
const TRAIN_BYTES: usize = 65_000;

/// Datagrams gathered for one transmission. Allocates on construction only.
pub(super) struct Outgoing {
    buffer: Box<[u8]>,
    used: usize,
    /// Frames that are not in the buffer.
    kept: Vec<KeptFrame>,
    /// Buffer that joins the parts of a single datagram.
    single: Box<[u8]>,
    trains: [Train; MESSAGES],
    count: usize,
    /// Address and control message of each train, as the kernel reads them.
    envelopes: Box<[Envelope]>,
    headers: Box<[MMsgHdr]>,
    iovecs: Box<[IoVec]>,
    /// Longest datagrams into which the kernel cuts trains, in bytes; 0: it cuts none.
    cuts_to: usize,
}

// SAFETY: the pointers in the headers lead to the other boxes, which this value alone owns; those
// in the io vectors lead to frames of others only during a transmission.
unsafe impl Send for Outgoing {}

/// Target of a header's pointers.
#[derive(Clone, Copy)]
struct Envelope {
    to: RawAddress,
    control: Control,
}

/// Datagrams to one address: one behind the other in the buffer, or each where it is kept.
#[derive(Clone, Copy)]
struct Train {
    to: RawAddress,
    is_kept: bool,
    /// Start of the train, in the buffer or among the kept frames.
    start: usize,
    len: usize,
    /// Length of each datagram but the last, which may be shorter.
    each: usize,
    /// True if no datagram can be added: the last one was shorter, or cutting would fragment them.
    is_closed: bool,
}

impl Outgoing {
    /// Makes an empty batch. `cuts`: true if the socket's kernel supports `UDP_SEGMENT`.
    pub(super) fn new(cuts: bool) -> Self {
        let cuts_to = if cuts { usize::MAX } else { 0 };
        let none = Train {
            to: RawAddress::EMPTY,
            is_kept: false,
            start: 0,
            len: 0,
            each: 0,
            is_closed: true,
        };
        let empty = Envelope { to: RawAddress::EMPTY, control: Control::EMPTY };
        Self {
            buffer: vec![0; GATHERED_BYTES + SLOT_BYTES].into_boxed_slice(),
            used: 0,
            kept: Vec::with_capacity(GATHERED_KEPT),
            single: vec![0; MAX_FRAME_BYTES].into_boxed_slice(),
            trains: [none; MESSAGES],
            count: 0,
            envelopes: vec![empty; MESSAGES].into_boxed_slice(),
            headers: vec![MMsgHdr::EMPTY; MESSAGES].into_boxed_slice(),
            iovecs: vec![IoVec::EMPTY; MESSAGES + 2 * GATHERED_KEPT].into_boxed_slice(),
            cuts_to,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.used >= GATHERED_BYTES
            || self.count >= GATHERED_MESSAGES
            || self.kept.len() >= GATHERED_KEPT
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the place of the next plain message; then call [`Outgoing::push`]. There must be
    /// room.
    pub(super) fn plain_buffer(&mut self) -> &mut [u8] {
        &mut self.buffer[self.used..][..MAX_HOP_BYTES]
    }

    /// Adds the first `len` bytes of [`Outgoing::plain_buffer`]. `limit`: longest datagram that is
    /// not fragmented, in bytes.
    pub(super) fn push(&mut self, to: &RawAddress, len: usize, limit: usize) {
        assert!(!self.is_full() && len <= MAX_HOP_BYTES, "the caller checks for room");
        self.add_written(to, len, limit);
    }

    /// Adds a frame that stays where it is kept until [`Outgoing::send_with`] fetches it. There
    /// must be room. `limit`: see [`Outgoing::push`].
    pub(super) fn push_kept(&mut self, to: &RawAddress, frame: KeptFrame, limit: usize) {
        assert!(!self.is_full(), "the caller checks for room");
        let (start, len) = (self.kept.len(), frame.len_bytes());
        self.kept.push(frame);
        self.add(Train { to: *to, is_kept: true, start, len, each: len, is_closed: false }, limit);
    }

    /// Returns the place of the next message to be sealed; then call [`Outgoing::push_sealed`].
    /// There must be room.
    pub(super) fn sealed_buffer(&mut self) -> &mut [u8] {
        &mut self.buffer[self.used + SEALED_HEADER_BYTES..][..MAX_HOP_BYTES]
    }

    /// Seals and adds the first `len` bytes of [`Outgoing::sealed_buffer`], in the fewest datagrams
    /// of at most `limit` bytes.
    pub(super) fn push_sealed(
        &mut self,
        to: &RawAddress,
        len: usize,
        limit: usize,
        sealer: &mut Sealer,
    ) {
        assert!(!self.is_full() && len <= MAX_HOP_BYTES, "the caller checks for room");
        let room = limit.saturating_sub(SEAL_OVERHEAD_BYTES).max(1);
        let pieces = len.div_ceil(room).clamp(1, usize::from(MAX_SEALED_PIECES));
        let each = len.div_ceil(pieces);
        self.spread(len, each, pieces);
        for piece in 0..pieces {
            let text = each.min(len - piece * each);
            let (piece, pieces) = (piece as u8, pieces as u8);
            let datagram = &mut self.buffer[self.used..];
            // A forked child's copy sends nothing; its driver has already returned the error.
            let Ok(sealed) = sealer.seal_piece(datagram, text, piece, pieces) else { return };
            self.add_written(to, sealed, limit);
        }
    }

    /// Moves the pieces of a message apart to make room for the header and the tag of each.
    fn spread(&mut self, len: usize, each: usize, pieces: usize) {
        let text = self.used + SEALED_HEADER_BYTES;
        for piece in (1..pieces).rev() {
            let from = text + piece * each;
            let to = from + piece * SEAL_OVERHEAD_BYTES;
            self.buffer.copy_within(from..(from + each).min(text + len), to);
        }
        const { assert!(SEAL_OVERHEAD_BYTES == SEALED_HEADER_BYTES + SEAL_TAG_BYTES) }
    }

    fn add_written(&mut self, to: &RawAddress, len: usize, limit: usize) {
        let (start, each) = (self.used, len.max(1));
        self.used += len;
        self.add(Train { to: *to, is_kept: false, start, len, each, is_closed: false }, limit);
    }

    /// Adds a datagram: to the last train, or as the first of another.
    fn add(&mut self, one: Train, limit: usize) {
        if let Some(train) = self.trains[..self.count].last_mut()
            && !train.is_closed
            && (train.to, train.is_kept) == (one.to, one.is_kept)
            && (1..=train.each).contains(&one.len)
            && train.len + one.len <= TRAIN_BYTES
            && train.len / train.each < TRAIN_DATAGRAMS
        {
            train.len += one.len;
            train.is_closed = one.len < train.each;
            return;
        }
        let is_closed = one.len > limit.min(self.cuts_to);
        self.trains[self.count] = Train { is_closed, ..one };
        self.count += 1;
    }

    /// True if there is more than a message or two, in any number of pieces.
    pub(super) fn is_stream(&self) -> bool {
        let trains = &self.trains[..self.count];
        self.count > FEW_DATAGRAMS
            || trains.iter().any(|train| train.len > FEW_DATAGRAMS * train.each)
    }

    /// Offers datagram after datagram to another path than the socket, and removes those that
    /// `take` accepts. It stops at the first that `take` refuses, one in parts, or a train, which
    /// preserves the order. `kept`: see [`Outgoing::send_with`].
    pub(super) fn divert<'a>(
        &mut self,
        kept: impl Fn(&KeptFrame) -> Option<KeptBytes<'a>>,
        mut take: impl FnMut(&RawAddress, &[u8]) -> bool,
    ) {
        let mut take_train = |train: &Train| {
            if train.is_kept {
                let frame = kept(&self.kept[train.start]);
                frame.is_none_or(|frame| frame.lent.is_none() && take(&train.to, frame.head))
            } else {
                take(&train.to, &self.buffer[train.start..][..train.len])
            }
        };
        let trains = self.trains[..self.count].iter();
        let taken = trains.take_while(|train| train.len == train.each && take_train(train)).count();
        self.trains.copy_within(taken..self.count, 0);
        self.count -= taken;
        if self.count == 0 {
            self.forget();
        }
    }

    fn forget(&mut self) {
        (self.count, self.used) = (0, 0);
        self.kept.clear();
    }

    /// Sends like [`Outgoing::send_with`], without kept frames.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
        assert!(self.kept.is_empty(), "no frame of the batch is kept");
        self.send_with(socket, |_| None)
    }

    /// Sends everything that the socket accepts without blocking, and clears the batch. The rest is
    /// lost, as datagrams may be; the link above replays it. `kept` returns the bytes of kept
    /// frames; those that are gone are skipped.
    pub(super) fn send_with<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        kept: impl Fn(&KeptFrame) -> Option<KeptBytes<'a>>,
    ) -> rustix::io::Result<()> {
        let sent = match self.trains[..self.count] {
            [] => Ok(()),
            [train] if train.len <= train.each => self.send_singly(socket, &train, &kept),
            _ => self.send_all(socket, &kept),
        };
        self.forget();
        sent
    }

    fn send_all<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        kept: &impl Fn(&KeptFrame) -> Option<KeptBytes<'a>>,
    ) -> rustix::io::Result<()> {
        let count = self.lay_out(kept);
        let mut sent = 0;
        while sent < count {
            // SAFETY: headers `sent..count` are initialised and point to datagrams, addresses,
            // control messages and io vectors that live until the call is over: `'a` outlives it.
            match unsafe { sendmmsg(socket, self.headers[sent..].as_mut_ptr(), count - sent) } {
                Ok(more) => sent += more,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Ok(()),
                Err(errno) if is_peer_error(errno) => {
                    let train = self.trains[sent];
                    if train.len > train.each {
                        self.note_refusal(train.each, errno);
                        self.send_singly(socket, &train, kept)?;
                    }
                    sent += 1;
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Makes a header for each train; returns the number of messages to send.
    fn lay_out<'a>(&mut self, kept: &impl Fn(&KeptFrame) -> Option<KeptBytes<'a>>) -> usize {
        let (mut count, mut laid) = (0, 0);
        for index in 0..self.count {
            let train = self.trains[index];
            let (first, mut len) = (laid, 0);
            let mut lay = |address: *const u8, more: usize| {
                self.iovecs[laid] = IoVec { base: address.cast_mut().cast(), len: more };
                (laid, len) = (laid + 1, len + more);
            };
            if train.is_kept {
                for frame in self.kept[train.places()].iter().filter_map(kept) {
                    lay(frame.head.as_ptr(), frame.head.len());
                    frame.lent.iter().for_each(|lent| lay(lent.address(), lent.len_bytes()));
                }
                if laid == first {
                    continue;
                }
            } else {
                lay(self.buffer[train.start..].as_ptr(), train.len);
            }
            let control = Control::segment(train.each as u16);
            self.envelopes[count] = Envelope { to: train.to, control };
            let control_len = if len > train.each { Control::SPACE } else { 0 };
            self.headers[count] = MMsgHdr {
                name_len: train.to.len,
                iov_len: laid - first,
                control_len,
                ..MMsgHdr::EMPTY
            };
            self.trains[count] = train;
            count += 1;
        }
        let (envelopes, iovecs) = (self.envelopes.as_mut_ptr(), self.iovecs.as_mut_ptr());
        let mut first = 0;
        for (index, header) in self.headers[..count].iter_mut().enumerate() {
            // SAFETY: there is one of them for each header, and each has its io vectors in turn.
            unsafe {
                let envelope = envelopes.add(index);
                header.name = (&raw mut (*envelope).to.bytes).cast();
                header.iov = iovecs.add(first);
                if header.control_len > 0 {
                    header.control = (&raw mut (*envelope).control).cast();
                }
            }
            first += header.iov_len;
        }
        count
    }

    /// Records that a train could not be sent as one, because its route or its device does not
    /// allow it.
    fn note_refusal(&mut self, each: usize, errno: Errno) {
        match errno {
            Errno::IO | Errno::OPNOTSUPP => self.cuts_to = 0,
            // Longer than the MTU of some path.
            Errno::INVAL | Errno::MSGSIZE => self.cuts_to = self.cuts_to.min(each - 1),
            _ => {}
        }
    }

    /// Sends a train's datagrams one by one.
    fn send_singly<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        train: &Train,
        kept: &impl Fn(&KeptFrame) -> Option<KeptBytes<'a>>,
    ) -> rustix::io::Result<()> {
        if train.is_kept {
            for frame in self.kept[train.places()].iter().filter_map(kept) {
                let datagram = match frame.lent {
                    None => frame.head,
                    Some(_) => {
                        let len = frame.copy_to(&mut self.single);
                        &self.single[..len]
                    }
                };
                if !send_one(socket, datagram, &train.to)? {
                    break;
                }
            }
            return Ok(());
        }
        let (mut rest, mut takes_more) = (&self.buffer[train.start..][..train.len], true);
        // An empty datagram counts as one, too.
        while takes_more {
            let (datagram, others) = rest.split_at(train.each.min(rest.len()));
            takes_more = send_one(socket, datagram, &train.to)? && !others.is_empty();
            rest = others;
        }
        Ok(())
    }
}

impl Train {
    /// Returns the range of its frames among the kept ones.
    fn places(&self) -> Range<usize> {
        self.start..self.start + self.len.div_ceil(self.each)
    }
}

/// Sends a single datagram; returns whether the socket accepts more.
fn send_one(socket: BorrowedFd<'_>, datagram: &[u8], to: &RawAddress) -> rustix::io::Result<bool> {
    loop {
        match sendto(socket, datagram, to) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Ok(false),
            Err(errno) if is_peer_error(errno) => return Ok(true),
            Err(errno) => return Err(errno),
        }
    }
}

/// True for an error that concerns this datagram's peer only, such as an unreachable host, not the
/// batch.
fn is_peer_error(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NETUNREACH
            | Errno::NETDOWN
            | Errno::HOSTUNREACH
            | Errno::CONNREFUSED
            | Errno::ACCESS
            | Errno::PERM
            | Errno::INVAL
            | Errno::MSGSIZE
            | Errno::AFNOSUPPORT
            | Errno::IO
            | Errno::OPNOTSUPP
    )
}
