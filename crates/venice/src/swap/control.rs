//! The control socket of a device's server: one line asks, one JSON object answers.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use venice_recipient::runs::conversation::{self, ConversationError};

use super::status::Status;

/// Timeout of a status question. The server may be short of CPU time, but not of memory.
const STATUS_WITHIN: Duration = Duration::from_secs(20);
/// A serving server answers within its signal-check interval; after this long it counts as silent.
const SILENT_AFTER: Duration = Duration::from_secs(4);

/// A question to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Asks for the status.
    Status,
    /// Asks to read everything back and end.
    Detach,
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// The status.
    Status(Box<Status>),
    /// Everything is read back, and the device is gone.
    Detached,
    /// The device stays, with the reason.
    Refused(String),
}

/// Returns the path of the control socket in `folder`.
fn path(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}

/// Listens in `folder`; replaces the socket of a dead server.
pub fn listen(folder: &Path) -> anyhow::Result<UnixListener> {
    Ok(conversation::listen(&path(folder))?)
}

/// Asks the server in `folder`; `None` if there is none.
pub fn ask(folder: &Path, question: Question) -> anyhow::Result<Option<Answer>> {
    let patience = match question {
        Question::Status => Some(STATUS_WITHIN),
        // No timeout: the kernel takes as long as reading everything back takes.
        Question::Detach => None,
    };
    ask_within(folder, question, patience).context("asking the swap device's server")
}

/// Checks whether the server in `folder` answers, with a short timeout.
pub fn look(folder: &Path) -> Look {
    match ask_within(folder, Question::Status, Some(SILENT_AFTER)) {
        Ok(Some(Answer::Status(status))) => Look::Serves(status),
        Err(ConversationError::Silent) => Look::Silent,
        _ => Look::Dead,
    }
}

/// State of a server as seen from outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Look {
    /// It answers with its status.
    Serves(Box<Status>),
    /// Its process is there (the socket is open) but does not answer.
    Silent,
    /// It has ended.
    Dead,
}

fn ask_within(
    folder: &Path,
    question: Question,
    patience: Option<Duration>,
) -> Result<Option<Answer>, ConversationError> {
    let Ok(stream) = conversation::connect(&path(folder)) else { return Ok(None) };
    conversation::ask(stream, &question, patience)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_answered() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(ask(folder.path(), Question::Status).unwrap(), None);
        let listener = listen(folder.path()).unwrap();
        listener.set_nonblocking(false).unwrap();
        let server = std::thread::spawn(move || {
            for _ in 0..2 {
                let (stream, _) = listener.accept().unwrap();
                let heard: Question = conversation::hear(&stream).unwrap();
                conversation::tell(&stream, &Answer::Refused(format!("{heard:?}")));
            }
        });
        for question in [Question::Status, Question::Detach] {
            let wanted = Answer::Refused(format!("{question:?}"));
            assert_eq!(ask(folder.path(), question).unwrap(), Some(wanted));
        }
        server.join().unwrap();
    }

    #[test]
    fn mute_server_is_silent_closed_is_dead() {
        let folder = tempfile::tempdir().unwrap();
        let listener = listen(folder.path()).unwrap();
        let heard = ask_within(folder.path(), Question::Status, Some(Duration::from_millis(1)));
        assert!(matches!(heard, Err(ConversationError::Silent)), "{heard:?}");
        drop(listener);
        assert_eq!(look(folder.path()), Look::Dead);
    }
}
