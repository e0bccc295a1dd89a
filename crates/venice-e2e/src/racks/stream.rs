//! One end of a byte stream: it sends all its bytes and ends its sending, and reads to the other's
//! end. Some readers delay their reads, so that their buffers fill.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use venice_fabric::CreditMode;
use venice_ports::qpair::{QPairSocketError, QPairStream};
use venice_sim::checkers::{Direction, StreamId};
use venice_sim::rack::Sabotage;
use venice_simkernel::random::Stream;

use crate::racks::notes::{Bytes, Notebook, What};

/// Largest write to the socket.
const WRITE_BYTES: u32 = 1500;
/// Longest pause of a slow reader.
const LONGEST_PAUSE_NS: u64 = 20_000_000;
/// Longest wait before the next attempt.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Reads for one strike of sabotage.
const STRIKE_EVERY: u32 = 4;

/// Habits of a stream's two ends; both derive them from its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Habits {
    /// Credit mode of the readers of both directions.
    pub credit: CreditMode,
    /// By direction: true if its reader delays.
    is_slow: [bool; 2],
    /// True if the accepting end sends only after it has read all.
    pub answers_at_the_end: bool,
}

impl Habits {
    /// Returns the habits of a stream.
    pub fn of(stream: StreamId) -> Self {
        let drawn = Stream::new(stream.0.into()).split("habits", &[]).draw();
        let is_so = |bit: u32| drawn >> bit & 1 == 1;
        Self {
            credit: if is_so(0) { CreditMode::InBand } else { CreditMode::CrmaWrite },
            is_slow: [is_so(1), is_so(2)],
            answers_at_the_end: is_so(3),
        }
    }

    /// True if the reader of this direction delays.
    pub fn is_slow(&self, to: Direction) -> bool {
        self.is_slow[to as usize]
    }
}

/// One end of a stream.
pub struct StreamEnd {
    socket: QPairStream,
    notebook: Arc<Notebook>,
    /// Number of the end in the notes.
    end: u32,
    /// Direction of the bytes that it reads.
    reads: Direction,
    /// Known at the accepting end after the first bytes.
    id: Option<StreamId>,
    first: Vec<u8>,
    pauses: Stream,
    /// Bytes noted as being sent, and those that the socket has taken.
    noted_bytes: u32,
    written_bytes: u32,
    has_ended: bool,
    was_end_seen: bool,
    sabotage: Option<Sabotage>,
    hits: u32,
}

impl StreamEnd {
    /// Creates the end that connected for a stream.
    pub fn connected(
        socket: QPairStream,
        notebook: Arc<Notebook>,
        id: StreamId,
        sabotage: Option<Sabotage>,
    ) -> Self {
        Self { id: Some(id), sabotage, ..Self::new(socket, notebook, id.0, Direction::Back) }
    }

    /// Creates an accepting end, which learns its stream from the first bytes.
    pub fn accepted(socket: QPairStream, notebook: Arc<Notebook>, end: u32) -> Self {
        Self::new(socket, notebook, end, Direction::There)
    }

    fn new(socket: QPairStream, notebook: Arc<Notebook>, end: u32, reads: Direction) -> Self {
        Self {
            socket,
            notebook,
            end,
            reads,
            id: None,
            first: Vec::new(),
            pauses: Stream::new(end.into()).split("pauses", &[reads as u64]),
            noted_bytes: 0,
            written_bytes: 0,
            has_ended: false,
            was_end_seen: false,
            sabotage: None,
            hits: 0,
        }
    }

    /// Sends all and reads all; notes the error if it breaks before. The socket must not be dropped
    /// before the other end has read everything.
    pub fn run(&mut self) {
        while !(self.has_ended && self.was_end_seen) {
            let step = self.read().and_then(|()| self.write());
            if let Err(error) = step {
                if let Some(StreamId(stream)) = self.id {
                    let text = error.to_string();
                    self.notebook.note(What::StreamClosed { stream, text });
                }
                return;
            }
            self.wait();
        }
    }

