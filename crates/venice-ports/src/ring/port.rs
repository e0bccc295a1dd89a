//! One end of a ring port: frames to and from one other process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send};
use venice_fabric::{EmulatedLink, LinkModel};

use super::algorithm::{LINE_BYTES, RECORD_HEAD_BYTES, RECORD_LINES, Reader, Record, Writer};
use super::memory::{self, SharedRing};
use crate::PortError;

/// Longest frame that a ring carries, in bytes: the fabric's longest, with room for a network
/// header.
pub const RING_FRAME_BYTES: usize = RECORD_BYTES - RECORD_HEAD_BYTES;
const RECORD_BYTES: usize = RECORD_LINES as usize * LINE_BYTES;
/// Unit that travels between two processors.
const CACHE_LINE_BYTES: usize = 64;

/// A record, copied in whole cache lines: each is fetched once, by a load that touches no other
/// line.
#[repr(align(64))]
struct Received([u8; RECORD_BYTES]);

/// Shortest sleep, in nanoseconds: a wake-up takes longer than less.
pub(super) const TOO_SHORT_NS: u64 = 100_000;
/// Bells taken in one check for the other side's end.
const BELLS_PER_LOOK: usize = 16;

/// Properties of a ring port. The side that makes it chooses them; the other follows.
#[derive(Clone, Copy, Debug)]
pub struct RingConfig {
    /// Bytes of each of the two rings; rounded to a power of two, 64 KiB to 64 MiB.
    pub ring_bytes: usize,
    /// Link to emulate, if any: the reader leaves each frame in the ring until it would have
    /// arrived.
    pub link: Option<LinkModel>,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self { ring_bytes: 256 << 10, link: None }
    }
}

/// A reliable, ordered frame port to another process on this host.
///
/// Frames are built in the ring ([`RingPort::reserve`], [`RingPort::commit`]) and announced
/// together ([`RingPort::announce`]), which makes a system call only when the other side sleeps.
/// Each frame is copied out before it is parsed, because the other side could still change it.
///
/// Only [`RingPort::wait`] waits. After construction nothing allocates.
pub struct RingPort {
    /// Doorbell in both directions; its end is the other side's end.
    socket: OwnedFd,
    writer: Writer<SharedRing>,
    reader: Reader<SharedRing>,
    /// Emulated link of our direction; the other side emulates its own.
    link: Option<EmulatedLink>,
    received: Box<Received>,
    /// True if there was no room at the last attempt.
    wants_room: bool,
    peer_gone: bool,
    broken: bool,
}

impl RingPort {
    /// Builds a port over a socket of both ends, and the memory that one of them made.
    pub(crate) fn new(
        socket: OwnedFd,
        memory: BorrowedFd<'_>,
        lines: u64,
        link: Option<LinkModel>,
        is_maker: bool,
    ) -> Result<Self, PortError> {
        let (write, read) = memory::map(memory, lines, is_maker)?;
        let lines = write.lines();
        Ok(Self {
            socket,
            writer: Writer::new(write, lines, RING_FRAME_BYTES),
            reader: Reader::new(read, lines, RING_FRAME_BYTES),
            link: link.map(EmulatedLink::new),
            received: Box::new(Received([0; RECORD_BYTES])),
            wants_room: false,
            peer_gone: false,
            broken: false,
        })
    }

