//! Requests on their way to the donor: commands are collected, and leave in messages of many.

use std::collections::VecDeque;

use venice_service::wire::{BatchKind, BatchWriter, Entry, MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES};

use super::code::Field;
use super::wire::opcode;

/// Encoded commands that are sent without waiting for more.
const ENOUGH_BYTES: usize = 12 << 10;
/// Messages of commands that may be unanswered while commands still leave one by one. The donor
/// answers several at a time.
const EAGER_SUBMITS: usize = 8;
/// Messages of commands that may be unanswered at all.
pub(super) const MAX_SUBMITS: usize = 64;
/// Requests for notices that are outstanding when all is quiet.
pub(super) const POLLS: usize = 64;
/// Requests for notices below which new ones leave without waiting for commands.
const FEW_POLLS: usize = 8;

/// Kind of a request, by the upper half of its id: what its answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Submit,
    Poll,
    /// A call whose answer nobody waits for.
    Posted,
    Call,
}

impl RequestKind {
    const SHIFT: u32 = 60;

    fn id(self, number: u64) -> u64 {
        let kind = match self {
            Self::Submit => 0,
            Self::Poll => 1,
            Self::Posted => 2,
            Self::Call => 3,
        };
        number | kind << Self::SHIFT
    }

    /// Returns the kind of the request with this id.
    pub(super) fn of(id: u64) -> Self {
        match id >> Self::SHIFT {
            0 => Self::Submit,
            1 => Self::Poll,
            2 => Self::Posted,
            _ => Self::Call,
        }
    }
}

/// Unanswered requests, as the receiving thread counts them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unanswered {
    pub(super) submits: usize,
    pub(super) polls: usize,
}

/// The requests that have not left.
#[derive(Debug)]
pub(super) struct Outbox {
    next: u64,
    /// Encoded commands.
    commands: Vec<u8>,
    messages: VecDeque<Vec<u8>>,
    writer: BatchWriter,
}

impl Outbox {
    pub(super) fn new() -> Self {
        let writer = BatchWriter::new(BatchKind::Requests, MAX_MESSAGE_BYTES);
        Self { next: 1, commands: Vec::new(), messages: VecDeque::new(), writer }
    }

