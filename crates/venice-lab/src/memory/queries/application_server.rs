//! The application server between client, cache and database: a thread that looks into redis, else asks
//! MariaDB and leaves the answer in redis. And the client that asks it.
//!
//! A query is the owner's number; an answer says where it is from, how long it is, and then itself. All
//! numbers are little-endian.

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

/// Silence after which the server is taken for hung.
const SILENCE: Duration = Duration::from_secs(120);
/// Longer than any answer or message of failure.
const MOST_BYTES: u32 = 1 << 20;

/// Who had the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Cache,
    Database,
}

const FROM_CACHE: u8 = 0;
const FROM_DATABASE: u8 = 1;
const FAILED: u8 = 2;

/// A server for one client; it ends when the client has gone.
#[derive(Debug)]
pub(super) struct ApplicationServer {
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl ApplicationServer {
    /// Listens in `folder`, on a redis and a MariaDB.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub(super) fn start(folder: &Path, cache: resp::Client, database: Session) -> Result<Self> {
        let socket = folder.join("application.sock");
        let listener = UnixListener::bind(&socket)
            .with_context(|| format!("cannot listen at {}", socket.display()))?;
        let mut desk = Desk { cache, database };
        let thread = std::thread::spawn(move || {
            // Who connects and breaks off has heard enough.
            if let Ok((stream, _)) = listener.accept() {
                let _ = desk.serve(stream);
            }
        });
        Ok(Self { socket, thread: Some(thread) })
    }

    /// The one client.
    ///
    /// # Errors
    /// When the server does not listen.
    pub(super) fn connect(&self, entries: Entries) -> Result<Client> {
        let stream = UnixStream::connect(&self.socket).context("cannot reach our own server")?;
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
        // Whoever waits for a client that never came is woken by one that leaves at once.
        let _ = UnixStream::connect(&self.socket);
        if let Some(thread) = self.thread.take() {
            // A panic there has already been told.
            let _ = thread.join();
        }
    }
}

/// What the server works with.
struct Desk {
    cache: resp::Client,
    database: Session,
}

impl Desk {
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

/// A client that knows every answer.
#[derive(Debug)]
pub(super) struct Client {
    stream: BufReader<UnixStream>,
    entries: Entries,
    answer: Vec<u8>,
    expected: [u8; ANSWER_BYTES],
}

impl Client {
    /// Asks for an owner's entries: who had them, and whether they are right to the last byte.
    ///
    /// # Errors
    /// When the server fails, is gone or silent.
    pub(super) fn ask(&mut self, owner: u64) -> Result<(Source, bool)> {
        self.stream.get_mut().write_all(&owner.to_le_bytes()).context("our own server is gone")?;
        let mut head = [0; 5];
        self.stream.read_exact(&mut head).context("our own server is silent")?;
        let [from, length @ ..] = head;
        let length = u32::from_le_bytes(length);
        if length > MOST_BYTES {
            bail!("our own server announced an answer of {length} bytes");
        }
        self.answer.resize(length as usize, 0);
        self.stream.read_exact(&mut self.answer).context("our own server sent half an answer")?;
        let source = match from {
            FROM_CACHE => Source::Cache,
            FROM_DATABASE => Source::Database,
            _ => bail!("the application server: {}", String::from_utf8_lossy(&self.answer)),
        };
        self.entries.fill_answer(owner, &mut self.expected);
        Ok((source, self.answer == self.expected))
    }
}
