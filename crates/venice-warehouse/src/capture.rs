//! Captures of one link, as IPv4 packets for Wireshark.
//!
//! Host *n* has the address 10.x.y.z with x·65536 + y·256 + z = n. A packet has its headers alone: its
//! content is a count of bytes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use venice_simkernel::pcapng;
use venice_tcp::{Flags, Segment, WINDOW_SCALE};

use crate::packet::{Body, Ecn, Host, Packet};
use crate::records::Drop;
use crate::topology::{Peer, Topology};

/// Packets of a capture; later ones are left out.
pub const MOST_PACKETS: usize = 2_000_000;
/// The port of a connection's server, memcached's, and of the first socket of datagrams of a host.
const SERVER_PORT: u32 = 11_211;
/// The port of a connection's client is this and its socket.
const CLIENT_PORT: u32 = 32_768;
/// Protocol numbers (IANA).
const TCP: u8 = 6;
const UDP: u8 = 17;

/// One end of a link: `host:3` or `switch:2.31`, a switch with its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkEnd {
    /// The network card of a host.
    Host(Host),
    /// A port of a switch.
    Port {
        /// The switch.
        switch: u32,
        /// The port.
        port: u16,
    },
}

/// A text that names no end of a link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no link, for example host:3 or switch:2.31")]
pub struct BadLink(String);

impl FromStr for LinkEnd {
    type Err = BadLink;

    fn from_str(text: &str) -> Result<Self, BadLink> {
        let bad = || BadLink(text.into());
        let (kind, number) = text.split_once(':').ok_or_else(bad)?;
        match kind {
            "host" => number.parse().map(Self::Host).map_err(|_| bad()),
            "switch" => {
                let (switch, port) = number.split_once('.').ok_or_else(bad)?;
                let switch = switch.parse().map_err(|_| bad())?;
                Ok(Self::Port { switch, port: port.parse().map_err(|_| bad())? })
            }
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => write!(f, "host:{host}"),
            Self::Port { switch, port } => write!(f, "switch:{switch}.{port}"),
        }
    }
}

impl LinkEnd {
    /// Returns the other end; `None` if there is no such end, or nothing at the other.
    pub fn peer(self, topology: &Topology) -> Option<Self> {
        let peer = match self {
            Self::Host(host) if host < topology.hosts() => topology.host_link(host).peer,
            Self::Host(_) => return None,
            Self::Port { switch, port } => {
                topology.switches().get(switch as usize)?.ports.get(usize::from(port))?.peer
            }
        };
        match peer {
            Peer::Host(host) => Some(Self::Host(host)),
            Peer::Switch { switch, port } => Some(Self::Port { switch, port }),
            Peer::Unconnected => None,
        }
    }
}

/// The packets of a link in one part of the world.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Capture {
    ends: [LinkEnd; 2],
    packets: Vec<Captured>,
}

/// A packet on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    /// Its first bit leaves, in picoseconds.
    pub at: u64,
    packet: Packet,
    /// It is lost before it leaves.
    dropped: Option<Drop>,
}

impl Capture {
    /// Captures the link between two ends.
    pub fn new(ends: [LinkEnd; 2]) -> Self {
        Self { ends, packets: Vec::new() }
    }

    /// Returns a capture of the same link.
    pub(crate) fn emptied(&self) -> Self {
        Self::new(self.ends)
    }

    /// Adds the packets that another part has captured.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.packets.extend(&other.packets);
    }

    /// Notes a packet that leaves an end, or is lost before.
    pub fn note(&mut self, from: LinkEnd, at: u64, packet: &Packet, dropped: Option<Drop>) {
        if self.ends.contains(&from) && self.packets.len() < MOST_PACKETS {
            self.packets.push(Captured { at, packet: *packet, dropped });
        }
    }

    /// Returns the packets so far.
    pub fn packets(&self) -> &[Captured] {
        &self.packets
    }
}

impl Captured {
    /// Returns its place among all, which depends on no partition.
    pub fn order(&self) -> (u64, u64) {
        (self.at, self.packet.digest())
    }

    /// Returns its block in a pcapng file.
    pub fn block(&self) -> Vec<u8> {
        let remark = self.dropped.map(|cause| format!("lost: {}", cause.name()));
        let (bytes, len) = headers(&self.packet);
        pcapng::packet(self.at / 1000, &bytes, len, remark.as_deref())
    }
}

