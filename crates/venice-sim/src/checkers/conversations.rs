//! Checker of QPair messages: each is received once, whole, in the order sent, and none is
//! invented.

use std::collections::{BTreeMap, VecDeque};

use venice_simkernel::random::mix;

/// All conversations of a rack, each over one QPair.
#[derive(Debug, Default)]
pub struct Conversations {
    all: BTreeMap<ConversationId, Conversation>,
}

/// The number in every message of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConversationId(pub u32);

/// Direction: from the end that connected, or back.
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
    /// Times at which outstanding messages were sent.
    sent_ns: VecDeque<u64>,
}

const HEADER_BYTES: usize = 9;

impl Conversations {
    /// Begins a conversation; returns its number.
    pub fn begin(&mut self) -> ConversationId {
        let id = self.all.last_key_value().map_or(0, |(id, _)| id.0 + 1);
        self.begin_as(ConversationId(id));
        ConversationId(id)
    }

    /// Begins a conversation under a given number.
    ///
    /// # Panics
    /// If the number is already in use.
    pub fn begin_as(&mut self, id: ConversationId) {
        let before = self.all.insert(id, Conversation::default());
        assert!(before.is_none(), "{id:?} begins twice");
    }

    /// Returns the next message to send in a direction, at most `longest` bytes. It counts as sent
    /// after [`Conversations::sent`].
    pub fn next_message(&self, id: ConversationId, to: Direction, longest: usize) -> Vec<u8> {
        message(id, to, self.all[&id].directions[to as usize].sent, longest)
    }

    /// Records that the QPair accepted the next message.
    pub fn sent(&mut self, now_ns: u64, id: ConversationId, to: Direction) {
        let flow = &mut self.get(id).directions[to as usize];
        flow.sent += 1;
        flow.sent_ns.push_back(now_ns);
    }

    /// Checks a message from a QPair; `known` is the QPair's conversation, if a message came
    /// before. Returns the conversation and the message's latency.
    ///
    /// # Errors
    /// With the difference from the expected message.
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
            return Err(format!("a message of {} bytes is shorter than any sent", bytes.len()));
        };
        let (id, index) = (ConversationId(u32::from_le_bytes(id)), u32::from_le_bytes(index));
        if known.is_some_and(|known| known != id) {
            return Err(format!("{id:?} on the QPair of {known:?}"));
        }
        let Some(conversation) = self.all.get_mut(&id) else {
            return Err(format!("a message of {id:?}, which does not exist"));
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

    /// Ends a conversation; its remaining messages need not arrive.
    pub fn close(&mut self, id: ConversationId) {
        self.get(id).is_closed = true;
    }

    fn get(&mut self, id: ConversationId) -> &mut Conversation {
        self.all.get_mut(&id).expect("the conversation has begun")
    }

    /// Checks that all messages of open conversations have arrived.
    ///
    /// # Errors
    /// With the missing ones.
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

/// Builds the message with this number, at most `longest` bytes: a header, then bytes computed from
/// it. The first four bytes are the conversation's number, little-endian.
pub fn message(id: ConversationId, to: Direction, index: u32, longest: usize) -> Vec<u8> {
    let seed = mix((u64::from(id.0) << 33) | (u64::from(index) << 1) | to as u64);
    let room = longest.saturating_sub(HEADER_BYTES) as u64 + 1;
    // Small sizes are more frequent than large ones.
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
    fn messages_come_once_in_order() {
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
    fn altered_or_missing_message_is_found() {
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
