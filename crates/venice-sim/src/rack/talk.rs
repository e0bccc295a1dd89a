//! QPairs at work: programs talk to donors, donors answer, and both read what comes.

use std::collections::BTreeMap;

use venice_fabric::{
    CreditMode, EndConfig, PeerIndex, QPairConfig, QPairError, QPairEvent, QPairId, QPairs,
};

use super::Rack;
use super::client::Desk;
use super::sabotage::{Sabotage, Saboteur};
use super::tally::Tally;
use crate::checkers::{Checker, ConversationId, Direction, Oracle};
use crate::network::End;
use crate::scenario::Kind;

/// The service that every donor offers.
pub(super) const SERVICE: u32 = 1;
/// The longest message.
const MAX_MESSAGE_BYTES: usize = 3000;

/// The ends that one engine of a node has.
#[derive(Debug, Default)]
pub(super) struct Talks {
    ends: BTreeMap<QPairId, Option<ConversationId>>,
}

impl Talks {
    /// The engine is no more.
    pub fn die(&mut self, oracle: &mut Oracle) {
        for id in std::mem::take(&mut self.ends).into_values().flatten() {
            oracle.conversations.close(id);
        }
    }
}

/// A small QPair, so that credit matters.
fn end_config() -> EndConfig {
    EndConfig { send_bytes: 8 << 10, recv_bytes: 4 << 10, recv_messages: 8, ..EndConfig::default() }
}

/// Asks a donor for a QPair.
pub(super) fn connect(desk: &mut Desk<'_>, peer: PeerIndex) -> Result<QPairId, QPairError> {
    let id = desk.oracle.conversations.begin();
    let credit = if id.0 % 3 == 2 { CreditMode::InBand } else { CreditMode::CrmaWrite };
    let config = QPairConfig { credit, end: end_config(), ..QPairConfig::messages() };
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

/// One engine with all that it needs to be read.
struct Listener<'a> {
    now_ns: u64,
    local_ns: u64,
    /// Which way the messages go that come here.
    to: Direction,
    qpairs: &'a mut QPairs,
    talks: &'a mut Talks,
    oracle: &'a mut Oracle,
    tally: &'a mut Tally,
    saboteur: &'a mut Saboteur,
}

impl Rack<'_> {
    /// Lets both engines of a node do what their events ask for. `true`: there were some.
    pub(super) fn listen(&mut self, number: u16) -> bool {
        self.listen_at(number, End::Recipient) | self.listen_at(number, End::Donor)
    }

    fn listen_at(&mut self, number: u16, end: End) -> bool {
        let node = &mut self.nodes[usize::from(number)];
        let local_ns = self.now_ns + node.clock_ahead_ns;
        let (qpairs, talks, to) = match end {
            End::Donor => (node.target.qpairs_mut(), &mut node.talks[1], Direction::There),
            _ => (node.initiator.qpairs_mut(), &mut node.talks[0], Direction::Back),
        };
        let mut listener = Listener {
            now_ns: self.now_ns,
            local_ns,
            to,
            qpairs,
            talks,
            oracle: &mut self.oracle,
            tally: &mut self.tally,
            saboteur: &mut self.saboteur,
        };
        let mut any = false;
        while let Some(event) = listener.qpairs.poll_event() {
            any = true;
            listener.handle(event);
        }
        any
    }
}

impl Listener<'_> {
    fn handle(&mut self, event: QPairEvent) {
        match event {
            QPairEvent::Incoming { qpair, .. } => {
                if self.qpairs.accept(qpair, end_config()).is_ok() {
                    self.talks.ends.insert(qpair, None);
                }
            }
            QPairEvent::Readable { qpair } => self.read(qpair),
            QPairEvent::Closed { qpair, .. } => {
                self.read(qpair);
                self.qpairs.close(qpair);
                if let Some(Some(id)) = self.talks.ends.remove(&qpair) {
                    self.oracle.conversations.close(id);
                }
            }
            QPairEvent::Connected { .. } | QPairEvent::Writable { .. } => {}
        }
    }

    fn read(&mut self, qpair: QPairId) {
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

    /// A donor that cannot answer now does not.
    fn answer(&mut self, qpair: QPairId) {
        let Some(id) = self.talks.ends.get(&qpair).copied().flatten() else { return };
        let (to, longest) = (Direction::Back, MAX_MESSAGE_BYTES);
        let message = self.oracle.conversations.next_message(id, to, longest);
        if self.qpairs.send(self.local_ns, qpair, &message).is_ok() {
            self.oracle.conversations.sent(self.now_ns, id, to);
        }
    }
}
