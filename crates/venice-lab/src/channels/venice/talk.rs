//! Roles of a QPair's end: send without end, receive, answer, or exchange.

use anyhow::{Result, anyhow, bail};
use venice_fabric::{EndConfig, GrantedMemory, QPairError, QPairEvent, QPairId, QPairs};

use super::lent::{GRANT, KEY};
use venice_memory::donor::SharedGrants;

/// The service that the far end listens for.
pub(super) const SERVICE: u32 = 1;
/// Calls in one turn, so that frames move in between.
const CALLS_PER_TURN: usize = 64;

/// Role of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Returns each message.
    Echo,
    /// Discards messages.
    Sink,
    /// Sends messages of this length as fast as they are accepted.
    Source(usize),
    /// Sends and discards at the same time.
    Exchange(usize),
    /// Executes each [`Question`].
    Serve,
    /// Does only what its owner calls.
    Idle,
}

/// A request to a thread at the donor: a byte for its kind, three free, four bytes of length, eight
/// of address, all little-endian; then the bytes to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// Answered by the bytes.
    Read { addr: u64, len: u32 },
    /// Answered, if requested, by an empty word.
    Write { addr: u64, answer: bool },
    /// Only its length matters.
    Drop,
}

impl Question {
    pub(super) const HEADER_BYTES: usize = 16;

    /// Encodes it at the front of `message`.
    pub(super) fn encode(self, message: &mut [u8]) {
        let (kind, len, addr) = match self {
            Question::Read { addr, len } => (0, len, addr),
            Question::Write { addr, answer } => (1, u32::from(answer), addr),
            Question::Drop => (2, 0, 0),
        };
        message[0] = kind;
        message[4..8].copy_from_slice(&len.to_le_bytes());
        message[8..16].copy_from_slice(&addr.to_le_bytes());
    }

    fn decode(message: &[u8]) -> Option<Self> {
        let len = u32::from_le_bytes(message.get(4..8)?.try_into().ok()?);
        let addr = u64::from_le_bytes(message.get(8..16)?.try_into().ok()?);
        match message[0] {
            0 => Some(Question::Read { addr, len }),
            1 => Some(Question::Write { addr, answer: len != 0 }),
            2 => Some(Question::Drop),
            _ => None,
        }
    }
}

/// One end of one QPair.
#[derive(Debug)]
pub(super) struct Talker {
    role: Role,
    end: EndConfig,
    /// Set once it is connected.
    qpair: Option<QPairId>,
    message: Vec<u8>,
    received: Vec<u8>,
    /// Bytes of a message that is still to be returned.
    owed: Option<usize>,
    /// Bytes of messages that arrived.
    pub(super) received_bytes: u64,
}

impl Talker {
    /// Creates one for messages of at most `longest` bytes.
    pub(super) fn new(role: Role, end: EndConfig, longest: usize) -> Self {
        let len = match role {
            Role::Source(len) | Role::Exchange(len) => len,
            _ => longest,
        };
        Self {
            role,
            end,
            qpair: None,
            message: vec![0x56; len],
            received: vec![0; longest],
            owed: None,
            received_bytes: 0,
        }
    }

    /// True if the other end is connected.
    pub(super) fn is_connected(&self) -> bool {
        self.qpair.is_some()
    }

    /// Handles events; readiness edges are ignored, since each turn polls.
    pub(super) fn settle(&mut self, qpairs: &mut QPairs) -> Result<()> {
        while let Some(event) = qpairs.poll_event() {
            match event {
                QPairEvent::Incoming { qpair, .. } => {
                    qpairs.accept(qpair, self.end)?;
                    self.qpair = Some(qpair);
                }
                QPairEvent::Connected { qpair } => self.qpair = Some(qpair),
                QPairEvent::Closed { reason, .. } => bail!("the QPair is closed: {reason}"),
                QPairEvent::Readable { .. } | QPairEvent::Writable { .. } => {}
            }
        }
        Ok(())
    }

