//! A Redis client that can compute every value.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::programs::running::Running;
use crate::programs::values::{VALUE_BYTES, value};
use crate::programs::wait_for;

/// Number of requests sent before their answers are read.
const PIPELINE: usize = 64;

/// Returns a `redis-server` command that listens on a unix socket in `dir` and saves only on
/// request.
pub fn server(dir: &Path) -> Command {
    let mut command = Command::new("redis-server");
    command.current_dir(dir).args(["--port", "0", "--save", "", "--appendonly", "no"]);
    command.args(["--daemonize", "no", "--loglevel", "warning", "--dir"]).arg(dir);
    command.arg("--unixsocket").arg(socket(dir));
    command
}

/// Returns the socket of [`server`].
pub fn socket(dir: &Path) -> std::path::PathBuf {
    dir.join("redis.sock")
}

/// A connection.
pub struct Client {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

/// An answer of the server.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK` and the like.
    Simple(String),
    /// A number.
    Number(i64),
    /// A value; `None` for a missing key.
    Bulk(Option<Vec<u8>>),
}

impl Client {
    /// Connects as soon as the server answers `PING`, within half a minute.
    pub fn connect(socket: &Path) -> Client {
        wait_for("redis-server to answer", Duration::from_secs(60), || {
            let writer = UnixStream::connect(socket).ok()?;
            writer.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
            let mut client = Client { reader: BufReader::new(writer.try_clone().ok()?), writer };
            client.send(&[b"PING"]);
            // The server answers with an error while it loads its file.
            matches!(client.try_receive(), Ok(Reply::Simple(_))).then_some(client)
        })
    }

    /// Sends one request and returns its answer.
    pub fn call(&mut self, words: &[&[u8]]) -> Reply {
        self.send(words);
        self.receive()
    }

    /// Sets every key to its value of `generation`.
    pub fn set_all(&mut self, keys: &[u64], generation: u64) {
        for batch in keys.chunks(PIPELINE) {
            let mut request = Vec::with_capacity(batch.len() * (VALUE_BYTES + 64));
            for key in batch {
                encode(&mut request, &[b"SET", name(*key).as_bytes(), &value(*key, generation)]);
            }
            self.writer.write_all(&request).expect("redis-server reads");
            for _ in batch {
                assert_eq!(self.receive(), Reply::Simple("OK".into()));
            }
        }
    }

    /// Reads every key and compares: `generation` returns the expected generation of each.
    #[track_caller]
    pub fn check_all(&mut self, keys: &[u64], generation: impl Fn(u64) -> u64) {
        let mut wrong = Vec::new();
        for batch in keys.chunks(PIPELINE) {
            let mut request = Vec::with_capacity(batch.len() * 64);
            for key in batch {
                encode(&mut request, &[b"GET", name(*key).as_bytes()]);
            }
            self.writer.write_all(&request).expect("redis-server reads");
            for key in batch {
                let expected = value(*key, generation(*key));
                if self.receive() != Reply::Bulk(Some(expected.to_vec())) {
                    wrong.push(*key);
                }
            }
        }
        assert!(
            wrong.is_empty(),
            "{} of {} values are wrong: {:?} ...",
            wrong.len(),
            keys.len(),
            &wrong[..wrong.len().min(8)]
        );
    }

    /// True while a background save runs; fails the test if the last one failed.
    pub fn is_saving(&mut self) -> bool {
        let Reply::Bulk(Some(info)) = self.call(&[b"INFO", b"persistence"]) else { panic!("INFO") };
        let info = String::from_utf8_lossy(&info).into_owned();
        assert!(info.contains("rdb_last_bgsave_status:ok"), "the background save failed: {info}");
        info.contains("rdb_bgsave_in_progress:1")
    }

    /// Tells the server to end without saving; it closes the connection.
    pub fn shut_down(mut self) {
        self.send(&[b"SHUTDOWN", b"NOSAVE"]);
        let _ = self.try_receive();
    }

    fn send(&mut self, words: &[&[u8]]) {
        let mut request = Vec::new();
        encode(&mut request, words);
        let _ = self.writer.write_all(&request);
    }

    fn receive(&mut self) -> Reply {
        self.try_receive().unwrap_or_else(|error| panic!("redis-server: {error}"))
    }

    fn try_receive(&mut self) -> Result<Reply, String> {
        let mut line = String::new();
        let got = self.reader.read_line(&mut line).map_err(|error| error.to_string())?;
        if got == 0 {
            return Err("it closed the connection".into());
        }
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "+" => Ok(Reply::Simple(rest.into())),
            ":" => rest.parse().map(Reply::Number).map_err(|error| error.to_string()),
            "$" if rest == "-1" => Ok(Reply::Bulk(None)),
            "$" => {
                let len: usize = rest.parse().map_err(|_| format!("length {rest:?}"))?;
                let mut bytes = vec![0; len + 2];
                self.reader.read_exact(&mut bytes).map_err(|error| error.to_string())?;
                bytes.truncate(len);
                Ok(Reply::Bulk(Some(bytes)))
            }
            _ => Err(line),
        }
    }
}

/// Loads a server's file in `dir` into a plain server, and compares: `keys` and no others are
/// there, with the values of `generation`.
#[track_caller]
pub fn check_saved_file(
    dir: &Path,
    keys: &[u64],
    generation: impl Fn(u64) -> u64,
    limit: Duration,
) {
    let second = Running::spawn(server(dir), false);
    let mut client = Client::connect(&socket(dir));
    client.check_all(keys, generation);
    assert_eq!(client.call(&[b"DBSIZE"]), Reply::Number(keys.len() as i64));
    client.shut_down();
    second.finish(limit).expect_code(0);
}

fn name(key: u64) -> String {
    format!("key:{key:012}")
}

fn encode(request: &mut Vec<u8>, words: &[&[u8]]) {
    request.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
}
