//! Talking to a process of this machine over its socket: one line asks, one JSON object answers.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Longest question, in bytes.
const LONGEST_QUESTION: u64 = 256;

/// It was asked, and says nothing, though somebody has its socket open.
#[derive(Debug, Error)]
#[error("it does not answer: is it stopped?")]
pub struct Silent;

/// Listens at `path`; what a dead process left there is replaced.
pub fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path);
    let listener = listener.with_context(|| format!("listening at {}", path.display()))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Asks the process behind `stream` and waits for its answer, at most so long; `None`: it died with
/// the question.
pub fn ask<Q: Serialize, A: DeserializeOwned>(
    mut stream: UnixStream,
    question: &Q,
    patience: Option<Duration>,
) -> anyhow::Result<Option<A>> {
    stream.set_read_timeout(patience)?;
    let mut line = serde_json::to_string(question).expect("questions are plain data");
    line.push('\n');
    stream.write_all(line.as_bytes()).context("it cannot be asked")?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => anyhow::Error::new(Silent),
        _ => anyhow::Error::new(error).context("it does not answer"),
    })?;
    if text.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&text).context("it is of another version of Venice")?))
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
