//! Packets, in a slab: events and queues have their numbers.

use serde::{Deserialize, Serialize};
use venice_simkernel::random::mix;
use venice_simkernel::units::BitRate;
use venice_tcp::Segment;

use crate::journey::JourneyId;
use crate::slab::Slab;

/// The number of a host, from 0 in the whole warehouse.
pub type Host = u32;

/// The number of a packet in its part of the world.
pub type PacketId = u32;

/// Explicit congestion notification of a packet (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ecn {
    /// Its transport does not react to marks.
    #[default]
    NotCapable,
    /// A switch may mark it.
    Capable,
    /// A switch has marked it.
    Marked,
}

/// One end of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Endpoint {
    /// The host.
    pub host: Host,
    /// Its socket, or with [`LISTENING`] its port.
    pub port: u32,
}

/// Set in the port of a packet that opens a connection: the rest is the number of a listening socket.
pub const LISTENING: u32 = 1 << 31;

/// Bytes of Ethernet around a packet: header, checksum, preamble and gap (IEEE 802.3).
pub const ETHERNET_BYTES: u32 = 14 + 4 + 8 + 12;
/// Least bytes of a frame on the wire, with preamble and gap.
const LEAST_BYTES: u32 = 64 + 8 + 12;
/// Bytes of the headers of IPv4 and UDP.
pub const UDP_BYTES: u32 = 20 + 8;
/// Bytes of the header of IPv4.
pub const IP_BYTES: u32 = 20;

/// The part of a datagram that a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datagram {
    /// Bytes of the whole datagram.
    pub bytes: u32,
    /// Its content, for the application.
    pub message: u64,
}

/// Content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// A datagram that fits into one packet.
    Udp(Datagram),
    /// A segment of a connection.
    Tcp(Segment),
}

/// A packet on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// Sender.
    pub from: Endpoint,
    /// Receiver.
    pub to: Endpoint,
    /// Bytes on the wire, with preamble and gap between frames: buffers count them alike.
    pub bytes: u32,
    /// Congestion notification.
    pub ecn: Ecn,
    /// Switches passed.
    pub hops: u8,
    /// A hash of its flow, for the choice among paths of equal length.
    pub flow: u32,
    /// The rate at which its bits come to the next switch.
    pub rate: BitRate,
    /// It comes from the end of a connection that was listening.
    pub is_servers: bool,
    /// The request that it carries the end of.
    pub journey: Option<JourneyId>,
    /// Content.
    pub body: Body,
}

impl Packet {
    /// Makes a packet.
    pub fn new(from: Endpoint, to: Endpoint, ecn: Ecn, body: Body) -> Self {
        let bytes = (body.ip_bytes() + ETHERNET_BYTES).max(LEAST_BYTES);
        let ends = u64::from(from.host) << 32 | u64::from(to.host);
        let ports = u64::from(from.port) << 32 | u64::from(to.port);
        let flow = mix(ends ^ mix(ports)) as u32;
        Self {
            from,
            to,
            bytes,
            ecn,
            hops: 0,
            flow,
            rate: BitRate(0),
            is_servers: false,
            journey: None,
            body,
        }
    }

    /// Returns a number for the trace of a run.
    pub fn digest(&self) -> u64 {
        let ends = u64::from(self.from.host) << 32 | u64::from(self.to.host);
        let rest = u64::from(self.bytes) << 8 | u64::from(self.hops);
        mix(ends ^ rest.rotate_left(17) ^ self.body.digest())
    }
}

impl Body {
    /// Bytes of the packet with the header of IP.
    fn ip_bytes(&self) -> u32 {
        match self {
            Self::Udp(datagram) => datagram.bytes + UDP_BYTES,
            Self::Tcp(segment) => segment.len + segment.header_bytes() + IP_BYTES,
        }
    }

    fn digest(&self) -> u64 {
        match self {
            Self::Udp(datagram) => datagram.message ^ u64::from(datagram.bytes) << 40,
            Self::Tcp(segment) => {
                let ends = u64::from(segment.seq) << 32 | u64::from(segment.ack);
                ends ^ u64::from(segment.len) << 17 ^ u64::from(segment.flags.0) << 3
            }
        }
    }
}

/// The packets of a part of the world, by number.
pub type Packets = Slab<Packet>;