    /// True if the other end is known to have read everything.
    pub fn is_all_read(&self) -> bool {
        let answers_at_the_end = self.id.is_some_and(|id| Habits::of(id).answers_at_the_end);
        self.was_end_seen && self.reads == Direction::Back && answers_at_the_end
    }

    fn read(&mut self) -> Result<(), QPairSocketError> {
        if self.was_end_seen {
            return Ok(());
        }
        if self.id.is_some_and(|id| Habits::of(id).is_slow(self.reads)) {
            let pause_ns = self.pauses.between(1, LONGEST_PAUSE_NS);
            std::thread::sleep(Duration::from_nanos(pause_ns));
        }
        let mut buffer = [0; 1000];
        loop {
            match self.socket.try_read(&mut buffer) {
                Ok(len @ 1..) => {
                    self.take(&mut buffer[..len]);
                    if self.strikes(Sabotage::EarlyEnd) {
                        self.take_end();
                        return Ok(());
                    }
                    continue;
                }
                Ok(_) => self.take_end(),
                Err(QPairSocketError::WouldBlock) => {}
                Err(error) => return Err(error),
            }
            return Ok(());
        }
    }

    fn take(&mut self, bytes: &mut [u8]) {
        if self.strikes(Sabotage::SwapBytes) {
            bytes.reverse();
        }
        let (end, is_there) = (self.end, self.reads == Direction::There);
        self.notebook.note(What::StreamRead { end, is_there, data: Bytes(bytes.to_vec()) });
        if self.id.is_none() {
            self.first.extend_from_slice(bytes);
            self.id = self.first.first_chunk().map(|first| StreamId::of(*first));
        }
    }

    fn take_end(&mut self) {
        self.was_end_seen = true;
        let (end, is_there) = (self.end, self.reads == Direction::There);
        self.notebook.note(What::StreamEndSeen { end, is_there });
    }

    fn write(&mut self) -> Result<(), QPairSocketError> {
        let (Some(id), false) = (self.id, self.has_ended) else { return Ok(()) };
        let to = if self.reads == Direction::There { Direction::Back } else { Direction::There };
        let is_there = to == Direction::There;
        let is_early = !is_there && Habits::of(id).answers_at_the_end && !self.was_end_seen;
        if is_early {
            return Ok(());
        }
        loop {
            let bytes = id.bytes(to, self.written_bytes, WRITE_BYTES);
            if bytes.is_empty() {
                self.notebook.note(What::StreamEnded { stream: id.0, is_there });
                self.has_ended = true;
                return self.socket.shutdown();
            }
            let until = self.written_bytes + bytes.len() as u32;
            if until > self.noted_bytes {
                let len_bytes = until - self.noted_bytes;
                self.notebook.note(What::StreamSent { stream: id.0, is_there, len_bytes });
                self.noted_bytes = until;
            }
            match self.socket.try_write(&bytes) {
                Ok(len) => self.written_bytes += len as u32,
                Err(QPairSocketError::WouldBlock) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn wait(&self) {
        if self.socket.arm() {
            let fd = PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN);
            // Both directions are tried again whatever the result.
            let _ = poll(&mut [fd], Some(&LOOK));
        }
        self.socket.attend();
    }

    fn strikes(&mut self, sabotage: Sabotage) -> bool {
        let is_on = self.sabotage == Some(sabotage);
        self.hits += u32::from(is_on);
        is_on && self.hits.is_multiple_of(STRIKE_EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_a_rack_have_all_habits() {
        for credit in [CreditMode::CrmaWrite, CreditMode::InBand] {
            for to in [Direction::There, Direction::Back] {
                let is_so = |id: u32| {
                    let habits = Habits::of(StreamId(id));
                    habits.credit == credit && habits.is_slow(to)
                };
                assert!((0..16).any(is_so), "{credit:?}, slow {to:?}");
            }
        }
    }
}
