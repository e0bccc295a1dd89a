//! A client of memcached's text protocol that knows what every value must be.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::interrupt;
use crate::pattern;

/// Silence after which the server is taken for hung.
const SILENCE: Duration = Duration::from_secs(30);

/// One connection.
#[derive(Debug)]
pub(super) struct Client {
    reader: BufReader<UnixStream>,
    value: Vec<u8>,
    expected: Vec<u8>,
    line: Vec<u8>,
}

impl Client {
    /// # Errors
    /// When nobody listens at `socket`.
    pub(super) fn connect(socket: &Path, value_bytes: usize) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to memcached at {}", socket.display()))?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(Self {
            reader: BufReader::with_capacity(64 << 10, stream),
            // The value, and the line's end behind it.
            value: vec![0; value_bytes + 2],
            expected: vec![0; value_bytes],
            line: Vec::new(),
        })
    }

    /// Stores the value of `key` in `version`.
    ///
    /// # Errors
    /// When memcached does not store it, is gone or silent, and on an interrupt.
    pub(super) fn set(&mut self, key: u64, version: u64) -> Result<()> {
        interrupt::check()?;
        let value_bytes = self.expected.len();
        pattern::fill(stored(key, version), &mut self.value[..value_bytes]);
        self.value[value_bytes..].copy_from_slice(b"\r\n");
        let head = format!("set key{key:012} 0 0 {value_bytes}\r\n");
        let stream = self.reader.get_mut();
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&self.value))?;
        match self.line()? {
            b"STORED" => Ok(()),
            other => bail!("memcached did not store: {}", String::from_utf8_lossy(other)),
        }
    }

    /// Asks for the value of `key`; whether it is that of `version`, to the last byte.
    ///
    /// # Errors
    /// When memcached is gone or silent or does not speak its protocol, and on an interrupt.
    pub(super) fn get_is_right(&mut self, key: u64, version: u64) -> Result<bool> {
        interrupt::check()?;
        let value_bytes = self.expected.len();
        let request = format!("get key{key:012}\r\n");
        self.reader.get_mut().write_all(request.as_bytes())?;
        let head = format!("VALUE key{key:012} 0 {value_bytes}");
        match self.line()? {
            // Thrown out: lost is wrong.
            b"END" => return Ok(false),
            line if line == head.as_bytes() => {}
            other => bail!("memcached answered a get: {}", String::from_utf8_lossy(other)),
        }
        self.reader.read_exact(&mut self.value).context("memcached sent half a value")?;
        if self.line()? != b"END" {
            bail!("memcached sent more than one value");
        }
        pattern::fill(stored(key, version), &mut self.expected);
        Ok(self.value[..value_bytes] == self.expected)
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<&[u8]> {
        self.line.clear();
        self.reader.read_until(b'\n', &mut self.line).context("memcached is silent")?;
        self.line.strip_suffix(b"\r\n").context("memcached closed the connection")
    }
}

/// The number whose pattern is the value of `key` in `version`.
fn stored(key: u64, version: u64) -> u64 {
    key ^ version << 40
}
