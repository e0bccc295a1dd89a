//! The socket of a device's server: one line asks, one JSON object answers.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::status::Status;
use crate::conversation;

/// How long a server may take to tell how it does. It may be short of processor time, not of
/// memory.
const STATUS_WITHIN: Duration = Duration::from_secs(20);

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
    conversation::listen(&path(folder))
}

/// Asks the server in `folder`; `None` when there is none.
pub fn ask(folder: &Path, question: Question) -> anyhow::Result<Option<Answer>> {
    let Ok(stream) = UnixStream::connect(path(folder)) else { return Ok(None) };
    let patience = match question {
        Question::Status => Some(STATUS_WITHIN),
        Question::Detach => None,
    };
    conversation::ask(stream, &question, patience).context("the server of the swap device")
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
}
