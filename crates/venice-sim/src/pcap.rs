//! Captures of links as pcapng files for Wireshark.
//!
//! Each frame is a UDP datagram over IPv4 with its virtual time in nanoseconds. Node *n* has the
//! address 10.86.x.y with x·256 + y = n; agents use port 7471, programs 47471, switches 7472. Lost
//! frames are included at their send time, with a comment that gives the reason; duplicates, stale
//! repeats and corrupted frames appear as they arrive.

use std::io::{self, Write};

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

const LINKTYPE_IPV4: u16 = 228;
const IP_HEADER_BYTES: usize = 20;
const UDP_HEADER_BYTES: usize = 8;

impl<W: Write> Capture<W> {
    /// Begins a capture of one link, in both directions, or of all.
    ///
    /// # Errors
    /// When the head of the file cannot be written.
    pub fn new(mut to: W, link: Option<(u16, u16)>) -> io::Result<Self> {
        to.write_all(&section_header())?;
        to.write_all(&interface(link))?;
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
        self.error = self.to.write_all(&packet(at_ns, datagram, remark)).err();
    }
}

fn section_header() -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(0x1a2b_3c4d_u32.to_le_bytes());
    body.extend([1, 0, 0, 0]);
    body.extend([0xff; 8]);
    option(&mut body, 4, b"venice sim");
    end_of_options(&mut body);
    block(0x0a0d_0d0a, &body)
}

fn interface(link: Option<(u16, u16)>) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(u32::from(LINKTYPE_IPV4).to_le_bytes());
    body.extend([0; 4]);
    let name = match link {
        Some((a, b)) => format!("link {a}-{b}"),
        None => "all links".to_string(),
    };
    option(&mut body, 2, name.as_bytes());
    // Times are in nanoseconds.
    option(&mut body, 9, &[9]);
    end_of_options(&mut body);
    block(1, &body)
}

fn packet(at_ns: u64, datagram: &Datagram, remark: Option<&str>) -> Vec<u8> {
    let bytes = encapsulate(datagram);
    let len = (bytes.len() as u32).to_le_bytes();
    let mut body = Vec::with_capacity(bytes.len() + 64);
    body.extend([0; 4]);
    body.extend(((at_ns >> 32) as u32).to_le_bytes());
    body.extend((at_ns as u32).to_le_bytes());
    body.extend(len);
    body.extend(len);
    body.extend(bytes);
    pad(&mut body);
    if let Some(remark) = remark {
        option(&mut body, 1, remark.as_bytes());
        end_of_options(&mut body);
    }
    block(6, &body)
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u32 + 12).to_le_bytes();
    let mut block = Vec::with_capacity(body.len() + 12);
    block.extend(kind.to_le_bytes());
    block.extend(len);
    block.extend(body);
    block.extend(len);
    block
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    pad(body);
}

fn end_of_options(body: &mut Vec<u8>) {
    body.extend([0; 4]);
}

fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Wraps the frame into a UDP datagram over IPv4.
fn encapsulate(datagram: &Datagram) -> Vec<u8> {
    let udp_len = UDP_HEADER_BYTES + datagram.bytes.len();
    let mut packet = Vec::with_capacity(IP_HEADER_BYTES + udp_len);
    packet.extend([0x45, 0]);
    packet.extend(((IP_HEADER_BYTES + udp_len) as u16).to_be_bytes());
    // No identification, do not fragment, 64 hops, UDP.
    packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet.extend(address(datagram.from));
    packet.extend(address(datagram.to));
    let checksum = ip_checksum(&packet);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
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

fn ip_checksum(header: &[u8]) -> u16 {
    let (words, _) = header.as_chunks::<2>();
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !(((folded & 0xffff) + (folded >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_repeat_their_length() {
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
        let mut rest = file.as_slice();
        let mut kinds = Vec::new();
        while !rest.is_empty() {
            let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
            let len = word(4) as usize;
            assert_eq!((len % 4, word(len - 4) as usize), (0, len));
            kinds.push(word(0));
            rest = &rest[len..];
        }
        assert_eq!(kinds, [0x0a0d_0d0a, 1, 6]);
    }

    #[test]
    fn ip_checksum_is_right() {
        // A packet with a valid checksum in place sums to ffff (RFC 1071).
        let datagram = Datagram {
            from: 3,
            from_end: End::Donor,
            to: 258,
            to_end: End::Recipient,
            bytes: vec![0; 64],
        };
        let packet = encapsulate(&datagram);
        assert_eq!(ip_checksum(&packet[..20]), 0);
        assert_eq!(packet[12..20], [10, 86, 0, 3, 10, 86, 1, 2]);
    }
}
