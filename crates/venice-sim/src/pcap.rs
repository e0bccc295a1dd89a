//! Captures of links as pcapng files for Wireshark.
//!
//! Each frame is a UDP datagram over IPv4 with its virtual time in nanoseconds. Node *n* has the
//! address 10.86.x.y with x·256 + y = n; agents use port 7471, programs 47471, switches 7472. Lost
//! frames are included at their send time, with a comment that gives the reason; duplicates, stale
//! repeats and corrupted frames appear as they arrive.

use std::io::{self, Write};

use venice_simkernel::pcapng;

use crate::network::{Datagram, End};
use crate::rack::Tap;

/// The port that agents listen on.
pub const AGENT_PORT: u16 = 7471;
/// The port that switches speak on.
pub const HOP_PORT: u16 = 7472;
/// Port of the programs, which is drawn in a real rack.
pub const PROGRAM_PORT: u16 = 47471;

/// A capture file.
#[derive(Debug)]
pub struct Capture<W> {
    to: W,
    /// The two nodes of the link; `None`: all links.
    link: Option<(u16, u16)>,
    frames: u64,
    /// First write error.
    error: Option<io::Error>,
}

const UDP_HEADER_BYTES: usize = 8;
/// The protocol number of UDP.
const UDP: u8 = 17;

impl<W: Write> Capture<W> {
    /// Begins a capture of one link, in both directions, or of all.
    ///
    /// # Errors
    /// When the head of the file cannot be written.
    pub fn new(mut to: W, link: Option<(u16, u16)>) -> io::Result<Self> {
        let name = match link {
            Some((a, b)) => format!("link {a}-{b}"),
            None => "all links".to_string(),
        };
        to.write_all(&pcapng::head(&name))?;
        Ok(Self { to, link, frames: 0, error: None })
    }

    /// Ends the capture; returns the number of frames in it.
    ///
    /// # Errors
    /// When anything could not be written.
    pub fn finish(mut self) -> io::Result<u64> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.to.flush()?;
        Ok(self.frames)
    }

    fn concerns(&self, datagram: &Datagram) -> bool {
        self.link.is_none_or(|(a, b)| {
            (datagram.from, datagram.to) == (a, b) || (datagram.from, datagram.to) == (b, a)
        })
    }
}

impl<W: Write> Tap for Capture<W> {
    fn frame(&mut self, at_ns: u64, datagram: &Datagram, remark: Option<&str>) {
        if self.error.is_some() || !self.concerns(datagram) {
            return;
        }
        self.frames += 1;
        let bytes = encapsulate(datagram);
        let block = pcapng::packet(at_ns, &bytes, bytes.len() as u32, remark);
        self.error = self.to.write_all(&block).err();
    }
}

/// Wraps the frame into a UDP datagram over IPv4.
fn encapsulate(datagram: &Datagram) -> Vec<u8> {
    let udp_len = UDP_HEADER_BYTES + datagram.bytes.len();
    let (from, to) = (address(datagram.from), address(datagram.to));
    let mut packet = pcapng::ipv4(from, to, UDP, 0, (20 + udp_len) as u16).to_vec();
    packet.extend(port(datagram.from_end).to_be_bytes());
    packet.extend(port(datagram.to_end).to_be_bytes());
    packet.extend((udp_len as u16).to_be_bytes());
    // No checksum: the frame has its own.
    packet.extend([0; 2]);
    packet.extend(&datagram.bytes);
    packet
}

fn address(node: u16) -> [u8; 4] {
    let [high, low] = node.to_be_bytes();
    [10, 86, high, low]
}

fn port(end: End) -> u16 {
    match end {
        End::Recipient => PROGRAM_PORT,
        End::Donor => AGENT_PORT,
        End::Switch => HOP_PORT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_link_is_captured() {
        let mut file = Vec::new();
        let mut capture = Capture::new(&mut file, Some((0, 1))).unwrap();
        let datagram = Datagram {
            from: 0,
            from_end: End::Recipient,
            to: 1,
            to_end: End::Donor,
            bytes: vec![7; 67],
        };
        capture.frame(1_234_567_890_123, &datagram, Some("lost"));
        capture.frame(1_234_567_890_124, &Datagram { to: 2, ..datagram }, None);
        assert_eq!(capture.finish().unwrap(), 1, "the other link is not captured");
        let addresses = [10, 86, 0, 0, 10, 86, 0, 1];
        assert!(file.windows(8).any(|bytes| bytes == addresses));
    }
}
