//! A client of redis's own protocol (RESP 2), with pipelining.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::interrupt;

/// Period of a blocked read's or write's checks for Ctrl-C.
const POLL: Duration = Duration::from_millis(200);

/// Time without an answer after which the server is taken for hung.
const SILENCE: Duration = Duration::from_secs(60);

/// Longest line or value accepted from the server.
const MAX_REPLY_BYTES: usize = 16 << 20;

/// One reply of the server.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// A simple string, such as `OK`.
    Simple(&'a str),
    /// A number.
    Integer(i64),
    /// A value.
    Bulk(&'a [u8]),
    /// No value.
    Nil,
}

/// A connection to redis.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    /// Bytes of `input` that are already consumed.
    taken: usize,
    /// Bytes of `input` that hold data.
    filled: usize,
    output: Vec<u8>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// When no server listens at `socket`.
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to redis at {}", socket.display()))?;
        stream.set_read_timeout(Some(POLL))?;
        stream.set_write_timeout(Some(POLL))?;
        Ok(Self {
            stream,
            input: vec![0; 256 << 10],
            taken: 0,
            filled: 0,
            output: Vec::with_capacity(256 << 10),
        })
    }

    /// Adds a command to the pipeline; nothing is sent before [`Client::flush`].
    pub fn push(&mut self, parts: &[&[u8]]) {
        // Writing to a Vec cannot fail.
        let _ = write!(self.output, "*{}\r\n", parts.len());
        for part in parts {
            let _ = write!(self.output, "${}\r\n", part.len());
            self.output.extend_from_slice(part);
            self.output.extend_from_slice(b"\r\n");
        }
    }

    /// Sends the pipeline.
    ///
    /// # Errors
    /// When the server closes the connection or does not answer in time, and on an interrupt.
    pub fn flush(&mut self) -> Result<()> {
        let mut sent = 0;
        let mut quiet_since = Instant::now();
        while sent < self.output.len() {
            match self.stream.write(&self.output[sent..]) {
                Ok(0) => bail!("redis closed the connection"),
                Ok(count) => {
                    sent += count;
                    quiet_since = Instant::now();
                }
                Err(error) => endure(error, quiet_since)?,
            }
        }
        self.output.clear();
        Ok(())
    }

    /// Sends one command and returns its reply.
    ///
    /// # Errors
    /// The same as [`Client::flush`] and [`Client::reply`].
    pub fn call(&mut self, parts: &[&[u8]]) -> Result<Reply<'_>> {
        self.push(parts);
        self.flush()?;
        self.reply()
    }

    /// Returns the next reply.
    ///
    /// # Errors
    /// When the server reports an error, closes the connection, does not answer in time or does not
    /// speak RESP; on an interrupt.
    pub fn reply(&mut self) -> Result<Reply<'_>> {
        loop {
            match parse(&self.input[self.taken..self.filled])? {
                Some(parsed) => {
                    let start = self.taken;
                    self.taken += parsed.consumed;
                    // Parsing the same bytes twice satisfies the borrow checker and costs a few
                    // nanoseconds.
                    return view(&self.input[start..self.taken], &parsed);
                }
                None => self.receive()?,
            }
        }
    }

    fn receive(&mut self) -> Result<()> {
        if self.taken > 0 {
            self.input.copy_within(self.taken..self.filled, 0);
            self.filled -= self.taken;
            self.taken = 0;
        }
        if self.filled == self.input.len() {
            if self.filled >= MAX_REPLY_BYTES {
                bail!("redis sent a reply of more than {MAX_REPLY_BYTES} bytes");
            }
            self.input.resize(self.filled * 2, 0);
        }
        let quiet_since = Instant::now();
        loop {
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => bail!("redis closed the connection"),
                Ok(count) => {
                    self.filled += count;
                    return Ok(());
                }
                Err(error) => endure(error, quiet_since)?,
            }
        }
    }
}

/// Continues to wait after a time-out of the socket, unless the time is up or an interrupt came.
fn endure(error: std::io::Error, quiet_since: Instant) -> Result<()> {
    if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
    {
        return Err(error).context("the connection to redis broke");
    }
    interrupt::check()?;
    if quiet_since.elapsed() > SILENCE {
        bail!("redis has not answered for {} s", SILENCE.as_secs());
    }
    Ok(())
}

