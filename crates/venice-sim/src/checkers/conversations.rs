//! Messages of QPairs: each received once, whole, in the order sent, and none made up.

use std::collections::{BTreeMap, VecDeque};

use crate::random::mix;

/// All conversations of a rack, each over one QPair.
#[derive(Debug, Default)]
pub struct Conversations {
    all: BTreeMap<ConversationId, Conversation>,
}

/// A number that every message of a conversation carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConversationId(pub u32);

/// Which way: from the end that connected, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the end that connected.
    There,
    /// From the end that accepted.
    Back,
}

#[derive(Debug, Default)]
struct Conversation {
    is_closed: bool,
    directions: [Flow; 2],
}

#[derive(Debug, Default)]
struct Flow {
    sent: u32,
    received: u32,
    /// When those on their way were sent.
    sent_ns: VecDeque<u64>,
}

const HEADER_BYTES: usize = 9;

impl Conversations {
    /// A new conversation.
    pub fn begin(&mut self) -> ConversationId {
        let id = self.all.last_key_value().map_or(0, |(id, _)| id.0 + 1);
        self.begin_as(ConversationId(id));
        ConversationId(id)
    }

    /// A new conversation under a number that was drawn elsewhere.
    ///
    /// # Panics
    /// If there is one of that number.
    pub fn begin_as(&mut self, id: ConversationId) {
        let before = self.all.insert(id, Conversation::default());
        assert!(before.is_none(), "{id:?} begins twice");
    }

    /// The next message to send one way, at most `longest` bytes. It counts as sent after
    /// [`Conversations::sent`].
    pub fn next_message(&self, id: ConversationId, to: Direction, longest: usize) -> Vec<u8> {
        message(id, to, self.all[&id].directions[to as usize].sent, longest)
    }

    /// The next message was taken by the QPair.
    pub fn sent(&mut self, now_ns: u64, id: ConversationId, to: Direction) {
        let flow = &mut self.get(id).directions[to as usize];
        flow.sent += 1;
        flow.sent_ns.push_back(now_ns);
    }

    /// A message came out of a QPair of which `known` is the conversation, if any came before;
    /// returns the conversation and how long the message took.
    ///
    /// # Errors
    /// Says how it is not the one that is due.
    pub fn received(
        &mut self,
        now_ns: u64,
        known: Option<ConversationId>,
        to: Direction,
        longest: usize,
        bytes: &[u8],
    ) -> Result<(ConversationId, u64), String> {
        let (Some(&id), Some(&index)) =
            (bytes.first_chunk(), bytes.get(5..HEADER_BYTES).and_then(|index| index.first_chunk()))
        else {
            return Err(format!("a message of {} bytes, shorter than any sent", bytes.len()));
        };
        let (id, index) = (ConversationId(u32::from_le_bytes(id)), u32::from_le_bytes(index));
        if known.is_some_and(|known| known != id) {
            return Err(format!("{id:?} on the QPair of {known:?}"));
        }
        let Some(conversation) = self.all.get_mut(&id) else {
            return Err(format!("a message of {id:?}, which never was"));
        };
        let flow = &mut conversation.directions[to as usize];
        if index != flow.received || index >= flow.sent {
            let (due, sent) = (flow.received, flow.sent);
            return Err(format!(
                "{id:?} {to:?}: message {index} came, {due} is due, {sent} were sent"
            ));
        }
        if bytes != message(id, to, index, longest) {
            return Err(format!("{id:?} {to:?}: message {index} has other bytes than were sent"));
        }
        flow.received += 1;
        let sent_ns = flow.sent_ns.pop_front().expect("it was sent");
        Ok((id, now_ns - sent_ns))
    }

    /// Nothing more of this conversation need arrive.
    pub fn close(&mut self, id: ConversationId) {
        self.get(id).is_closed = true;
    }

    fn get(&mut self, id: ConversationId) -> &mut Conversation {
        self.all.get_mut(&id).expect("it has begun")
    }

    /// Whether everything sent in conversations that are not closed has arrived.
    ///
    /// # Errors
    /// Says what has not.
    pub fn check_settled(&self) -> Result<(), String> {
        let open = self.all.iter().filter(|(_, it)| !it.is_closed);
        for (id, conversation) in open {
            for Flow { sent, received, .. } in &conversation.directions {
                if sent != received {
                    return Err(format!(
                        "conversation {}: {received} of {sent} messages came",
                        id.0
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The message with this number, at most `longest` bytes: header, then bytes that follow from it. The
/// first four bytes are the conversation's number, little-endian.
pub fn message(id: ConversationId, to: Direction, index: u32, longest: usize) -> Vec<u8> {
    let seed = mix((u64::from(id.0) << 33) | (u64::from(index) << 1) | to as u64);
    let room = longest.saturating_sub(HEADER_BYTES) as u64 + 1;
    // Small ones more often than large ones.
    let len = if seed & 3 == 0 { (seed >> 2) % room } else { (seed >> 2) % room.min(64) };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + len as usize);
    bytes.extend(id.0.to_le_bytes());
    bytes.push(to as u8);
    bytes.extend(index.to_le_bytes());
    bytes.extend((0..len).map(|n| mix(seed ^ (n / 8)).to_le_bytes()[n as usize % 8]));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_once_and_in_order() {
        let mut all = Conversations::default();
        let (id, to) = (all.begin(), Direction::There);
        let mut messages = Vec::new();
        for _ in 0..3 {
            messages.push(all.next_message(id, to, 100));
            all.sent(5, id, to);
        }
        let mut receive = |n: usize| all.received(9, Some(id), to, 100, &messages[n]);
        assert_eq!(receive(0), Ok((id, 4)));
        assert!(receive(2).is_err(), "out of order");
        assert!(receive(0).is_err(), "twice");
        assert!(receive(1).is_ok() && receive(2).is_ok());
        let made_up = message(id, to, 3, 100);
        assert!(all.received(9, Some(id), to, 100, &made_up).is_err());
        assert!(all.received(9, Some(id), Direction::Back, 100, &messages[0]).is_err());
    }

    #[test]
    fn what_is_altered_or_missing_is_found() {
        let mut all = Conversations::default();
        let id = all.begin();
        let mut bytes = all.next_message(id, Direction::Back, 300);
        all.sent(0, id, Direction::Back);
        assert!(all.check_settled().is_err());
        bytes.push(0);
        assert!(all.received(0, None, Direction::Back, 300, &bytes).is_err());
        all.close(id);
        assert_eq!(all.check_settled(), Ok(()));
    }
}