    /// Adds a command; returns how many submissions that made.
    ///
    /// # Errors
    /// Returns an encoded command that is too long for a message, which was not added.
    pub(super) fn add_command<'a>(&mut self, command: &impl Field<'a>) -> Result<usize, Vec<u8>> {
        let before = self.commands.len();
        command.put(&mut self.commands);
        if self.commands.len() - before > MAX_PAYLOAD_BYTES {
            return Err(self.commands.split_off(before));
        }
        Ok(self.finish_before(before))
    }

    /// Adds the command that `put` appends; returns how many submissions that made.
    pub(super) fn add_encoded(&mut self, put: impl FnOnce(&mut Vec<u8>)) -> usize {
        let before = self.commands.len();
        put(&mut self.commands);
        self.finish_before(before)
    }

    /// Ends the submission with the commands `before` the last one, if that does not fit beside them;
    /// returns how many submissions that made.
    fn finish_before(&mut self, before: usize) -> usize {
        if self.commands.len() <= MAX_PAYLOAD_BYTES || before == 0 {
            return 0;
        }
        let last = self.commands.split_off(before);
        let submits = self.finish_commands();
        self.commands = last;
        submits
    }

    /// True if the commands are to leave now.
    pub(super) fn is_due(&self, unanswered: Unanswered) -> bool {
        if self.commands.is_empty() && self.messages.is_empty() {
            return unanswered.polls < FEW_POLLS;
        }
        unanswered.submits < EAGER_SUBMITS
            || (self.commands.len() >= ENOUGH_BYTES && unanswered.submits < MAX_SUBMITS)
    }

    /// True if there are commands that have not left.
    pub(super) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    /// Adds a request behind the commands so far; returns its id and how many submissions that made.
    pub(super) fn add_request(
        &mut self,
        kind: RequestKind,
        code: u16,
        payload: &[u8],
    ) -> (u64, usize) {
        let submits = self.finish_commands();
        let id = self.push(kind, code, payload);
        (id, submits)
    }

    /// Ends the message that is being written; adds requests for notices to it. Returns how many
    /// submissions and requests for notices that made.
    pub(super) fn finish(&mut self, unanswered: Unanswered) -> (usize, usize) {
        let submits = self.finish_commands();
        let is_short = unanswered.polls < POLLS / 2;
        let polls = if is_short { POLLS - unanswered.polls } else { 0 };
        for _ in 0..polls {
            self.push(RequestKind::Poll, opcode::POLL, &[]);
        }
        self.finish_message();
        (submits, polls)
    }

    /// Returns the next message.
    pub(super) fn message(&self) -> Option<&[u8]> {
        self.messages.front().map(Vec::as_slice)
    }

    /// Forgets the message, which has left.
    pub(super) fn sent(&mut self) {
        self.messages.pop_front();
    }

    fn finish_commands(&mut self) -> usize {
        if self.commands.is_empty() {
            return 0;
        }
        let commands = std::mem::take(&mut self.commands);
        self.push(RequestKind::Submit, opcode::SUBMIT, &commands);
        self.commands = commands;
        self.commands.clear();
        1
    }

    fn push(&mut self, kind: RequestKind, code: u16, payload: &[u8]) -> u64 {
        let id = kind.id(self.next);
        self.next += 1;
        let entry = Entry { id, code, payload };
        if !self.writer.push(entry) {
            self.finish_message();
            assert!(self.writer.push(entry), "a payload within its limit fits an empty message");
        }
        id
    }

    fn finish_message(&mut self) {
        if !self.writer.is_empty() {
            self.messages.push_back(self.writer.message().to_vec());
            self.writer.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opencl::wire::{Command, CommandKind, opcode as opencl};
    use venice_service::wire::Message;

    const QUIET: Unanswered = Unanswered { submits: 0, polls: POLLS };

    fn marker(event: u64) -> Command<'static> {
        Command { queue: 1, event, waits: Vec::new(), kind: CommandKind::Marker {} }
    }

    fn requests(outbox: &mut Outbox) -> Vec<u16> {
        let mut codes = Vec::new();
        while let Some(message) = outbox.message() {
            let Ok(Message::Requests(batch)) = Message::parse(message) else { panic!("no batch") };
            codes.extend(batch.entries().map(|entry| entry.code));
            outbox.sent();
        }
        codes
    }

    #[test]
    fn commands_precede_later_requests() {
        let mut outbox = Outbox::new();
        outbox.add_command(&marker(1)).unwrap();
        outbox.add_request(RequestKind::Call, opencl::BUILD, b"x");
        outbox.add_command(&marker(2)).unwrap();
        assert_eq!(outbox.finish(QUIET), (1, 0));
        assert_eq!(requests(&mut outbox), [opcode::SUBMIT, opencl::BUILD, opcode::SUBMIT]);
    }

    #[test]
    fn busy_donor_gets_batches() {
        let mut outbox = Outbox::new();
        outbox.add_command(&marker(1)).unwrap();
        assert!(outbox.is_due(QUIET));
        let busy = Unanswered { submits: EAGER_SUBMITS, polls: POLLS };
        assert!(!outbox.is_due(busy));
        while !outbox.is_due(busy) {
            outbox.add_command(&marker(1)).unwrap();
        }
        assert!(!outbox.is_due(Unanswered { submits: MAX_SUBMITS, polls: POLLS }));
    }

    #[test]
    fn polls_are_renewed() {
        let mut outbox = Outbox::new();
        assert!(outbox.is_due(Unanswered { submits: 0, polls: 0 }));
        assert_eq!(outbox.finish(Unanswered { submits: 0, polls: 3 }), (0, POLLS - 3));
        assert_eq!(requests(&mut outbox).len(), POLLS - 3);
    }

    #[test]
    fn long_commands_fill_messages() {
        let mut outbox = Outbox::new();
        let bytes = vec![1; 16 << 10];
        for _ in 0..20 {
            let data = crate::opencl::wire::Blob::Inline { bytes: &bytes };
            let kind = CommandKind::WriteBuffer { memory: 1, offset: 0, data };
            outbox.add_command(&Command { queue: 1, event: 0, waits: Vec::new(), kind }).unwrap();
        }
        outbox.finish(QUIET);
        assert!(requests(&mut outbox).len() >= 6);
    }

    #[test]
    fn longest_commands_are_returned() {
        let mut outbox = Outbox::new();
        outbox.add_command(&marker(1)).unwrap();
        let waits = vec![7; MAX_PAYLOAD_BYTES / 8];
        let long = Command { queue: 1, event: 2, waits, kind: CommandKind::Marker {} };
        let encoded = outbox.add_command(&long).unwrap_err();
        assert_eq!(encoded, crate::stream::wire::encode(&long));
        outbox.finish(QUIET);
        assert_eq!(requests(&mut outbox), [opcode::SUBMIT]);
    }
}
