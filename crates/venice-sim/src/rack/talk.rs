//! QPairs at work: programs send to donors, donors answer, and both read.

use venice_fabric::{
    CreditMode, EndConfig, PeerIndex, QPairConfig, QPairError, QPairEvent, QPairId, QPairKind,
    QPairs,
};

use super::Rack;
use super::desk::Desk;
use super::sabotage::{Sabotage, Saboteur};
use super::talks::{StreamEnd, Talks};
use super::tally::Tally;
use crate::checkers::{Checker, Direction, Oracle};
use crate::network::End;
use crate::scenario::Kind;

/// Service of every donor.
pub(super) const SERVICE: u32 = 1;
/// The longest message.
const MAX_MESSAGE_BYTES: usize = 3000;

/// Largest number of unread bytes at an end.
pub(super) const RECV_BYTES: u32 = 4 << 10;

/// Returns the settings of a small QPair, so that credit matters.
fn end_config() -> EndConfig {
    EndConfig {
        send_bytes: 8 << 10,
        recv_bytes: RECV_BYTES,
        recv_messages: 8,
        ..EndConfig::default()
    }
}

/// Returns the credit mode: some QPairs give credit in band.
pub(super) fn credit_mode(number: u32) -> CreditMode {
    if number % 3 == 2 { CreditMode::InBand } else { CreditMode::CrmaWrite }
}

/// Requests a stream from a donor.
pub(super) fn begin_stream(desk: &mut Desk<'_>, peer: PeerIndex) -> Result<(), QPairError> {
    let id = desk.oracle.streams.begin();
    let config =
        QPairConfig { credit: credit_mode(id.0), end: end_config(), ..QPairConfig::stream() };
    let qpair = desk.initiator.qpair_connect(desk.local_ns, peer, SERVICE, config);
    match qpair {
        Ok(qpair) => drop(desk.talks.streams.insert(qpair, StreamEnd::of(Some(id)))),
        Err(_) => desk.oracle.streams.close(id),
    }
    qpair.map(drop)
}

/// Requests a QPair from a donor.
pub(super) fn connect(desk: &mut Desk<'_>, peer: PeerIndex) -> Result<QPairId, QPairError> {
    let id = desk.oracle.conversations.begin();
    let config =
        QPairConfig { credit: credit_mode(id.0), end: end_config(), ..QPairConfig::messages() };
    let qpair = desk.initiator.qpair_connect(desk.local_ns, peer, SERVICE, config);
    match qpair {
        Ok(qpair) => drop(desk.talks.ends.insert(qpair, Some(id))),
        Err(_) => desk.oracle.conversations.close(id),
    }
    qpair
}

/// Sends the next message of a program's conversation.
pub(super) fn send(desk: &mut Desk<'_>, qpair: QPairId, to: Direction) -> Result<(), QPairError> {
    let id = desk.talks.ends.get(&qpair).copied().flatten().ok_or(QPairError::Unknown)?;
    let message = desk.oracle.conversations.next_message(id, to, MAX_MESSAGE_BYTES);
    desk.initiator.qpairs_mut().send(desk.local_ns, qpair, &message)?;
    desk.oracle.conversations.sent(desk.now_ns, id, to);
    Ok(())
}

/// One engine with the context for its events.
pub(super) struct Listener<'a> {
    pub now_ns: u64,
    pub local_ns: u64,
    calm_ns: u64,
    patience_ns: u64,
    /// Direction of the messages that arrive here.
    pub to: Direction,
    pub qpairs: &'a mut QPairs,
    pub talks: &'a mut Talks,
    pub oracle: &'a mut Oracle,
    pub tally: &'a mut Tally,
    pub saboteur: &'a mut Saboteur,
    /// Streams with readable bytes whose read is delayed.
    pub late: Vec<QPairId>,
}

impl Rack<'_> {
    /// Handles the events of both engines of a node. Returns true if there were any.
    pub(super) fn listen(&mut self, number: u16) -> bool {
        self.listen_at(number, End::Recipient) | self.listen_at(number, End::Donor)
    }

    fn listen_at(&mut self, number: u16, end: End) -> bool {
        let mut listener = self.listener(number, end);
        let mut any = false;
        while let Some(event) = listener.qpairs.poll_event() {
            any = true;
            listener.handle(event);
        }
        for qpair in std::mem::take(&mut listener.late) {
            self.read_later(number, end, qpair);
        }
        any
    }

    pub(super) fn listener(&mut self, number: u16, end: End) -> Listener<'_> {
        let node = &mut self.nodes[usize::from(number)];
        let local_ns = self.now_ns + node.clock_ahead_ns;
        let (qpairs, talks, to) = match end {
            End::Donor => (node.target.qpairs_mut(), &mut node.talks[1], Direction::There),
            _ => (node.initiator.qpairs_mut(), &mut node.talks[0], Direction::Back),
        };
        Listener {
            now_ns: self.now_ns,
            local_ns,
            calm_ns: self.calm_ns,
            patience_ns: self.patience_ns,
            to,
            qpairs,
            talks,
            oracle: &mut self.oracle,
            tally: &mut self.tally,
            saboteur: &mut self.saboteur,
            late: Vec::new(),
        }
    }
}

