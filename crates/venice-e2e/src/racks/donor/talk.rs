//! A donor's part in conversations: it reads all messages, and answers every other one; and its
//! ends of byte streams.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use venice_ports::qpair::{QPairListener, QPairMessages, QPairSocketError};
use venice_sim::checkers::{ConversationId, Direction, message};

use crate::racks::notes::{Bytes, Notebook, What};
use crate::racks::plan::{MAX_MESSAGE_BYTES, Plan, Service, end_config};
use crate::racks::stream::StreamEnd;

/// Time for which a stream's end is kept when it is done.
const LINGER: Duration = Duration::from_secs(60);

/// Accepts QPairs, each on a thread of its own, until the process ends.
pub(super) fn listen(plan: &Plan, node: u16, notebook: Arc<Notebook>) -> Result<()> {
    let talks = bind(plan, node, Service::Talk)?;
    let streams = bind(plan, node, Service::Stream)?;
    let stream_notes = Arc::clone(&notebook);
    std::thread::spawn(move || take_streams(streams, node, &stream_notes));
    std::thread::spawn(move || take_talks(talks, node, &notebook));
    Ok(())
}

fn bind(plan: &Plan, node: u16, service: Service) -> Result<QPairListener> {
    let mut listener = QPairListener::bind(&plan.listens_at(node, service), service as u32)?;
    listener.set_end(end_config());
    Ok(listener)
}
/// Accepts QPairs of messages, each on a thread of its own.
fn take_talks(listener: QPairListener, node: u16, notebook: &Arc<Notebook>) {
    for end in 0.. {
        match listener.accept_messages(None) {
            Ok(socket) => {
                let notebook = Arc::clone(notebook);
                let talk = Talk { socket, end, notebook, conversation: None, answers: 0 };
                std::thread::spawn(move || talk.run());
            }
            Err(QPairSocketError::TimedOut) => {}
            // Programs that cannot connect show up in the checkers.
            Err(error) => return eprintln!("node {node}: {error}"),
        }
    }
}

/// Accepts QPairs of streams, each on a thread of its own.
fn take_streams(listener: QPairListener, node: u16, notebook: &Arc<Notebook>) {
    for end in 0.. {
        match listener.accept_stream(None) {
            Ok(socket) => {
                let mut stream = StreamEnd::accepted(socket, Arc::clone(notebook), end);
                std::thread::spawn(move || {
                    stream.run();
                    // The other end may be slow to read the last bytes.
                    std::thread::sleep(LINGER);
                });
            }
            Err(QPairSocketError::TimedOut) => {}
            Err(error) => return eprintln!("node {node}: {error}"),
        }
    }
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

    /// Talks until it is over; returns the error, unless the other side closed.
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