/// Position of a complete reply.
#[derive(Debug, PartialEq, Eq)]
struct Parsed {
    consumed: usize,
    kind: u8,
    /// Start and end of the reply's content, from the reply's first byte.
    content: (usize, usize),
    nil: bool,
}

/// Finds one reply at the start of `bytes`, or `None` if it is incomplete.
fn parse(bytes: &[u8]) -> Result<Option<Parsed>> {
    let Some(line_end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return Ok(None);
    };
    let (kind, line) = (bytes[0], &bytes[1.min(line_end)..line_end]);
    let after_line = line_end + 2;
    match kind {
        b'+' | b':' => {
            Ok(Some(Parsed { consumed: after_line, kind, content: (1, line_end), nil: false }))
        }
        b'-' => bail!("redis refused: {}", String::from_utf8_lossy(line)),
        b'$' => {
            let length = number(line)?;
            if length < 0 {
                return Ok(Some(Parsed { consumed: after_line, kind, content: (0, 0), nil: true }));
            }
            let length = usize::try_from(length).context("a value's length overflows")?;
            if length > MAX_REPLY_BYTES {
                bail!("redis announced a value of {length} bytes");
            }
            let end = after_line + length;
            Ok((bytes.len() >= end + 2).then_some(Parsed {
                consumed: end + 2,
                kind,
                content: (after_line, end),
                nil: false,
            }))
        }
        other => bail!("redis sent a reply of unknown kind {:?}", char::from(other)),
    }
}

fn view<'a>(bytes: &'a [u8], parsed: &Parsed) -> Result<Reply<'a>> {
    let content = &bytes[parsed.content.0..parsed.content.1];
    Ok(match parsed.kind {
        _ if parsed.nil => Reply::Nil,
        b'$' => Reply::Bulk(content),
        b':' => Reply::Integer(number(content)?),
        _ => Reply::Simple(std::str::from_utf8(content).context("redis sent broken text")?),
    })
}

fn number(digits: &[u8]) -> Result<i64> {
    std::str::from_utf8(digits)
        .ok()
        .and_then(|text| text.parse().ok())
        .with_context(|| format!("redis sent a bad number: {:?}", String::from_utf8_lossy(digits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(bytes: &[u8]) -> Reply<'_> {
        let parsed = parse(bytes).unwrap().expect("a complete reply");
        assert_eq!(parsed.consumed, bytes.len());
        view(bytes, &parsed).unwrap()
    }

    #[test]
    fn all_reply_kinds_are_parsed() {
        assert_eq!(one(b"+OK\r\n"), Reply::Simple("OK"));
        assert_eq!(one(b":-17\r\n"), Reply::Integer(-17));
        assert_eq!(one(b"$-1\r\n"), Reply::Nil);
        assert_eq!(one(b"$0\r\n\r\n"), Reply::Bulk(b""));
        assert_eq!(one(b"$4\r\na\r\nb\r\n"), Reply::Bulk(b"a\r\nb"));
    }

    #[test]
    fn incomplete_reply_is_none() {
        for whole in [&b"+OK\r\n"[..], b":12\r\n", b"$5\r\nhello\r\n", b"$-1\r\n"] {
            for length in 0..whole.len() {
                assert_eq!(parse(&whole[..length]).unwrap(), None, "{length} of {whole:?}");
            }
        }
    }

    #[test]
    fn invalid_replies_are_errors() {
        for bytes in
            [&b"-OOM no\r\n"[..], b"?\r\n", b"\r\n", b"$x\r\n", b"$99999999999999\r\n", b"$\r\n"]
        {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn pipeline_keeps_order() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let wanted = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*1\r\n$4\r\nPING\r\n";
            let mut got = vec![0; wanted.len()];
            stream.read_exact(&mut got).unwrap();
            assert_eq!(got, wanted);
            for byte in b"$3\r\nxyz\r\n+PONG\r\n" {
                stream.write_all(&[*byte]).unwrap();
            }
        });
        let mut client = Client::connect(&socket).unwrap();
        client.push(&[b"GET", b"a"]);
        client.push(&[b"PING"]);
        client.flush().unwrap();
        assert_eq!(client.reply().unwrap(), Reply::Bulk(b"xyz"));
        assert_eq!(client.reply().unwrap(), Reply::Simple("PONG"));
        server.join().unwrap();
        assert!(client.reply().unwrap_err().to_string().contains("closed"));
    }
}
