//! A donor's part in conversations: reads all that comes, and answers every other message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Result;
use venice_ports::qpair::{QPairListener, QPairMessages, QPairSocketError};
use venice_sim::checkers::{ConversationId, Direction, message};

use crate::notes::{Bytes, Notebook, What};
use crate::plan::{MAX_MESSAGE_BYTES, Plan, TALK_SERVICE, end_config};

/// Takes QPairs, each on a thread of its own, until the process ends.
pub(super) fn listen(plan: &Plan, node: u16, notebook: Arc<Notebook>) -> Result<()> {
    let mut listener = QPairListener::bind(&plan.listens_at(node), TALK_SERVICE)?;
    listener.set_end(end_config());
    let ends = AtomicU32::new(0);
    std::thread::spawn(move || {
        loop {
            match listener.accept_messages(None) {
                Ok(socket) => {
                    let end = ends.fetch_add(1, Ordering::Relaxed);
                    let notebook = Arc::clone(&notebook);
                    let talk = Talk { socket, end, notebook, conversation: None, answers: 0 };
                    std::thread::spawn(move || talk.run());
                }
                Err(QPairSocketError::TimedOut) => {}
                // Programs that find nobody to talk to will be missed.
                Err(error) => return eprintln!("node {node}: {error}"),
            }
        }
    });
    Ok(())
}

struct Talk {
    socket: QPairMessages,
    end: u32,
    notebook: Arc<Notebook>,
    conversation: Option<u32>,
    answers: u32,
}

impl Talk {
    fn run(mut self) {
        let error = self.talk();
        if let Some(conversation) = self.conversation {
            let text = error.map_or("ended".into(), |error| error.to_string());
            self.notebook.note(What::Closed { conversation, text });
        }
    }

    /// Until it is over; an error says why, if not by the other side's wish.
    fn talk(&mut self) -> Option<QPairSocketError> {
        self.socket.set_timeout(Some(Duration::from_secs(1)));
        let mut buffer = vec![0; 2 * MAX_MESSAGE_BYTES];
        loop {
            let len = match self.socket.recv(&mut buffer) {
                Ok(0) => return None,
                Ok(len) => len,
                Err(QPairSocketError::TimedOut) => continue,
                Err(error) => return Some(error),
            };
            let data = Bytes(buffer[..len].to_vec());
            self.notebook.note(What::Received { end: self.end, is_there: true, data });
            if let Some(id) = buffer[..len].first_chunk() {
                self.conversation.get_or_insert(u32::from_le_bytes(*id));
            }
            if len % 2 == 0
                && let Some(conversation) = self.conversation
                && let Err(error) = self.answer(conversation)
            {
                return Some(error);
            }
        }
    }

    fn answer(&mut self, conversation: u32) -> Result<(), QPairSocketError> {
        let (id, to) = (ConversationId(conversation), Direction::Back);
        let answer = message(id, to, self.answers, MAX_MESSAGE_BYTES);
        self.notebook.note(What::Sent { conversation, is_there: false });
        self.answers += 1;
        loop {
            match self.socket.send(&answer) {
                Err(QPairSocketError::TimedOut) => {}
                sent => return sent,
            }
        }
    }
}
