//! A client of memcached's text protocol that can compute every value.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use venice_measure::interrupt;
use venice_measure::pattern;

/// Time without an answer after which the server is taken for hung.
const SILENCE: Duration = Duration::from_secs(30);

/// A connection to memcached.
#[derive(Debug)]
pub(in super::super) struct Client {
    reader: BufReader<UnixStream>,
    value_bytes: usize,
    /// Bytes to send, and the received line.
    out: Vec<u8>,
    value: Vec<u8>,
    expected: Vec<u8>,
    line: Vec<u8>,
}

impl Client {
    /// Connects a client whose values all have `value_bytes`.
    ///
    /// # Errors
    /// When no server listens at `socket`.
    pub(in super::super) fn connect(socket: &Path, value_bytes: usize) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to memcached at {}", socket.display()))?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(Self {
            reader: BufReader::with_capacity(64 << 10, stream),
            value_bytes,
            out: Vec::new(),
            // The value and its line end.
            value: vec![0; value_bytes + 2],
            expected: vec![0; value_bytes],
            line: Vec::new(),
        })
    }

    /// Stores the pattern that is the value of `key` in `version`.
    ///
    /// # Errors
    /// The same as [`Client::store`].
    pub(super) fn set(&mut self, key: u64, version: u64) -> Result<()> {
        let mut value = std::mem::take(&mut self.expected);
        pattern::fill(stored(key, version), &mut value);
        let outcome = self.store(key, &[&value]);
        self.expected = value;
        outcome
    }

    /// Reads the value of `key`; returns true if it is the pattern of `version`, to the last byte.
    ///
    /// # Errors
    /// The same as [`Client::fetch`].
    pub(super) fn get_is_right(&mut self, key: u64, version: u64) -> Result<bool> {
        // An evicted value counts as wrong.
        if self.fetch(key)?.is_none() {
            return Ok(false);
        }
        pattern::fill(stored(key, version), &mut self.expected);
        Ok(self.value[..self.value_bytes] == self.expected)
    }

    /// Stores `parts`, one behind the other, under `key`.
    ///
    /// # Errors
    /// When memcached does not store it, closes the connection or does not answer in time, and on
    /// an interrupt.
    pub(in super::super) fn store(&mut self, key: u64, parts: &[&[u8]]) -> Result<()> {
        interrupt::check()?;
        self.out.clear();
        write!(self.out, "set key{key:012} 0 0 {}\r\n", self.value_bytes)?;
        parts.iter().for_each(|part| self.out.extend_from_slice(part));
        self.out.extend_from_slice(b"\r\n");
        self.reader.get_mut().write_all(&self.out)?;
        match self.line()? {
            b"STORED" => Ok(()),
            other => bail!("memcached did not store: {}", String::from_utf8_lossy(other)),
        }
    }

    /// Returns the value of `key`, if there is one.
    ///
    /// # Errors
    /// When memcached closes the connection, does not answer in time or breaks the protocol, and on
    /// an interrupt.
    pub(in super::super) fn fetch(&mut self, key: u64) -> Result<Option<&[u8]>> {
        interrupt::check()?;
        self.out.clear();
        write!(self.out, "get key{key:012}\r\n")?;
        self.reader.get_mut().write_all(&self.out)?;
        let head = format!("VALUE key{key:012} 0 {}", self.value_bytes);
        match self.line()? {
            b"END" => return Ok(None),
            line if line == head.as_bytes() => {}
            other => bail!("memcached answered a get: {}", String::from_utf8_lossy(other)),
        }
        self.reader.read_exact(&mut self.value).context("memcached's value was cut off")?;
        if self.line()? != b"END" {
            bail!("memcached sent more than one value");
        }
        Ok(Some(&self.value[..self.value_bytes]))
    }

    /// Returns memcached's statistics: name and number of each line of `stats` that has one.
    ///
    /// # Errors
    /// The same as [`Client::fetch`].
    pub(in super::super) fn stats(&mut self) -> Result<Vec<(String, u64)>> {
        interrupt::check()?;
        self.reader.get_mut().write_all(b"stats\r\n")?;
        let mut stats = Vec::new();
        loop {
            let line = String::from_utf8_lossy(self.line()?).into_owned();
            let mut words = line.split(' ');
            match (words.next(), words.next(), words.next().map(str::parse)) {
                (Some("END"), ..) => return Ok(stats),
                (Some("STAT"), Some(name), Some(Ok(count))) => stats.push((name.to_owned(), count)),
                (Some("STAT"), ..) => {}
                _ => bail!("memcached answered stats: {line}"),
            }
        }
    }

    /// Reads the next line, without its line end.
    fn line(&mut self) -> Result<&[u8]> {
        self.line.clear();
        self.reader.read_until(b'\n', &mut self.line).context("memcached does not answer")?;
        self.line.strip_suffix(b"\r\n").context("memcached closed the connection")
    }
}

/// Returns the number whose pattern is the value of `key` in `version`.
fn stored(key: u64, version: u64) -> u64 {
    key ^ version << 40
}
