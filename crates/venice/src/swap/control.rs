//! The socket of a device's server: one line asks, one JSON object answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::status::Status;

/// How long a server may take to tell how it does. It may be short of processor time, not of
/// memory.
const STATUS_WITHIN: Duration = Duration::from_secs(20);

/// What a server can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    let path = path(folder);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path);
    let listener = listener.with_context(|| format!("listening at {}", path.display()))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Asks the server in `folder`; `None` when there is none.
pub fn ask(folder: &Path, question: Question) -> anyhow::Result<Option<Answer>> {
    let Ok(mut stream) = UnixStream::connect(path(folder)) else { return Ok(None) };
    let word = match question {
        Question::Status => {
            stream.set_read_timeout(Some(STATUS_WITHIN))?;
            "status\n"
        }
        Question::Detach => "detach\n",
    };
    stream.write_all(word.as_bytes()).context("asking the server of the swap device")?;
    let mut text = String::new();
    let read = stream.read_to_string(&mut text);
    read.context("the server of the swap device does not answer")?;
    if text.is_empty() {
        // It died with the question.
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&text).context("the swap device's server speaks otherwise")?))
}

/// The question of one who connected; `None`: nothing that makes sense.
pub fn hear(stream: &UnixStream) -> Option<Question> {
    // Whoever connects has the line ready; who has not is not waited for.
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut line = String::new();
    BufReader::new(stream).take(16).read_line(&mut line).ok()?;
    match line.trim() {
        "status" => Some(Question::Status),
        "detach" => Some(Question::Detach),
        _ => None,
    }
}

/// Answers, if the other is still there.
pub fn tell(mut stream: &UnixStream, answer: &Answer) {
    let text = serde_json::to_string(answer).expect("answers are plain data");
    let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
    let _ = stream.write_all(text.as_bytes());
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
                let heard = hear(&stream).unwrap();
                tell(&stream, &Answer::Refused(format!("{heard:?}")));
            }
        });
        for question in [Question::Status, Question::Detach] {
            let wanted = Answer::Refused(format!("{question:?}"));
            assert_eq!(ask(folder.path(), question).unwrap(), Some(wanted));
        }
        server.join().unwrap();
    }
}
