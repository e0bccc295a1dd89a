//! The socket of a device's server: one line asks, one JSON object answers.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use venice_recipient::runs::conversation::{self, ConversationError};

use super::status::Status;

/// How long a server may take to tell that its device is in use. It may be short of processor time,
/// not of memory.
const STATUS_WITHIN: Duration = Duration::from_secs(20);
/// One that serves answers within its look at the signals; after this long it counts as silent.
const SILENT_AFTER: Duration = Duration::from_secs(4);

/// What a server can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// How it does.
    Status,
    /// To bring everything home and end.
    Detach,
}

/// What it says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// How it does.
    Status(Box<Status>),
    /// Everything is home, the device is gone.
    Detached,
    /// The device stays; why.
    Refused(String),
}

/// Where the server in `folder` listens.
fn path(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}

/// Listens in `folder`; what a dead server left there is replaced.
pub fn listen(folder: &Path) -> anyhow::Result<UnixListener> {
    Ok(conversation::listen(&path(folder))?)
}

/// Asks the server in `folder`; `None` when there is none.
pub fn ask(folder: &Path, question: Question) -> anyhow::Result<Option<Answer>> {
    let patience = match question {
        Question::Status => Some(STATUS_WITHIN),
        // As long as the kernel needs to read everything back.
        Question::Detach => None,
    };
    ask_within(folder, question, patience).context("the server of the swap device")
}

/// Looks whether the server in `folder` answers, with little patience.
pub fn look(folder: &Path) -> Look {
    match ask_within(folder, Question::Status, Some(SILENT_AFTER)) {
        Ok(Some(Answer::Status(status))) => Look::Serves(status),
        Err(ConversationError::Silent) => Look::Silent,
        _ => Look::Dead,
    }
}

/// What is seen of a server from outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Look {
    /// It says how it does.
    Serves(Box<Status>),
    /// Its process is there (its socket is open) and does not answer.
    Silent,
    /// It has ended.
    Dead,
}

fn ask_within(
    folder: &Path,
    question: Question,
    patience: Option<Duration>,
) -> Result<Option<Answer>, ConversationError> {
    let Ok(stream) = UnixStream::connect(path(folder)) else { return Ok(None) };
    conversation::ask(stream, &question, patience)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_heard_and_answered() {
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
    fn who_listens_and_says_nothing_is_silent_and_who_is_gone_is_dead() {
        let folder = tempfile::tempdir().unwrap();
        let listener = listen(folder.path()).unwrap();
        let heard = ask_within(folder.path(), Question::Status, Some(Duration::from_millis(1)));
        assert!(matches!(heard, Err(ConversationError::Silent)), "{heard:?}");
        drop(listener);
        assert_eq!(look(folder.path()), Look::Dead);
    }
}
