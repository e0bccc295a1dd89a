//! Many datagrams per system call, going out: `sendmmsg`, and runs of equal datagrams to one
//! address as one message that the kernel, or the network card, cuts up (`UDP_SEGMENT`). One that
//! goes alone goes by `sendto`, which costs less.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use venice_wire::{
    MAX_HOP_BYTES, MAX_SEALED_PIECES, SEAL_OVERHEAD_BYTES, SEAL_TAG_BYTES, SEALED_HEADER_BYTES,
};

use super::raw_address::RawAddress;
use super::syscall::{Control, IoVec, MMsgHdr, sendmmsg, sendto};
use crate::seal::Sealer;

/// Room for the longest message, however it is sealed.
const SLOT_BYTES: usize = MAX_HOP_BYTES + MAX_SEALED_PIECES as usize * SEAL_OVERHEAD_BYTES;
/// What is gathered before it has to be sent.
const GATHERED_BYTES: usize = 128 << 10;
/// Messages gathered before they have to be sent.
const GATHERED_MESSAGES: usize = 32;
/// Messages of one batch, with room for the pieces of the last one.
const MESSAGES: usize = GATHERED_MESSAGES + MAX_SEALED_PIECES as usize;
/// More at once, in a train or out of it, are a stream's.
pub(super) const FEW_DATAGRAMS: usize = 4;
/// Datagrams in one train: `UDP_MAX_SEGMENTS` of the kernels that began it.
const TRAIN_DATAGRAMS: usize = 64;
/// Bytes in one train: what IP can carry, with room for every header.
const TRAIN_BYTES: usize = 65_000;

/// Datagrams gathered to be sent together. Allocates when made, never after.
pub(super) struct Outgoing {
    buffer: Box<[u8]>,
    used: usize,
    trains: [Train; MESSAGES],
    count: usize,
    /// What the kernel is told of each train.
    told: Box<[Told]>,
    headers: Box<[MMsgHdr]>,
    /// The longest datagrams the kernel can be asked to cut trains into; 0: it does not.
    cuts_to: usize,
}

// SAFETY: the pointers in the headers lead to the other boxes, which belong to this one alone.
unsafe impl Send for Outgoing {}

/// What a header points to.
#[derive(Clone, Copy)]
struct Told {
    to: RawAddress,
    iovec: IoVec,
    control: Control,
}

/// Datagrams to one address, one behind the other in the buffer.
#[derive(Clone, Copy)]
struct Train {
    to: RawAddress,
    start: usize,
    len: usize,
    /// Length of each datagram but the last, which may be shorter.
    each: usize,
    /// No datagram can be added: the last one was shorter, or cutting would fragment them.
    is_closed: bool,
}

impl Outgoing {
    /// `cuts`: whether the socket's kernel knows `UDP_SEGMENT`.
    pub(super) fn new(cuts: bool) -> Self {
        let cuts_to = if cuts { usize::MAX } else { 0 };
        let none = Train { to: RawAddress::EMPTY, start: 0, len: 0, each: 0, is_closed: true };
        let buffer = vec![0; GATHERED_BYTES + SLOT_BYTES].into_boxed_slice();
        let nothing = Told { to: RawAddress::EMPTY, iovec: IoVec::EMPTY, control: Control::EMPTY };
        let told = vec![nothing; MESSAGES].into_boxed_slice();
        let headers = vec![MMsgHdr::EMPTY; MESSAGES].into_boxed_slice();
        Self { buffer, used: 0, trains: [none; MESSAGES], count: 0, told, headers, cuts_to }
    }

