//! What the holder of grants and the client drivers in its programs tell each other when a device
//! moves to another donor: lines of JSON on a stream socket, whose path is in [`SOCKET`].
//!
//! The holder has got another grant of an equal device, and asks every driver to go on with it. It
//! releases the former grant once all have. A driver that cannot stays where it is, and is asked
//! again. `docs/reference/wire.md` has the messages.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use venice_rack::types::ServiceAccess;
use venice_wire::GrantId;

/// Variable with the socket's path in the environment of a program that holds grants.
pub const SOCKET: &str = "VENICE_GRANT_MOVES";
/// Longest line in bytes.
pub const MAX_LINE_BYTES: u64 = 64 << 10;

/// A move of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Grant that the program began with.
    pub grant: GrantId,
    /// Way to the device that takes its place.
    pub to: ServiceAccess,
}

/// Message to a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToDriver {
    /// The first one: moves that are over, the latest of each grant. A program that starts late
    /// finds its devices there.
    Hello {
        /// The moves.
        moved: Vec<Move>,
    },
    /// Asks the driver to move. It is asked again until it has.
    Move(Move),
}

/// Message of a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromDriver {
    /// It uses the device of another grant now, or never used this one.
    Moved {
        /// Grant that the program began with.
        grant: GrantId,
    },
    /// The device stays for now.
    Kept {
        /// Grant that the program began with.
        grant: GrantId,
        /// The reason, for people.
        why: String,
    },
}

/// Writes a message.
///
/// # Errors
/// The errors of the socket.
pub fn send(mut socket: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    socket.write_all(&line)
}

/// Reader of the messages that come by a socket.
#[derive(Debug)]
pub struct Lines {
    lines: BufReader<UnixStream>,
}

impl Lines {
    /// Reads from a socket.
    pub fn new(socket: UnixStream) -> Self {
        Self { lines: BufReader::new(socket) }
    }

    /// Returns the next message, `None` at the end; waits at most `within`, `None`: for ever.
    ///
    /// # Errors
    /// The errors of the socket; [`io::ErrorKind::InvalidData`] for what is no such message.
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        within: Option<Duration>,
    ) -> io::Result<Option<T>> {
        self.lines.get_ref().set_read_timeout(within)?;
        let mut line = Vec::new();
        let limited = &mut io::Read::take(&mut self.lines, MAX_LINE_BYTES);
        limited.read_until(b'\n', &mut line)?;
        match line.last() {
            None => Ok(None),
            Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
            Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let access = ServiceAccess {
            grant: GrantId(9),
            service: "opencl".into(),
            secret: [7; 32],
            endpoints: Vec::new(),
        };
        let step = Move { grant: GrantId(3), to: access };
        let sent = [ToDriver::Hello { moved: vec![step.clone()] }, ToDriver::Move(step)];
        sent.iter().for_each(|message| send(&ours, message).unwrap());
        drop(ours);
        let mut lines = Lines::new(theirs);
        for message in sent {
            assert_eq!(lines.receive(None).unwrap(), Some(message));
        }
        assert_eq!(lines.receive::<ToDriver>(None).unwrap(), None);
    }

    #[test]
    fn nonsense_is_an_error() {
        for text in [&b"{}\n"[..], b"[1,2\n", b"\xff\n", b"{\"moved\":{\"grant\":1}}", b"\n"] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            (&ours).write_all(text).unwrap();
            drop(ours);
            assert!(Lines::new(theirs).receive::<FromDriver>(None).is_err(), "{text:?}");
        }
    }

    #[test]
    fn endless_line_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            // The reader leaves before the end.
            let _ = (&ours).write_all(&vec![b' '; 2 * MAX_LINE_BYTES as usize]);
        });
        assert!(Lines::new(theirs).receive::<FromDriver>(None).is_err());
        writer.join().unwrap();
    }
}
