//! Headers of a datagram on the wire: Ethernet, IPv4 without options, UDP.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Length of all three headers.
pub(super) const HEADER_BYTES: usize = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
pub(super) const UDP_BYTES: usize = 8;
const TIME_TO_LIVE: u8 = 64;
const UDP: u8 = 17;

/// Headers as they lie in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headers(pub(super) [u8; HEADER_BYTES]);

impl Headers {
    /// Returns the headers of a received frame, and the length of the payload behind them. `None`
    /// unless it is one that the program at the interface lets through, whole and with a correct
    /// checksum.
    pub(super) fn parse(frame: &[u8]) -> Option<(Self, usize)> {
        let headers = Self(*frame.first_chunk()?);
        let (ip_bytes, udp_bytes) = (usize::from(headers.half(16)), usize::from(headers.half(38)));
        let is_whole = udp_bytes >= UDP_BYTES
            && ip_bytes == IPV4_BYTES + udp_bytes
            && frame.len() >= ETHERNET_BYTES + ip_bytes;
        let is_right = headers.half(12) == 0x0800 && headers.0[14] == 0x45 && headers.0[23] == UDP;
        (is_whole && is_right && headers.sum() == 0xffff)
            .then_some((headers, udp_bytes - UDP_BYTES))
    }

    /// Returns the sender.
    pub(super) fn source(&self) -> SocketAddrV4 {
        let ip = Ipv4Addr::from(*self.0[26..].first_chunk().expect("four bytes"));
        SocketAddrV4::new(ip, self.half(34))
    }

    /// Returns the headers of an answer to the sender; lengths and checksum are missing.
    pub(super) fn reversed(&self) -> Self {
        let mut reversed = *self;
        let (to, from) = (&mut reversed.0, &self.0);
        to[..6].copy_from_slice(&from[6..12]);
        to[6..12].copy_from_slice(&from[..6]);
        to[15..26].fill(0);
        (to[22], to[23]) = (TIME_TO_LIVE, UDP);
        to[26..30].copy_from_slice(&from[30..34]);
        to[30..34].copy_from_slice(&from[26..30]);
        to[34..36].copy_from_slice(&from[36..38]);
        to[36..38].copy_from_slice(&from[34..36]);
        to[38..42].fill(0);
        reversed
    }

    /// Fills in the fields that depend on the payload's length. `number` distinguishes the packet
    /// from others of its sender in case a router fragments it. UDP's checksum is left out, as IPv4
    /// allows: the seal or the fabric's checksum covers the payload, and its absence marks a
    /// datagram sent by AF_XDP.
    pub(super) fn complete(&mut self, payload_bytes: usize, number: u16) {
        let udp_bytes = (UDP_BYTES + payload_bytes) as u16;
        self.0[16..18].copy_from_slice(&(IPV4_BYTES as u16 + udp_bytes).to_be_bytes());
        self.0[18..20].copy_from_slice(&number.to_be_bytes());
        self.0[24..26].fill(0);
        let sum = !self.sum();
        self.0[24..26].copy_from_slice(&sum.to_be_bytes());
        self.0[38..40].copy_from_slice(&udp_bytes.to_be_bytes());
    }

    /// True if it was sent by AF_XDP: the kernel gives all its own datagrams a checksum other than
    /// zero.
    pub(super) fn is_by_xdp(&self) -> bool {
        self.half(40) == 0
    }

    /// True if [`Headers::reversed`] returns `back`, except for lengths and checksum.
    pub(super) fn reversed_is(&self, back: &Self) -> bool {
        let (here, back) = (&self.0, &back.0);
        here[..6] == back[6..12]
            && here[6..12] == back[..6]
            && here[26..30] == back[30..34]
            && here[30..34] == back[26..30]
            && here[34..36] == back[36..38]
            && here[36..38] == back[34..36]
    }

    fn half(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    /// Returns the ones' complement sum of the IPv4 header (RFC 791).
    fn sum(&self) -> u16 {
        let words = (ETHERNET_BYTES..ETHERNET_BYTES + IPV4_BYTES).step_by(2);
        let sum: u32 = words.map(|at| u32::from(self.half(at))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        ((folded & 0xffff) + (folded >> 16)) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(payload: &[u8]) -> Vec<u8> {
        let mut headers = Headers([0; HEADER_BYTES]);
        headers.0[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
        (headers.0[14], headers.0[22], headers.0[23]) = (0x45, 63, UDP);
        headers.0[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
        headers.0[34..38].copy_from_slice(&[0x1f, 0x40, 0x1f, 0x41]);
        headers.complete(payload.len(), 7);
        [&headers.0[..], payload].concat()
    }

    #[test]
    fn answer_reverses_request_headers() {
        let mut frame = request(b"request");
        // A short frame is padded.
        frame.extend([0; 11]);
        let (headers, len) = Headers::parse(&frame).unwrap();
        assert_eq!(&frame[HEADER_BYTES..][..len], b"request");
        assert_eq!(headers.source(), "10.0.0.2:8000".parse().unwrap());
        let mut answer = headers.reversed();
        answer.complete(6, 1);
        let frame = [&answer.0[..], b"answer"].concat();
        assert_eq!(Headers::parse(&frame).unwrap().0.source(), "10.0.0.1:8001".parse().unwrap());
        assert_eq!(frame[..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        assert!(headers.reversed_is(&answer) && !headers.reversed_is(&headers));
    }

    #[test]
    fn parse_rejects_damaged_frames() {
        let frame = request(b"request");
        for len in 0..frame.len() {
            assert_eq!(Headers::parse(&frame[..len]), None, "{len}");
        }
        for at in 12..34 {
            let mut frame = frame.clone();
            frame[at] ^= 0x10;
            assert_eq!(Headers::parse(&frame), None, "byte {at}");
        }
    }
}