    pub(super) fn is_full(&self) -> bool {
        self.used > GATHERED_BYTES || self.count >= GATHERED_MESSAGES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Where the next message goes that is sent as it is; then call [`Outgoing::push`]. There must
    /// be room.
    pub(super) fn plain_buffer(&mut self) -> &mut [u8] {
        &mut self.buffer[self.used..][..MAX_HOP_BYTES]
    }

    /// Adds the first `len` bytes of [`Outgoing::plain_buffer`]. `limit`: the longest datagram
    /// that is not fragmented.
    pub(super) fn push(&mut self, to: &RawAddress, len: usize, limit: usize) {
        assert!(!self.is_full() && len <= MAX_HOP_BYTES, "the caller checks for room");
        self.add(to, len, limit);
    }

    /// Where the next message goes that is to be sealed; then call [`Outgoing::push_sealed`].
    /// There must be room.
    pub(super) fn sealed_buffer(&mut self) -> &mut [u8] {
        &mut self.buffer[self.used + SEALED_HEADER_BYTES..][..MAX_HOP_BYTES]
    }

    /// Seals and adds the first `len` bytes of [`Outgoing::sealed_buffer`], in as few datagrams of
    /// at most `limit` bytes as hold them.
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
            // Nothing goes out from a forked child's copy; its driver has said so already.
            let Ok(sealed) = sealer.seal_piece(datagram, text, piece, pieces) else { return };
            self.add(to, sealed, limit);
        }
    }

    /// Moves the pieces of a message apart, so that each has room for its header and its tag.
    fn spread(&mut self, len: usize, each: usize, pieces: usize) {
        let text = self.used + SEALED_HEADER_BYTES;
        for piece in (1..pieces).rev() {
            let from = text + piece * each;
            let to = from + piece * SEAL_OVERHEAD_BYTES;
            self.buffer.copy_within(from..(from + each).min(text + len), to);
        }
        const { assert!(SEAL_OVERHEAD_BYTES == SEALED_HEADER_BYTES + SEAL_TAG_BYTES) }
    }

    fn add(&mut self, to: &RawAddress, len: usize, limit: usize) {
        let start = self.used;
        self.used += len;
        if let Some(train) = self.trains[..self.count].last_mut()
            && !train.is_closed
            && train.to == *to
            && (1..=train.each).contains(&len)
            && train.len + len <= TRAIN_BYTES
            && train.len / train.each < TRAIN_DATAGRAMS
        {
            train.len += len;
            train.is_closed = len < train.each;
            return;
        }
        let is_closed = len > limit.min(self.cuts_to);
        self.trains[self.count] = Train { to: *to, start, len, each: len.max(1), is_closed };
        self.count += 1;
    }

    /// Whether there is more than a message or two have, in however many pieces they travel.
    pub(super) fn is_stream(&self) -> bool {
        let trains = &self.trains[..self.count];
        self.count > FEW_DATAGRAMS
            || trains.iter().any(|train| train.len > FEW_DATAGRAMS * train.each)
    }

    /// Offers datagram after datagram to another way than the socket; what `take` takes is
    /// forgotten. It ends with the first that it does not take, or a train, so that none is
    /// overtaken.
    pub(super) fn divert(&mut self, mut take: impl FnMut(&RawAddress, &[u8]) -> bool) {
        let trains = self.trains[..self.count].iter();
        let taken = trains
            .take_while(|train| {
                train.len == train.each && take(&train.to, &self.buffer[train.start..][..train.len])
            })
            .count();
        self.trains.copy_within(taken..self.count, 0);
        self.count -= taken;
        if self.count == 0 {
            self.used = 0;
        }
    }

    /// Sends everything, as far as the socket takes it without waiting, and forgets it. What the
    /// socket does not take is lost, as datagrams may be; the link above repeats it.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let count = std::mem::take(&mut self.count);
        self.used = 0;
        if let [train] = &self.trains[..count]
            && train.len <= train.each
        {
            let datagram = &self.buffer[train.start..][..train.len];
            return send_one(socket, datagram, &train.to).map(drop);
        }
        let told = self.told.as_mut_ptr();
        for (index, train) in self.trains[..count].iter().enumerate() {
            let base = self.buffer[train.start..][..train.len].as_mut_ptr().cast();
            // SAFETY: as many as there are trains, and nobody else has a reference to them.
            let told = unsafe { &mut *told.add(index) };
            told.to = train.to;
            told.iovec = IoVec { base, len: train.len };
            let header = &mut self.headers[index];
            *header = MMsgHdr {
                name: (&raw mut told.to.bytes).cast(),
                name_len: train.to.len,
                iov: &raw mut told.iovec,
                iov_len: 1,
                ..MMsgHdr::EMPTY
            };
            if train.len > train.each {
                told.control = Control::segment(train.each as u16);
                header.control = (&raw mut told.control).cast();
                header.control_len = Control::SPACE;
            }
        }
        let mut sent = 0;
        while sent < count {
            // SAFETY: headers `sent..count` are initialised and point to datagrams, addresses,
            // control messages and io vectors that live until the call is over.
            match unsafe { sendmmsg(socket, self.headers[sent..].as_mut_ptr(), count - sent) } {
                Ok(more) => sent += more,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Ok(()),
                Err(errno) if is_bad_luck(errno) => {
                    if self.trains[sent].len > self.trains[sent].each {
                        self.send_singly(socket, sent, errno)?;
                    }
                    sent += 1;
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// A train that could not be sent as one, because its way or its device does not allow it.
    fn send_singly(
        &mut self,
        socket: BorrowedFd<'_>,
        which: usize,
        errno: Errno,
    ) -> rustix::io::Result<()> {
        let Train { to, start, len, each, .. } = self.trains[which];
        match errno {
            Errno::IO | Errno::OPNOTSUPP => self.cuts_to = 0,
            // Longer than some way's MTU.
            Errno::INVAL | Errno::MSGSIZE => self.cuts_to = self.cuts_to.min(each - 1),
            _ => {}
        }
        for datagram in self.buffer[start..][..len].chunks(each) {
            if !send_one(socket, datagram, &to)? {
                break;
            }
        }
        Ok(())
    }
}

/// Sends a datagram by itself; whether the socket takes more.
fn send_one(socket: BorrowedFd<'_>, datagram: &[u8], to: &RawAddress) -> rustix::io::Result<bool> {
    loop {
        match sendto(socket, datagram, to) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Ok(false),
            Err(errno) if is_bad_luck(errno) => return Ok(true),
            Err(errno) => return Err(errno),
        }
    }
}

/// An unreachable peer is that datagram's bad luck, not the batch's.
fn is_bad_luck(errno: Errno) -> bool {
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
