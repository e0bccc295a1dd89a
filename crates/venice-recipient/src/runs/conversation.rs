//! Calls to a process of this machine over its socket: one line as the request, one JSON object as
//! the answer.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::Serialize;
use serde::de::DeserializeOwned;
use venice_sockets::refuse_descriptors;

/// Longest request, in bytes.
const LONGEST_QUESTION: u64 = 256;
/// Longest answer, in bytes.
const LONGEST_ANSWER: u64 = 4 << 20;

/// An error of a call over a socket.
#[derive(Debug, thiserror::Error)]
pub enum ConversationError {
    /// The socket could not be created.
    #[error("listening at {path}")]
    Listen {
        /// Its path.
        path: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The request was not sent.
    #[error("cannot send the request")]
    Ask(#[source] io::Error),
    /// The answer was not received.
    #[error("it does not answer")]
    Answer(#[source] io::Error),
    /// No answer came, though a process has the socket open.
    #[error("it does not answer: is it stopped?")]
    Silent,
    /// The answer is invalid.
    #[error("invalid answer: it runs another version of Venice")]
    Version(#[source] serde_json::Error),
}

/// Listens at `path`; a dead process's socket there is replaced.
///
/// # Errors
/// [`ConversationError::Listen`].
pub fn listen(path: &Path) -> Result<UnixListener, ConversationError> {
    let refused = |source| ConversationError::Listen { path: path.display().to_string(), source };
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(refused)?;
    refuse_descriptors(&listener).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    Ok(listener)
}

/// Connects to the process that listens at `path`, perhaps another user's.
///
/// # Errors
/// The system's.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    refuse_descriptors(&socket)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Calls the process behind `stream` and waits for its answer, at most for `patience`; `None`: it
/// died with the request.
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
    stream.take(LONGEST_ANSWER).read_to_string(&mut text).map_err(unanswered)?;
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&text).map(Some).map_err(ConversationError::Version)
}

/// Calls as [`ask`] does, and returns the connection with the answer: more follows.
///
/// # Errors
/// [`ConversationError`].
pub fn ask_and_go_on<Q: Serialize, A: DeserializeOwned>(
    mut stream: UnixStream,
    question: &Q,
    patience: Option<Duration>,
) -> Result<Option<(A, UnixStream)>, ConversationError> {
    stream.set_read_timeout(patience).map_err(ConversationError::Ask)?;
    let mut line = serde_json::to_string(question).expect("questions are plain data");
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(ConversationError::Ask)?;
    // Byte by byte: what follows the line is not the answer's.
    let (mut text, mut byte) = (Vec::new(), [0u8]);
    while text.len() < LONGEST_ANSWER as usize
        && stream.read(&mut byte).map_err(unanswered)? > 0
        && byte[0] != b'\n'
    {
        text.push(byte[0]);
    }
    if text.is_empty() {
        return Ok(None);
    }
    let answer = serde_json::from_slice(&text).map_err(ConversationError::Version)?;
    stream.set_read_timeout(None).map_err(ConversationError::Ask)?;
    Ok(Some((answer, stream)))
}

fn unanswered(error: io::Error) -> ConversationError {
    match error.kind() {
        ErrorKind::WouldBlock => ConversationError::Silent,
        _ => ConversationError::Answer(error),
    }
}

/// Reads the request of a connection; `None`: it is invalid.
pub fn hear<Q: DeserializeOwned>(stream: &UnixStream) -> Option<Q> {
    // A caller sends the line with its connection; a silent one is not waited for.
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut line = String::new();
    BufReader::new(stream).take(LONGEST_QUESTION).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

/// Sends an answer, if the caller is still there.
pub fn tell<A: Serialize>(mut stream: &UnixStream, answer: &A) {
    let mut text = serde_json::to_string(answer).expect("answers are plain data");
    text.push('\n');
    let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
    let _ = stream.write_all(text.as_bytes());
}
