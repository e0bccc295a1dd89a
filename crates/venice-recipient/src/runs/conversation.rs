//! Talking to a process of this machine over its socket: one line asks, one JSON object answers.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest question, in bytes.
const LONGEST_QUESTION: u64 = 256;

/// Why nobody listens, or nobody answers.
#[derive(Debug, thiserror::Error)]
pub enum ConversationError {
    /// No socket.
    #[error("listening at {path}")]
    Listen {
        /// Where.
        path: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The question did not arrive.
    #[error("it cannot be asked")]
    Ask(#[source] io::Error),
    /// The answer did not.
    #[error("it does not answer")]
    Answer(#[source] io::Error),
    /// It was asked, and says nothing, though somebody has its socket open.
    #[error("it does not answer: is it stopped?")]
    Silent,
    /// What it says makes no sense here.
    #[error("it is of another version of Venice")]
    Version(#[source] serde_json::Error),
}

/// Listens at `path`; what a dead process left there is replaced.
///
/// # Errors
/// [`ConversationError::Listen`].
pub fn listen(path: &Path) -> Result<UnixListener, ConversationError> {
    let refused = |source| ConversationError::Listen { path: path.display().to_string(), source };
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    Ok(listener)
}

/// Asks the process behind `stream` and waits for its answer, at most so long; `None`: it died with
/// the question.
///
/// # Errors
/// [`ConversationError`].
pub fn ask<Q: Serialize, A: DeserializeOwned>(
    mut stream: UnixStream,
    question: &Q,
    patience: Option<Duration>,
) -> Result<Option<A>, ConversationError> {
    stream.set_read_timeout(patience).map_err(ConversationError::Ask)?;
    let mut line = serde_json::to_string(question).expect("questions are plain data");
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(ConversationError::Ask)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => ConversationError::Silent,
        _ => ConversationError::Answer(error),
    })?;
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&text).map(Some).map_err(ConversationError::Version)
}

/// The question of one who connected; `None`: nothing that makes sense.
pub fn hear<Q: DeserializeOwned>(stream: &UnixStream) -> Option<Q> {
    // Whoever connects has the line ready; who has not is not waited for.
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut line = String::new();
    BufReader::new(stream).take(LONGEST_QUESTION).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

/// Answers, if the other is still there.
pub fn tell<A: Serialize>(mut stream: &UnixStream, answer: &A) {
    let text = serde_json::to_string(answer).expect("answers are plain data");
    let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
    let _ = stream.write_all(text.as_bytes());
}
