//! A memcached client that can compute every value.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::programs::values::{VALUE_BYTES, value};
use crate::programs::wait_for;

const PIPELINE: usize = 64;

/// Returns a `memcached` command that listens on a unix socket in `dir` and may hold `limit_mib`
/// MiB.
pub fn server(dir: &Path, limit_mib: u64) -> Command {
    let mut command = Command::new("memcached");
    command.args(["-u", "root", "-t", "2", "-m", &limit_mib.to_string(), "-s"]).arg(socket(dir));
    command
}

/// Returns the socket of [`server`].
pub fn socket(dir: &Path) -> std::path::PathBuf {
    dir.join("memcached.sock")
}

/// A connection.
pub struct Client {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Client {
    /// Connects as soon as the server listens, within half a minute.
    pub fn connect(socket: &Path) -> Client {
        let writer = wait_for("memcached to listen", Duration::from_secs(60), || {
            UnixStream::connect(socket).ok()
        });
        writer.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
        Client { reader: BufReader::new(writer.try_clone().expect("a descriptor")), writer }
    }

    /// Sets every key to its value of `generation`.
    pub fn set_all(&mut self, keys: &[u64], generation: u64) {
        for batch in keys.chunks(PIPELINE) {
            let mut request = Vec::with_capacity(batch.len() * (VALUE_BYTES + 64));
            for key in batch {
                request.extend_from_slice(format!("set key{key} 0 0 {VALUE_BYTES}\r\n").as_bytes());
                request.extend_from_slice(&value(*key, generation));
                request.extend_from_slice(b"\r\n");
            }
            self.writer.write_all(&request).expect("memcached reads");
            for _ in batch {
                assert_eq!(self.line(), "STORED");
            }
        }
    }

    /// Reads every key and compares the values. None may be missing.
    #[track_caller]
    pub fn check_all(&mut self, keys: &[u64], generation: impl Fn(u64) -> u64) {
        for batch in keys.chunks(PIPELINE) {
            let names: Vec<String> = batch.iter().map(|key| format!("key{key}")).collect();
            let request = format!("get {}\r\n", names.join(" "));
            self.writer.write_all(request.as_bytes()).expect("memcached reads");
            for key in batch {
                assert_eq!(self.line(), format!("VALUE key{key} 0 {VALUE_BYTES}"));
                let mut bytes = [0; VALUE_BYTES + 2];
                self.reader.read_exact(&mut bytes).expect("memcached answers");
                assert!(bytes[..VALUE_BYTES] == value(*key, generation(*key)), "key{key} is wrong");
            }
            assert_eq!(self.line(), "END");
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("memcached answers");
        line.trim_end().to_string()
    }
}
