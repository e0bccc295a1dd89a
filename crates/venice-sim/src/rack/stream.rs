//! Byte streams over QPairs: one end sends all its bytes and ends its sending, the other reads to
//! the end and does the same. Some readers delay: no sender may exceed their room, and no other reader
//! may have to wait.

use venice_fabric::{CloseReason, QPairId};

use super::sabotage::Sabotage;
use super::talk::Listener;
use super::tally::Tally;
use super::{Event, Rack};
use crate::checkers::{Checker, Direction, StreamId};
use crate::network::End;
use crate::scenario::Kind;
use venice_simkernel::random::Stream;

impl Rack<'_> {
    /// Schedules a delayed read of a stream.
    pub(super) fn read_later(&mut self, number: u16, end: End, qpair: QPairId) {
        let labels = [number.into(), end as u64, self.now_ns];
        let mut rng = Stream::new(self.scenario.seed).split("late", &labels);
        let at_ns = self.now_ns + rng.between(1, self.scenario.protocol.keepalive.0);
        let life = self.nodes[usize::from(number)].life_number;
        self.events.push(at_ns, Event::Read { node: number, life, end, qpair });
    }

    /// Performs the delayed read.
    pub(super) fn read_late(&mut self, number: u16, life: u32, end: End, qpair: QPairId) {
        let node = &self.nodes[usize::from(number)];
        if node.life_number != life || node.is_dead {
            return;
        }
        if !node.is_awake() {
            return self.read_later(number, end, qpair);
        }
        let mut listener = self.listener(number, end);
        if let Some(stream) = listener.talks.streams.get_mut(&qpair) {
            stream.is_late = false;
            listener.read_stream(qpair);
        }
        self.pump(number);
    }
}

impl Listener<'_> {
    /// Handles readable bytes: slow readers delay.
    pub(super) fn stream_readable(&mut self, qpair: QPairId) {
        let to = self.to;
        let stream = self.talks.streams.get_mut(&qpair).expect("the QPair is a stream");
        if !stream.is_slow(to) {
            return self.read_stream(qpair);
        }
        if !std::mem::replace(&mut stream.is_late, true) {
            self.late.push(qpair);
        }
    }

    fn read_stream(&mut self, qpair: QPairId) {
        self.check_room(qpair);
        let mut buf = [0; 1000];
        loop {
            let is_end = match self.qpairs.read(qpair, &mut buf) {
                Ok(0) => true,
                Ok(len) => {
                    self.take_bytes(qpair, &mut buf[..len]);
                    continue;
                }
                Err(_) => self.saboteur.strikes(Sabotage::EarlyEnd),
            };
            if is_end {
                self.take_end(qpair);
            }
            break;
        }
        self.write_stream(qpair);
    }

    fn take_bytes(&mut self, qpair: QPairId, bytes: &mut [u8]) {
        if self.saboteur.strikes(Sabotage::SwapBytes) {
            bytes.reverse();
        }
        let stream = self.talks.streams.get_mut(&qpair).expect("the QPair is a stream");
        let result = match stream.id {
            Some(id) => self.oracle.streams.received(id, self.to, bytes),
            None => {
                stream.first.extend_from_slice(bytes);
                stream.id = stream.first.first_chunk().map(|first| StreamId::of(*first));
                let id = stream.id;
                id.map_or(Ok(()), |id| self.oracle.streams.received(id, self.to, &stream.first))
            }
        };
        self.oracle.findings.check(Checker::Streams, self.now_ns, result);
    }

    fn take_end(&mut self, qpair: QPairId) {
        let stream = self.talks.streams.get_mut(&qpair).expect("the QPair is a stream");
        if std::mem::replace(&mut stream.was_end_seen, true) {
            return;
        }
        let result = match stream.id {
            Some(id) => self.oracle.streams.end_seen(id, self.to),
            None => Err(format!("a stream ended after {} bytes", stream.first.len())),
        };
        if let (Some(id), Ok(())) = (stream.id, &result) {
            finished(self.tally, id, self.to);
        }
        self.oracle.findings.check(Checker::Streams, self.now_ns, result);
    }

    /// Sends pending bytes: the connecting end at once, the accepting end after or while it reads
    /// all.
    pub(super) fn write_stream(&mut self, qpair: QPairId) {
        let Some(stream) = self.talks.streams.get_mut(&qpair) else { return };
        let (Some(id), false) = (stream.id, stream.has_ended) else { return };
        let to = if self.to == Direction::There { Direction::Back } else { Direction::There };
        if to == Direction::Back && id.0.is_multiple_of(2) && !stream.was_end_seen {
            return;
        }
        loop {
            let bytes = self.oracle.streams.next_bytes(id, to, 1500);
            if bytes.is_empty() {
                stream.has_ended = self.qpairs.shutdown(qpair).is_ok();
                if stream.has_ended {
                    self.oracle.streams.ended(id, to);
                }
                return;
            }
            let Ok(len) = self.qpairs.write(self.local_ns, qpair, &bytes) else { return };
            self.oracle.streams.sent(id, to, len);
        }
    }

    /// Handles the close of a stream. Only a dead link, or a donor without room, may close it
    /// early.
    pub(super) fn stream_closed(&mut self, qpair: QPairId, reason: CloseReason) {
        self.read_stream(qpair);
        self.qpairs.close(qpair);
        let Some(stream) = self.talks.streams.remove(&qpair) else { return };
        let result = match (reason, stream.id) {
            (CloseReason::Finished, Some(id)) => self.oracle.streams.check_finished(id, self.to),
            (CloseReason::LinkDown(_) | CloseReason::Refused(_), id) => {
                id.into_iter().for_each(|id| self.oracle.streams.close(id));
                Ok(())
            }
            _ => Err(format!("a stream was closed: {reason}")),
        };
        self.oracle.findings.check(Checker::Streams, self.now_ns, result);
    }
}

fn finished(tally: &mut Tally, id: StreamId, to: Direction) {
    // Counted once for both directions: the way back ends last.
    if to == Direction::Back {
        tally.succeeded(Kind::Stream, id.len_bytes(Direction::There) + id.len_bytes(to), 0);
    }
}
