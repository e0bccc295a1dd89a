//! A connection of the proxy to the memcached behind it.

use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Time without an answer after which memcached is taken for hung.
const SILENCE: Duration = Duration::from_secs(30);
/// End of an answer with a value.
const END: &[u8] = b"END\r\n";

/// Outcome of a store.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stored {
    Yes,
    /// There is no room, and memcached may not evict (`-M`). The old value of the key is gone.
    NoRoom,
    /// Another refusal, in memcached's words. The old value of the key is gone.
    Refused(Vec<u8>),
}

/// A connection to memcached.
#[derive(Debug)]
pub(super) struct Near {
    reader: BufReader<UnixStream>,
    line: Vec<u8>,
}

impl Near {
    /// Connects.
    ///
    /// # Errors
    /// When no server listens at `socket`.
    pub(super) fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to memcached at {}", socket.display()))?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(Self { reader: BufReader::with_capacity(64 << 10, stream), line: Vec::new() })
    }

    /// Reads the value of `key`, with its line end, into `value`; returns its flags, if it is
    /// there.
    ///
    /// # Errors
    /// When memcached closes the connection, does not answer in time or breaks the protocol.
    pub(super) fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<u32>> {
        self.send(&[b"get ", key, b"\r\n"])?;
        let line = self.line()?;
        if line == b"END" {
            value.clear();
            return Ok(None);
        }
        let (flags, len) = head_of_value(line)
            .with_context(|| format!("memcached answered: {}", String::from_utf8_lossy(line)))?;
        value.resize(len + 2 + END.len(), 0);
        self.reader.read_exact(value).context("memcached's value was cut off")?;
        if !value.ends_with(END) {
            bail!("memcached sent more than one value");
        }
        value.truncate(len + 2);
        Ok(Some(flags))
    }

    /// Stores a value that ends with its line end.
    ///
    /// # Errors
    /// The same as [`Near::get`].
    pub(super) fn set(
        &mut self,
        key: &[u8],
        flags: u32,
        exptime_s: i64,
        value: &[u8],
    ) -> Result<Stored> {
        let head = format!(" {flags} {exptime_s} {}\r\n", value.len() - 2);
        self.send(&[b"set ", key, head.as_bytes(), value])?;
        match self.line()? {
            b"STORED" => Ok(Stored::Yes),
            line if line.starts_with(b"SERVER_ERROR out of memory") => Ok(Stored::NoRoom),
            line => Ok(Stored::Refused(line.to_vec())),
        }
    }

    /// Deletes a value; returns true if there was one.
    ///
    /// # Errors
    /// The same as [`Near::get`].
    pub(super) fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.send(&[b"delete ", key, b"\r\n"])?;
        match self.line()? {
            b"DELETED" => Ok(true),
            b"NOT_FOUND" => Ok(false),
            line => bail!("memcached answered a delete: {}", String::from_utf8_lossy(line)),
        }
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<()> {
        write_parts(self.reader.get_mut(), parts).context("memcached closed the connection")
    }

    /// Reads the next line, without its line end.
    fn line(&mut self) -> Result<&[u8]> {
        self.line.clear();
        self.reader.read_until(b'\n', &mut self.line).context("memcached does not answer")?;
        self.line.strip_suffix(b"\r\n").context("memcached closed the connection")
    }
}

/// Writes all `parts` in as few calls as the socket takes.
pub(super) fn write_parts(stream: &mut UnixStream, parts: &[&[u8]]) -> std::io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut left = slices.as_mut_slice();
    // Empty parts at the front are skipped.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match stream.write_vectored(left) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut left, written),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Parses flags and length of `VALUE key flags length`.
fn head_of_value(line: &[u8]) -> Option<(u32, usize)> {
    let mut words = std::str::from_utf8(line).ok()?.strip_prefix("VALUE ")?.split(' ').skip(1);
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_head_has_flags_and_length() {
        assert_eq!(head_of_value(b"VALUE key 7 4096"), Some((7, 4096)));
        assert_eq!(head_of_value(b"VALUE key 7 4096 99"), Some((7, 4096)));
        for line in [&b"VALUE key x 3"[..], b"VALUE key 7", b"ERROR", b"\xff"] {
            assert_eq!(head_of_value(line), None, "{line:?}");
        }
    }

    #[test]
    fn parts_arrive_in_order() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let long = vec![7; 3 << 20];
        let parts: [&[u8]; 5] = [b"", b"head", b"", &long, b"end"];
        let wanted = parts.concat();
        let writer = std::thread::spawn({
            let long = long.clone();
            move || write_parts(&mut here, &[b"", b"head", b"", &long, b"end"]).unwrap()
        });
        let mut read = Vec::new();
        there.read_to_end(&mut read).unwrap();
        writer.join().unwrap();
        assert!(read == wanted);
    }
}
