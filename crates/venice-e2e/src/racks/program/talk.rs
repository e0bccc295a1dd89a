//! A program's conversation with one donor, on a thread of its own.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use venice_fabric::CreditMode;
use venice_ports::qpair::{QPairAddress, QPairMessages, QPairOptions, QPairSocketError};
use venice_sim::checkers::{ConversationId, Direction, message};
use venice_sim::rack::Sabotage;

use crate::racks::notes::{Bytes, Notebook, Source, What};
use crate::racks::plan::{MAX_MESSAGE_BYTES, Service, end_config};

/// Messages to be sent to a donor.
#[derive(Clone, Debug, Default)]
pub(super) struct Todo(Arc<AtomicU32>);

impl Todo {
    pub fn add_one(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    fn one_is_done(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// State of the thread.
pub(super) struct Talk {
    pub source: Source,
    pub session: usize,
    pub address: QPairAddress,
    pub todo: Todo,
    pub notebook: Arc<Notebook>,
    pub sabotage: Option<Sabotage>,
}

/// A QPair and its counts.
struct Conversation {
    socket: QPairMessages,
    id: u32,
    sent: u32,
    received: u32,
    /// Noted, and not yet accepted by the QPair.
    held: Option<Vec<u8>>,
}

/// Pause after a donor could not be reached.
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// Period of the checks for messages to send.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// Returns the number of a program's QPair: unique among all of its kind in the rack.
pub(super) fn number(source: Source, session: usize, n: u32) -> u32 {
    let Source { node, life, .. } = source;
    assert!(life < 1 << 8 && n < 1 << 16 && session < 4 && node < 1 << 6);
    u32::from(node) << 26 | (session as u32) << 24 | life << 16 | n
}

impl Talk {
    /// Sends pending messages, and reads incoming ones, until the process ends.
    pub fn run(self) {
        for n in 0.. {
            let id = number(self.source, self.session, n);
            let error = self.converse(id);
            let text = error.to_string();
            self.notebook.note(What::Closed { conversation: id, text });
            std::thread::sleep(PAUSE);
        }
    }

    /// Runs one conversation, until it breaks.
    fn converse(&self, id: u32) -> QPairSocketError {
        while self.todo.is_empty() {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.notebook.note(What::Began { conversation: id });
        let credit = if id % 3 == 2 { CreditMode::InBand } else { CreditMode::CrmaWrite };
        let options = QPairOptions { credit, end: end_config(), ..QPairOptions::default() };
        let socket = match QPairMessages::connect(&self.address, Service::Talk as u32, &options) {
            Ok(socket) => socket,
            Err(error) => return error,
        };
        let mut conversation = Conversation { socket, id, sent: 0, received: 0, held: None };
        loop {
            let step = self.read(&mut conversation).and_then(|()| self.send(&mut conversation));
            if let Err(error) = step {
                return error;
            }
            conversation.wait();
        }
    }

    fn read(&self, conversation: &mut Conversation) -> Result<(), QPairSocketError> {
        let mut buffer = [0; 2 * MAX_MESSAGE_BYTES];
        let mut messages = Vec::new();
        let ended = loop {
            match conversation.socket.try_recv(&mut buffer) {
                Ok(0) => break Err(QPairSocketError::Closed),
                Ok(len) => messages.push(buffer[..len].to_vec()),
                Err(QPairSocketError::WouldBlock) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        for mut bytes in messages {
            if self.sabotage == Some(Sabotage::SwapMessages) {
                // The next message takes its place.
                let id = ConversationId(conversation.id);
                bytes = message(id, Direction::Back, conversation.received + 1, MAX_MESSAGE_BYTES);
            }
            conversation.received += 1;
            let (end, data) = (conversation.id, Bytes(bytes));
            self.notebook.note(What::Received { end, is_there: false, data });
        }
        ended
    }

    fn send(&self, conversation: &mut Conversation) -> Result<(), QPairSocketError> {
        while !self.todo.is_empty() {
            let Conversation { socket, id, sent, held, .. } = conversation;
            let message = held.get_or_insert_with(|| {
                self.notebook.note(What::Sent { conversation: *id, is_there: true });
                message(ConversationId(*id), Direction::There, *sent, MAX_MESSAGE_BYTES)
            });
            match socket.try_send(message) {
                Ok(()) => {}
                Err(QPairSocketError::WouldBlock) => return Ok(()),
                Err(error) => return Err(error),
            }
            *held = None;
            *sent += 1;
            self.todo.one_is_done();
        }
        Ok(())
    }
}

impl Conversation {
    fn wait(&self) {
        if self.socket.arm() {
            // Both directions are tried again whatever the result.
            let _ = poll(
                &mut [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)],
                Some(&LOOK),
            );
        }
        self.socket.attend();
    }
}
