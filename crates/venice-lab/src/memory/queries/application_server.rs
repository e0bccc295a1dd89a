//! The application server between client, cache and database: a thread that looks into redis, else
//! queries MariaDB and stores the answer in redis. Its client is here too.
//!
//! A query is the owner's number; an answer is its source, its length and its bytes. All numbers
//! are little-endian.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::database::Session;
use super::entries::{ANSWER_BYTES, Entries};
use venice_measure::demo::dataset::key;
use venice_measure::demo::resp::{self, Reply};

/// Time without an answer after which the server is taken for hung.
const SILENCE: Duration = Duration::from_secs(120);
/// Longer than any answer or error message.
const MOST_BYTES: u32 = 1 << 20;

/// Source of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Cache,
    Database,
}

const FROM_CACHE: u8 = 0;
const FROM_DATABASE: u8 = 1;
const FAILED: u8 = 2;

/// A server for one client; it ends when the client closes its connection.
#[derive(Debug)]
pub(super) struct ApplicationServer {
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl ApplicationServer {
    /// Starts a server that listens in `folder`, on a redis and a MariaDB.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub(super) fn start(folder: &Path, cache: resp::Client, database: Session) -> Result<Self> {
        let socket = folder.join("application.sock");
        let listener = UnixListener::bind(&socket)
            .with_context(|| format!("cannot listen at {}", socket.display()))?;
        let mut handler = Handler { cache, database };
        let thread = std::thread::spawn(move || {
            // A client that connects and closes at once ends the thread.
            if let Ok((stream, _)) = listener.accept() {
                let _ = handler.serve(stream);
            }
        });
        Ok(Self { socket, thread: Some(thread) })
    }

    /// Connects the one client.
    ///
    /// # Errors
    /// When the server does not listen.
    pub(super) fn connect(&self, entries: Entries) -> Result<Client> {
        let stream = UnixStream::connect(&self.socket)
            .context("cannot connect to the application server")?;
        stream.set_read_timeout(Some(SILENCE))?;
        Ok(Client {
            stream: BufReader::new(stream),
            entries,
            answer: Vec::new(),
            expected: [0; ANSWER_BYTES],
        })
    }
}

impl Drop for ApplicationServer {
    fn drop(&mut self) {
        // A connection that closes at once wakes a thread that still waits for its client.
        let _ = UnixStream::connect(&self.socket);
        if let Some(thread) = self.thread.take() {
            // A panic there has already been printed.
            let _ = thread.join();
        }
    }
}

/// The server's connections and buffers.
struct Handler {
    cache: resp::Client,
    database: Session,
}

impl Handler {
    fn serve(&mut self, stream: UnixStream) -> std::io::Result<()> {
        let mut queries = BufReader::new(stream.try_clone()?);
        let mut answers = stream;
        let mut out = Vec::new();
        loop {
            let mut owner = [0; 8];
            match queries.read_exact(&mut owner) {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                read => read?,
            }
            let (from, answer) = match self.answer(u64::from_le_bytes(owner)) {
                Ok((Source::Cache, answer)) => (FROM_CACHE, answer),
                Ok((Source::Database, answer)) => (FROM_DATABASE, answer),
                Err(error) => (FAILED, format!("{error:#}").into_bytes()),
            };
            out.clear();
            out.push(from);
            out.extend_from_slice(&(answer.len() as u32).to_le_bytes());
            out.extend_from_slice(&answer);
            answers.write_all(&out)?;
        }
    }

    fn answer(&mut self, owner: u64) -> Result<(Source, Vec<u8>)> {
        let key = key(owner);
        match self.cache.call(&[b"GET".as_slice(), &key])? {
            Reply::Bulk(answer) => return Ok((Source::Cache, answer.to_vec())),
            Reply::Nil => {}
            other => bail!("redis answered a GET with {other:?}"),
        }
        let answer = self.database.answer(owner)?;
        self.cache.call(&[b"SET".as_slice(), &key, &answer])?;
        Ok((Source::Database, answer))
    }
}

/// A client that can compute every answer.
#[derive(Debug)]
pub(super) struct Client {
    stream: BufReader<UnixStream>,
    entries: Entries,
    answer: Vec<u8>,
    expected: [u8; ANSWER_BYTES],
}

impl Client {
    /// Queries an owner's entries; returns their source, and true if every byte is right.
    ///
    /// # Errors
    /// When the server fails, is gone or does not answer in time.
    pub(super) fn ask(&mut self, owner: u64) -> Result<(Source, bool)> {
        self.stream
            .get_mut()
            .write_all(&owner.to_le_bytes())
            .context("the application server closed its connection")?;
        let mut head = [0; 5];
        self.stream.read_exact(&mut head).context("the application server does not answer")?;
        let [from, length @ ..] = head;
        let length = u32::from_le_bytes(length);
        if length > MOST_BYTES {
            bail!("the application server announced an answer of {length} bytes: too long");
        }
        self.answer.resize(length as usize, 0);
        self.stream
            .read_exact(&mut self.answer)
            .context("the application server's answer was cut off")?;
        let source = match from {
            FROM_CACHE => Source::Cache,
            FROM_DATABASE => Source::Database,
            _ => bail!("the application server: {}", String::from_utf8_lossy(&self.answer)),
        };
        self.entries.fill_answer(owner, &mut self.expected);
        Ok((source, self.answer == self.expected))
    }
}