/// Returns the headers of a packet, and its length with its content.
fn headers(packet: &Packet) -> (Vec<u8>, u32) {
    let ports = ports(packet).map(|port| (port as u16).to_be_bytes()).concat();
    let (protocol, header, content) = match &packet.body {
        Body::Udp(datagram) => {
            let len = (8 + datagram.bytes).min(u16::MAX.into()) as u16;
            let header = [&ports[..], &len.to_be_bytes(), &[0, 0]].concat();
            (UDP, header, datagram.bytes)
        }
        Body::Tcp(segment) => (TCP, tcp_header(&ports, segment), segment.len),
    };
    let len = 20 + header.len() as u32 + content;
    let service = match packet.ecn {
        Ecn::NotCapable => 0,
        Ecn::Capable => 2,
        Ecn::Marked => 3,
    };
    let (from, to) = (address(packet.from.host), address(packet.to.host));
    let ip_len = len.min(u16::MAX.into()) as u16;
    let ip = pcapng::ipv4(from, to, protocol, service, ip_len);
    ([&ip[..], &header].concat(), len)
}

/// Returns the ports of the sender and the receiver.
fn ports(packet: &Packet) -> [u32; 2] {
    let ends = [packet.from.port, packet.to.port];
    match packet.body {
        Body::Udp(_) => ends.map(|socket| SERVER_PORT + socket),
        Body::Tcp(_) if packet.is_servers => [SERVER_PORT, CLIENT_PORT + ends[1]],
        Body::Tcp(_) => [CLIENT_PORT + ends[0], SERVER_PORT],
    }
}

fn tcp_header(ports: &[u8], segment: &Segment) -> Vec<u8> {
    let options = segment.options();
    let words = (20 + options.len() as u16) / 4;
    let flags = words << 12 | segment.flags.0 & 0xff;
    // A SYN's own window is not scaled (RFC 7323, section 2.2).
    let is_syn = segment.flags.has(Flags::SYN);
    let scale = if is_syn { 0 } else { WINDOW_SCALE };
    let window = (segment.window >> scale).min(u16::MAX.into()) as u16;
    [
        ports,
        &segment.seq.to_be_bytes(),
        &segment.ack.to_be_bytes(),
        &flags.to_be_bytes(),
        &window.to_be_bytes(),
        &[0; 4],
        &options,
    ]
    .concat()
}

fn address(host: Host) -> [u8; 4] {
    let [_, high, middle, low] = host.to_be_bytes();
    [10, high, middle, low]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Datagram, Endpoint, LISTENING};

    #[test]
    fn headers_are_complete() {
        let client = Endpoint { host: 258, port: 4 };
        let server = Endpoint { host: 3, port: LISTENING };
        let udp = Body::Udp(Datagram { bytes: 100, message: 7 });
        let (bytes, len) =
            headers(&Packet::new(client, Endpoint { port: 0, ..server }, Ecn::NotCapable, udp));
        assert_eq!((bytes.len(), len), (28, 128));
        assert_eq!(bytes[12..20], [10, 0, 1, 2, 10, 0, 0, 3]);
        assert_eq!(bytes[20..26], [0x2b, 0xcf, 0x2b, 0xcb, 0, 108]);
        let segment = Segment { len: 1000, window: 1 << 20, ..Segment::default() };
        let packet = Packet::new(client, server, Ecn::Marked, Body::Tcp(segment));
        let (bytes, len) = headers(&packet);
        assert_eq!((bytes.len(), len, bytes[1]), (40, 1040, 3));
        assert_eq!(bytes[20..24], [0x80, 4, 0x2b, 0xcb]);
        assert_eq!(bytes[34..36], [0x20, 0]);
        let back = Packet {
            is_servers: true,
            ..Packet::new(server, client, Ecn::Marked, Body::Tcp(segment))
        };
        assert_eq!(headers(&back).0[20..24], [0x2b, 0xcb, 0x80, 4]);
    }

    #[test]
    fn links_are_parsed() {
        for text in ["host:3", "switch:2.31"] {
            assert_eq!(text.parse::<LinkEnd>().unwrap().to_string(), text);
        }
        for text in ["", "host", "host:x", "switch:2", "switch:2.", "rack:1", "host:-1"] {
            assert!(text.parse::<LinkEnd>().is_err(), "{text}");
        }
    }
}
