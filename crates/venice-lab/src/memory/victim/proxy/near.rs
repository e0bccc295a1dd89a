//! A connection of the proxy's to the memcached behind it.

use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Silence after which memcached is taken for hung.
const SILENCE: Duration = Duration::from_secs(30);
/// What ends an answer with a value in it.
const END: &[u8] = b"END\r\n";

/// What became of a value that was to be stored.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stored {
    Yes,
    /// There is no room, and memcached may not make any (`-M`). What was under the key is gone.
    NoRoom,
    /// For another reason, in memcached's words. What was under the key is gone.
    Refused(Vec<u8>),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Near {
    reader: BufReader<UnixStream>,
    line: Vec<u8>,
}

impl Near {
    /// # Errors
    /// When nobody listens at `socket`.
    pub(super) fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to memcached at {}", socket.display()))?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(Self { reader: BufReader::with_capacity(64 << 10, stream), line: Vec::new() })
    }

    /// Puts the value of `key`, with the line's end behind it, in the place of what `value` holds;
    /// its flags, where it is there.
    ///
    /// # Errors
    /// When memcached is gone or silent or does not speak its protocol.
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
        self.reader.read_exact(value).context("memcached sent half a value")?;
        if !value.ends_with(END) {
            bail!("memcached sent more than one value");
        }
        value.truncate(len + 2);
        Ok(Some(flags))
    }

    /// Stores a value that has its line's end behind it.
    ///
    /// # Errors
    /// As [`Near::get`].
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

    /// Takes a value away; whether there was one.
    ///
    /// # Errors
    /// As [`Near::get`].
    pub(super) fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.send(&[b"delete ", key, b"\r\n"])?;
        match self.line()? {
            b"DELETED" => Ok(true),
            b"NOT_FOUND" => Ok(false),
            line => bail!("memcached answered a delete: {}", String::from_utf8_lossy(line)),
        }
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<()> {
        write_parts(self.reader.get_mut(), parts).context("memcached is gone")
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<&[u8]> {
        self.line.clear();
        self.reader.read_until(b'\n', &mut self.line).context("memcached is silent")?;
        self.line.strip_suffix(b"\r\n").context("memcached closed the connection")
    }
}

/// Writes all `parts` in as few calls as the socket takes.
pub(super) fn write_parts(stream: &mut UnixStream, parts: &[&[u8]]) -> std::io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut left = slices.as_mut_slice();
    // Empty ones at the front go.
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

/// Flags and length of `VALUE key flags length`.
fn head_of_value(line: &[u8]) -> Option<(u32, usize)> {
    let mut words = std::str::from_utf8(line).ok()?.strip_prefix("VALUE ")?.split(' ').skip(1);
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_announced_with_flags_and_length() {
        assert_eq!(head_of_value(b"VALUE key 7 4096"), Some((7, 4096)));
        assert_eq!(head_of_value(b"VALUE key 7 4096 99"), Some((7, 4096)));
        for line in [&b"VALUE key x 3"[..], b"VALUE key 7", b"ERROR", b"\xff"] {
            assert_eq!(head_of_value(line), None, "{line:?}");
        }
    }

    #[test]
    fn parts_arrive_in_order_whatever_their_lengths() {
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