    /// Makes both ends of a new port, for two threads, or for a process and the child it forks.
    ///
    /// # Errors
    /// Fails if the system has no descriptor or memory left.
    pub fn pair(config: &RingConfig) -> Result<(Self, Self), PortError> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .map_err(PortError::at("making a pair of sockets"))?;
        let lines = memory::lines_for(config.ring_bytes);
        let memory = memory::create(lines)?;
        let first = Self::new(ours, memory.as_fd(), lines, config.link, true)?;
        let second = Self::new(theirs, memory.as_fd(), lines, config.link, false)?;
        Ok((first, second))
    }

    /// Returns the socket, the written ring and the read one, for a pipe.
    pub(crate) fn into_parts(self) -> (OwnedFd, Writer<SharedRing>, Reader<SharedRing>) {
        (self.socket, self.writer, self.reader)
    }

    /// Returns the emulated link, if any.
    pub fn link(&self) -> Option<&LinkModel> {
        self.link.as_ref().map(EmulatedLink::model)
    }

    /// Returns the place of the next frame: [`RING_FRAME_BYTES`], in the ring itself. `None`: the
    /// ring is full. Write it from the front, as far as you commit, read nothing back, and
    /// [`RingPort::commit`] it; or leave it untouched.
    ///
    /// # Errors
    /// [`PortError::RingBroken`] if the other side has written invalid data.
    pub fn reserve(&mut self) -> Result<Option<&mut [u8]>, PortError> {
        let line = self.writer.reserve().map_err(|_| PortError::RingBroken)?;
        self.wants_room = line.is_none();
        let Some(line) = line else { return Ok(None) };
        let at = self.writer.memory().line_ptr(line);
        // SAFETY: a record's lines are mapped from `line_ptr` on, and no honest process touches
        // them before they are published; a dishonest one only changes the bytes that it will read.
        let buffer =
            unsafe { std::slice::from_raw_parts_mut(at.add(RECORD_HEAD_BYTES), RING_FRAME_BYTES) };
        Ok(Some(buffer))
    }

    /// Sends the first `len_bytes` of the place that [`RingPort::reserve`] returned. The other
    /// side, if it is awake, can read the frame at once; after the last of several frames call
    /// [`RingPort::announce`].
    ///
    /// # Panics
    /// Panics if there was no room, or the frame is longer than the room.
    pub fn commit(&mut self, now_ns: u64, len_bytes: usize) {
        if let Some(link) = &mut self.link {
            let line = self.writer.reserve().ok().flatten().expect("the caller reserved room");
            let at = self.writer.memory().line_ptr(line);
            // SAFETY: the second word of a record's head, ours until the record is published.
            unsafe { at.add(8).cast::<u64>().write(link.depart(now_ns, len_bytes)) };
        }
        self.writer.publish(len_bytes);
    }

    /// Wakes the other side if it sleeps and frames were committed since the last call.
    pub fn announce(&mut self) {
        if self.writer.announce() {
            self.ring();
        }
    }

    /// Returns the next frame that has arrived, if any; valid until the next call. Never waits.
    ///
    /// # Errors
    /// [`PortError::Closed`] if the other side is gone and all its frames have been taken;
    /// [`PortError::RingBroken`] if it has written invalid data.
    pub fn receive(&mut self, now_ns: u64) -> Result<Option<&[u8]>, PortError> {
        let Some(record) = self.peek()? else {
            return if self.peer_gone { Err(PortError::Closed) } else { Ok(None) };
        };
        if self.is_on_its_way(now_ns, record)? {
            return Ok(None);
        }
        let from = self.reader.memory().line_ptr(record.line);
        let frame = RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + record.len_bytes;
        let into = &mut self.received.0[..frame.end.next_multiple_of(CACHE_LINE_BYTES)];
        // SAFETY: `peek` checked the length, and a record's lines are mapped from `line_ptr` on.
        // The copy is ours; if the other side writes meanwhile, the copy holds arbitrary bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        if self.reader.consume(record) {
            self.ring();
        }
        Ok(Some(&self.received.0[frame]))
    }

    /// Returns the arrival time of the next frame on its way over the emulated link, in nanoseconds
    /// of [`crate::monotonic_ns`]. `None`: none is on its way.
    pub fn next_delivery_ns(&self) -> Option<u64> {
        self.link.as_ref()?;
        let record = self.reader.peek().ok().flatten()?;
        Some(self.delivery_ns(record))
    }

    /// True if the emulated link has not delivered the next frame yet.
    fn is_on_its_way(&mut self, now_ns: u64, record: Record) -> Result<bool, PortError> {
        let Some(link) = &self.link else { return Ok(false) };
        let at_ns = self.delivery_ns(record);
        if now_ns >= at_ns {
            return Ok(false);
        }
        // The previous frame was delivered, which means that the wire is free. Uses the clock
        // rather than `now_ns`: the frame may have been sent after the caller read its time.
        let model = link.model();
        let most_ns = model.serialisation_ns(RING_FRAME_BYTES).saturating_add(model.delay_ns() + 1);
        self.broken |= at_ns > now_ns.max(crate::monotonic_ns()).saturating_add(most_ns);
        if self.broken { Err(PortError::RingBroken) } else { Ok(true) }
    }

    fn peek(&mut self) -> Result<Option<Record>, PortError> {
        let found = self.reader.peek();
        self.broken |= found.is_err();
        if self.broken { Err(PortError::RingBroken) } else { Ok(found.expect("checked above")) }
    }

    fn delivery_ns(&self, record: Record) -> u64 {
        let at = self.reader.memory().line_ptr(record.line);
        // SAFETY: the second word of a record's head, written before the record was published.
        unsafe { at.add(8).cast::<u64>().read() }
    }

    /// Returns the descriptor to poll for input after [`RingPort::prepare_wait`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Prepares to sleep on [`RingPort::fd`]: requests a bell for the next frame, and for room if
    /// [`RingPort::reserve`] found none. `false`: do not sleep, there is something now, or will be
    /// within microseconds. In either case call [`RingPort::finish_wait`] afterwards.
    pub fn prepare_wait(&mut self) -> bool {
        self.announce();
        let may_sleep = self.peer_gone || self.reader.prepare_sleep() == Ok(true);
        let has_no_room = !self.wants_room || self.writer.prepare_sleep() == Ok(true);
        may_sleep && has_no_room && !self.peer_gone && !self.broken
    }

    /// Ends a wait, after the sleep or instead of it: takes the bells, and checks for the end of
    /// the other side.
    pub fn finish_wait(&mut self) {
        self.reader.wake_up();
        self.look_for_end();
    }

    /// Checks for the end of the other side. A thread that does not sleep calls it now and then.
    pub fn look_for_end(&mut self) {
        let mut bells = [0u8; 64];
        // The number is bounded: the other side can ring faster than this side reads.
        for _ in 0..BELLS_PER_LOOK {
            if self.peer_gone {
                return;
            }
            match recv(&self.socket, &mut bells, RecvFlags::DONTWAIT) {
                Ok((0, _)) => self.peer_gone = true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.peer_gone = true,
            }
        }
    }

    /// True if the other side was found to be gone; frames it sent before can still be received.
    pub fn is_peer_gone(&self) -> bool {
        self.peer_gone
    }

    /// Sleeps until a frame comes (or there is room, if there was none), the other side is gone, or
    /// `timeout_ns` have passed. It may return earlier.
    pub fn wait(&mut self, timeout_ns: u64) {
        let now_ns = crate::monotonic_ns();
        let held_ns = self.next_delivery_ns().map(|at_ns| at_ns.saturating_sub(now_ns));
        let may_sleep = self.prepare_wait() || held_ns.is_some_and(|ns| ns > TOO_SHORT_NS);
        if may_sleep {
            let most_ns = timeout_ns.min(held_ns.map_or(u64::MAX, |ns| ns - TOO_SHORT_NS));
            let timeout = Timespec {
                tv_sec: (most_ns / 1_000_000_000) as i64,
                tv_nsec: (most_ns % 1_000_000_000) as i64,
            };
            // The result is irrelevant: the caller checks again.
            let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout));
        }
        self.finish_wait();
    }

    fn ring(&mut self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match send(&self.socket, &[1], flags) {
                Err(Errno::INTR) => {}
                // A full socket holds bells enough; a dead one is detected by its reader.
                _ => return,
            }
        }
    }
}

impl std::fmt::Debug for RingPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingPort")
            .field("socket", &self.socket)
            .field("lines", &self.writer.memory().lines())
            .field("link", &self.link())
            .field("peer_gone", &self.peer_gone)
            .finish_non_exhaustive()
    }
}