    /// Does what is possible now; returns true if that was anything.
    pub(super) fn act(
        &mut self,
        now_ns: u64,
        qpairs: &mut QPairs,
        lent: &mut SharedGrants,
    ) -> Result<bool> {
        self.settle(qpairs)?;
        let mut any = false;
        if self.qpair.is_none() || self.role == Role::Idle {
            return Ok(any);
        }
        if let Role::Source(len) | Role::Exchange(len) = self.role {
            for _ in 0..CALLS_PER_TURN {
                if !self.send(now_ns, qpairs, len)? {
                    break;
                }
                any = true;
            }
        }
        if matches!(self.role, Role::Source(_)) {
            return Ok(any);
        }
        for _ in 0..CALLS_PER_TURN {
            if let Some(len) = self.owed {
                if !self.send(now_ns, qpairs, len)? {
                    break;
                }
                self.owed = None;
            }
            let Some(len) = self.receive(qpairs)? else { break };
            any = true;
            match self.role {
                Role::Echo => self.owed = Some(len),
                Role::Serve => self.serve(len, lent)?,
                _ => {}
            }
        }
        Ok(any)
    }

    /// Executes the request in the message of `len` bytes that has just arrived.
    fn serve(&mut self, len: usize, lent: &mut SharedGrants) -> Result<()> {
        let message = &self.received[..len];
        let done = match Question::decode(message) {
            Some(Question::Read { addr, len }) => {
                let len = len as usize;
                let into = self.message.get_mut(..len);
                let into = into.ok_or_else(|| anyhow!("a request for too many bytes"))?;
                self.owed = Some(len);
                lent.read(GRANT, KEY, addr, into)
            }
            Some(Question::Write { addr, answer }) => {
                self.owed = answer.then_some(1);
                lent.write(GRANT, KEY, addr, &message[Question::HEADER_BYTES..])
            }
            Some(Question::Drop) => Ok(()),
            None => bail!("an invalid request"),
        };
        done.map_err(|refusal| anyhow!("the donor refuses: {refusal:?}"))
    }

    /// Sends a message of `len` bytes; returns true if it was accepted.
    pub(super) fn send(&mut self, now_ns: u64, qpairs: &mut QPairs, len: usize) -> Result<bool> {
        let Some(qpair) = self.qpair else { bail!("the QPair is not connected") };
        taken(qpairs.send(now_ns, qpair, &self.message[..len]))
    }

    /// Sends `message`; returns true if it was accepted.
    pub(super) fn send_bytes(
        &mut self,
        now_ns: u64,
        qpairs: &mut QPairs,
        message: &[u8],
    ) -> Result<bool> {
        let Some(qpair) = self.qpair else { bail!("the QPair is not connected") };
        taken(qpairs.send(now_ns, qpair, message))
    }

    /// Receives; returns the length of the next message, if one has arrived.
    pub(super) fn receive(&mut self, qpairs: &mut QPairs) -> Result<Option<usize>> {
        let Some(qpair) = self.qpair else { bail!("the QPair is not connected") };
        match qpairs.recv(qpair, &mut self.received) {
            Ok(len) => {
                self.received_bytes += len as u64;
                Ok(Some(len))
            }
            Err(QPairError::WouldBlock) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// True if a call was accepted; "later" is not an error.
fn taken(sent: Result<(), QPairError>) -> Result<bool> {
    match sent {
        Ok(()) => Ok(true),
        Err(QPairError::WouldBlock) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[test]
fn request_round_trips() {
    let questions = [
        Question::Read { addr: 1 << 40, len: 64 },
        Question::Write { addr: 7, answer: true },
        Question::Drop,
    ];
    for question in questions {
        let mut message = [0xff; Question::HEADER_BYTES];
        question.encode(&mut message);
        assert_eq!(Question::decode(&message), Some(question));
    }
    assert_eq!(Question::decode(&[3; Question::HEADER_BYTES]), None);
    assert_eq!(Question::decode(&[0]), None);
}
