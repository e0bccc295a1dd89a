//! One end of a ring port: frames to and from one other process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send};
use venice_fabric::{EmulatedLink, LinkModel};

use super::algorithm::{LINE_BYTES, RECORD_HEAD_BYTES, RECORD_LINES, Reader, Record, Writer};
use super::memory::{self, SharedRing};
use crate::PortError;

/// The longest frame a ring carries, in bytes: the fabric's, with room for a network header.
pub const RING_FRAME_BYTES: usize = RECORD_BYTES - RECORD_HEAD_BYTES;
const RECORD_BYTES: usize = RECORD_LINES as usize * LINE_BYTES;
/// What travels between two processors at a time.
const CACHE_LINE_BYTES: usize = 64;

/// A record, copied in whole cache lines: each is fetched once, by a load that touches no other.
#[repr(align(64))]
struct Received([u8; RECORD_BYTES]);

/// Less than this is not worth sleeping, as waking takes longer.
pub(super) const TOO_SHORT_NS: u64 = 100_000;
/// Bells taken in one look for the other side's end.
const BELLS_PER_LOOK: usize = 16;

/// What a ring port is like. The side that makes it says so; the other follows.
#[derive(Clone, Copy, Debug)]
pub struct RingConfig {
    /// Bytes of each of the two rings; brought to a power of two, 64 KiB to 64 MiB.
    pub ring_bytes: usize,
    /// The link to emulate, if any: the reader leaves each frame until it would have arrived.
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
/// Each frame is copied out before it is looked at, as the other side could still change it.
///
/// Nothing here waits but [`RingPort::wait`]. After construction nothing allocates.
pub struct RingPort {
    /// The doorbell in both directions; its end is the other side's end.
    socket: OwnedFd,
    writer: Writer<SharedRing>,
    reader: Reader<SharedRing>,
    /// Ours: the other side emulates its own direction.
    link: Option<EmulatedLink>,
    received: Box<Received>,
    /// There was no room when last asked for.
    wants_room: bool,
    peer_gone: bool,
    broken: bool,
}

impl RingPort {
    /// Over a socket that both ends have, and the memory that one of them made.
    pub(super) fn new(
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

    /// Both ends of a new port, for two threads, or for a process and the child it forks.
    ///
    /// # Errors
    /// When the system has no descriptor or memory left.
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

    /// The link emulated, if any.
    pub fn link(&self) -> Option<&LinkModel> {
        self.link.as_ref().map(EmulatedLink::model)
    }

    /// Where the next frame can be built: [`RING_FRAME_BYTES`], in the ring itself. `None`: the
    /// ring is full. Write it from the front, as far as you commit, read nothing back, and
    /// [`RingPort::commit`] it; or leave it untouched.
    ///
    /// # Errors
    /// When the other side has broken the ring.
    pub fn reserve(&mut self) -> Result<Option<&mut [u8]>, PortError> {
        let line = self.writer.reserve().map_err(|_| PortError::RingBroken)?;
        self.wants_room = line.is_none();
        let Some(line) = line else { return Ok(None) };
        let at = self.writer.memory().line_ptr(line);
        // SAFETY: a record's lines are mapped from `line_ptr` on, and no honest process touches
        // them before they are published; to one that does, any bytes are as good as any.
        let buffer =
            unsafe { std::slice::from_raw_parts_mut(at.add(RECORD_HEAD_BYTES), RING_FRAME_BYTES) };
        Ok(Some(buffer))
    }

    /// Sends the first `len_bytes` of what [`RingPort::reserve`] gave. The other side, if it is
    /// awake, has the frame from now on; after the last of some call [`RingPort::announce`].
    ///
    /// # Panics
    /// If there was no room, or the frame is longer than the room.
    pub fn commit(&mut self, now_ns: u64, len_bytes: usize) {
        if let Some(link) = &mut self.link {
            let line = self.writer.reserve().ok().flatten().expect("there was room");
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

    /// The next frame that has arrived, if any; valid until the next call. Never waits.
    ///
    /// # Errors
    /// [`PortError::Closed`] when the other side is gone and all its frames have been taken;
    /// [`PortError::RingBroken`] when it has broken the ring.
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
        // The copy is ours; should the other side write meanwhile, it is some bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        if self.reader.consume(record) {
            self.ring();
        }
        Ok(Some(&self.received.0[frame]))
    }

    /// When the next frame arrives that is on its way over the emulated link, in nanoseconds of
    /// [`crate::monotonic_ns`]. `None`: none is on its way.
    pub fn next_delivery_ns(&self) -> Option<u64> {
        self.link.as_ref()?;
        let record = self.reader.peek().ok().flatten()?;
        Some(self.delivery_ns(record))
    }

    /// Whether the emulated link has not delivered the next frame yet.
    fn is_on_its_way(&mut self, now_ns: u64, record: Record) -> Result<bool, PortError> {
        let Some(link) = &self.link else { return Ok(false) };
        let at_ns = self.delivery_ns(record);
        if now_ns >= at_ns {
            return Ok(false);
        }
        // The one before it was delivered, so that the wire has been free since. By the clock as it
        // is: the frame may have been sent after the caller looked at it.
        let model = link.model();
        let most_ns = model.serialisation_ns(RING_FRAME_BYTES).saturating_add(model.delay_ns() + 1);
        self.broken |= at_ns > now_ns.max(crate::monotonic_ns()).saturating_add(most_ns);
        if self.broken { Err(PortError::RingBroken) } else { Ok(true) }
    }

    fn peek(&mut self) -> Result<Option<Record>, PortError> {
        let found = self.reader.peek();
        self.broken |= found.is_err();
        if self.broken { Err(PortError::RingBroken) } else { Ok(found.expect("just checked")) }
    }

    fn delivery_ns(&self, record: Record) -> u64 {
        let at = self.reader.memory().line_ptr(record.line);
        // SAFETY: the second word of a record's head, written before the record was published.
        unsafe { at.add(8).cast::<u64>().read() }
    }

    /// To be polled for input after [`RingPort::prepare_wait`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Moves the descriptor to the lowest free number at or above `lowest`, out of the way of
    /// the program whose process this is.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn keep_fd_above(&mut self, lowest: i32) -> Result<(), PortError> {
        self.socket = rustix::io::fcntl_dupfd_cloexec(&self.socket, lowest)
            .map_err(PortError::at("moving a descriptor"))?;
        Ok(())
    }