impl Listener<'_> {
    fn handle(&mut self, event: QPairEvent) {
        match event {
            QPairEvent::Incoming { qpair, kind, .. } => {
                if self.qpairs.accept(qpair, end_config()).is_ok() {
                    match kind {
                        QPairKind::Messages => drop(self.talks.ends.insert(qpair, None)),
                        QPairKind::Stream => {
                            self.talks.streams.insert(qpair, StreamEnd::of(None));
                        }
                    }
                }
            }
            QPairEvent::Readable { qpair } if self.is_stream(qpair) => self.stream_readable(qpair),
            QPairEvent::Readable { qpair } => self.read(qpair),
            QPairEvent::Closed { qpair, reason } if self.is_stream(qpair) => {
                self.stream_closed(qpair, reason);
            }
            QPairEvent::Closed { qpair, .. } => {
                self.read(qpair);
                self.qpairs.close(qpair);
                if let Some(Some(id)) = self.talks.ends.remove(&qpair) {
                    self.oracle.conversations.close(id);
                }
            }
            QPairEvent::Connected { qpair } | QPairEvent::Writable { qpair } => {
                self.write_stream(qpair);
            }
        }
    }

    fn is_stream(&self, qpair: QPairId) -> bool {
        self.talks.streams.contains_key(&qpair)
    }

    /// Checks that no more bytes are unread than there is room for.
    pub(super) fn check_room(&mut self, qpair: QPairId) {
        let Ok(levels) = self.qpairs.levels(qpair) else { return };
        let most = u64::from(RECV_BYTES);
        let result = match levels.unread_bytes <= most && levels.outstanding_bytes <= most {
            true => Ok(()),
            false => Err(format!("{qpair:?}: more than {most} bytes, {levels:?}")),
        };
        self.oracle.findings.check(Checker::Credit, self.now_ns, result);
    }

    fn read(&mut self, qpair: QPairId) {
        self.check_room(qpair);
        let mut messages = Vec::new();
        let mut buf = [0; 2 * MAX_MESSAGE_BYTES];
        while let Ok(len @ 1..) = self.qpairs.recv(qpair, &mut buf) {
            messages.push(buf[..len].to_vec());
        }
        if messages.len() > 1 && self.saboteur.strikes(Sabotage::SwapMessages) {
            messages.swap(0, 1);
        }
        for message in messages {
            let known = self.talks.ends.get(&qpair).copied().flatten();
            let received = self.oracle.conversations.received(
                self.now_ns,
                known,
                self.to,
                MAX_MESSAGE_BYTES,
                &message,
            );
            let result = match received {
                Ok((id, took_ns)) => {
                    self.talks.ends.insert(qpair, Some(id));
                    self.tally.succeeded(Kind::Message, message.len() as u32, took_ns);
                    self.check_time(took_ns);
                    Ok(())
                }
                Err(what) => Err(what),
            };
            self.oracle.findings.check(Checker::Conversations, self.now_ns, result);
            if self.to == Direction::There && message.len() % 2 == 0 {
                self.answer(qpair);
            }
        }
    }

    /// Checks the latency: messages are read as they come, so none waits for a slow reader.
    fn check_time(&mut self, took_ns: u64) {
        let waited_ns = took_ns.min(self.now_ns.saturating_sub(self.calm_ns));
        let result = match waited_ns <= self.patience_ns {
            true => Ok(()),
            false => Err(format!("a message took {took_ns} ns")),
        };
        self.oracle.findings.check(Checker::Progress, self.now_ns, result);
    }

    /// Lets a donor answer, if it can now.
    fn answer(&mut self, qpair: QPairId) {
        let Some(id) = self.talks.ends.get(&qpair).copied().flatten() else { return };
        let (to, longest) = (Direction::Back, MAX_MESSAGE_BYTES);
        let message = self.oracle.conversations.next_message(id, to, longest);
        if self.qpairs.send(self.local_ns, qpair, &message).is_ok() {
            self.oracle.conversations.sent(self.now_ns, id, to);
        }
    }
}