    /// Before sleeping on [`RingPort::fd`]: asks to be rung when a frame is sent, and when there is
    /// room if [`RingPort::reserve`] found none. `false`: do not sleep, there is something now, or
    /// will be in no time. In either case call [`RingPort::finish_wait`] afterwards.
    pub fn prepare_wait(&mut self) -> bool {
        self.announce();
        let may_sleep = self.peer_gone || self.reader.prepare_sleep() == Ok(true);
        let has_no_room = !self.wants_room || self.writer.prepare_sleep() == Ok(true);
        may_sleep && has_no_room && !self.peer_gone && !self.broken
    }

    /// After sleeping, or instead of it: takes the bells, and notices when the other side is gone.
    pub fn finish_wait(&mut self) {
        self.reader.wake_up();
        self.look_for_end();
    }

    /// Notices when the other side is gone. To be called now and then by who does not sleep.
    pub fn look_for_end(&mut self) {
        let mut bells = [0u8; 64];
        // Not until there are none: the other side can ring faster than we hear.
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

    /// Whether the other side was found to be gone; frames it sent before can still be received.
    pub fn is_peer_gone(&self) -> bool {
        self.peer_gone
    }

    /// Sleeps until a frame comes (or there is room, if there was none), the other side is gone,
    /// or `timeout_ns` have passed. It may come back earlier.
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
            // Whatever it says, the caller looks again.
            let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout));
        }
        self.finish_wait();
    }

    fn ring(&mut self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match send(&self.socket, &[1], flags) {
                Err(Errno::INTR) => {}
                // A full socket has bells enough; a dead one is noticed where it is read.
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
