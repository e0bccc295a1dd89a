//! The network header: carries a frame through switches to a node that is not a neighbour.

use crate::route::{MAX_ROUTE_HOPS, SourceRoute, SwitchPort};
use crate::{
    MAX_FRAME_BYTES, NodeId, PACKET_VERSION, SEAL_OVERHEAD_BYTES, WireError, bytes::get, bytes::put,
};

/// First two bytes of every packet, read as a little-endian `u16`: the letters `VP`.
pub const PACKET_MAGIC: u16 = u16::from_le_bytes(*b"VP");
/// Length of a packet's header without the source route.
pub const PACKET_HEADER_BYTES: usize = 28;
/// The most payload one packet carries: one frame, sealed or not.
pub const MAX_PACKET_PAYLOAD_BYTES: usize = MAX_FRAME_BYTES + SEAL_OVERHEAD_BYTES;
/// The longest packet: the header, the longest route, the longest frame, sealed.
pub const MAX_PACKET_BYTES: usize =
    PACKET_HEADER_BYTES + 2 * MAX_ROUTE_HOPS + MAX_PACKET_PAYLOAD_BYTES;

/// Offset of each field in bytes. `docs/reference/wire.md` describes the same layout.
mod offset {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 2;
    pub const FLAGS: usize = 3;
    pub const HOP_LIMIT: usize = 4;
    pub const ROUTE_LEN: usize = 5;
    pub const ROUTE_NEXT: usize = 6;
    pub const SOURCE: usize = 8;
    pub const DESTINATION: usize = 12;
    pub const SOURCE_ENDPOINT: usize = 16;
    pub const DESTINATION_ENDPOINT: usize = 20;
    pub const PAYLOAD_LEN: usize = 24;
}

/// A party at a node: its agent, or one of the programs for which it relays packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(pub u32);

impl Endpoint {
    /// The node's agent, which answers accesses to the memory the node lends.
    pub const AGENT: Self = Self(0);
}

/// The address of one end of a packet's path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketAddr {
    /// The node.
    pub node: NodeId,
    /// The endpoint at that node.
    pub endpoint: Endpoint,
}

/// All fields of a packet header, as a plain struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRepr {
    /// Flag bits. This version names none: they are sent as zero and ignored.
    pub flags: u8,
    /// Switches that may still forward the packet; a switch that receives it with zero drops it.
    pub hop_limit: u8,
    /// The sender.
    pub source: PacketAddr,
    /// The receiver.
    pub destination: PacketAddr,
    /// The route chosen by the sender, if any.
    pub route: SourceRoute,
    /// Hops of the route already done.
    pub route_next: u8,
}

impl PacketRepr {
    /// Returns a packet header that leaves the route to the switches.
    pub const fn new(source: PacketAddr, destination: PacketAddr) -> Self {
        let (route, hop_limit) = (SourceRoute::EMPTY, u8::MAX);
        Self { flags: 0, hop_limit, source, destination, route, route_next: 0 }
    }

    /// Returns the length of the header in bytes, the route included.
    pub fn header_len(&self) -> usize {
        PACKET_HEADER_BYTES + 2 * self.route.ports().len()
    }

    /// Writes header and payload (one frame, sealed or not) to the front of `buf`; returns the
    /// length of the packet in bytes.
    ///
    /// # Errors
    /// [`WireError::PayloadTooLong`] over [`MAX_PACKET_PAYLOAD_BYTES`],
    /// [`WireError::BufferTooSmall`] when `buf` cannot hold the packet, [`WireError::BadRoute`]
    /// when `route_next` lies past the route.
    pub fn emit(&self, payload: &[u8], buf: &mut [u8]) -> Result<usize, WireError> {
        let header_len = self.emit_header(payload.len(), buf)?;
        buf[header_len..header_len + payload.len()].copy_from_slice(payload);
        Ok(header_len + payload.len())
    }

    /// Like [`PacketRepr::emit`] for a payload of `payload_len` bytes that the caller places behind
    /// the header; returns the length of the header alone.
    ///
    /// # Errors
    /// Like [`PacketRepr::emit`].
    pub fn emit_header(&self, payload_len: usize, buf: &mut [u8]) -> Result<usize, WireError> {
        if payload_len > MAX_PACKET_PAYLOAD_BYTES {
            return Err(WireError::PayloadTooLong(payload_len));
        }
        let ports = self.route.ports();
        if usize::from(self.route_next) > ports.len() {
            return Err(WireError::BadRoute { len: ports.len() as u8, next: self.route_next });
        }
        let (len, needed) = (buf.len(), self.header_len() + payload_len);
        let packet = buf.get_mut(..needed).ok_or(WireError::BufferTooSmall { len, needed })?;
        packet[..PACKET_HEADER_BYTES].fill(0);
        put(packet, offset::MAGIC, PACKET_MAGIC.to_le_bytes());
        put(packet, offset::VERSION, [PACKET_VERSION]);
        put(packet, offset::FLAGS, [self.flags]);
        put(packet, offset::HOP_LIMIT, [self.hop_limit]);
        put(packet, offset::ROUTE_LEN, [ports.len() as u8]);
        put(packet, offset::ROUTE_NEXT, [self.route_next]);
        put(packet, offset::SOURCE, self.source.node.0.to_le_bytes());
        put(packet, offset::DESTINATION, self.destination.node.0.to_le_bytes());
        put(packet, offset::SOURCE_ENDPOINT, self.source.endpoint.0.to_le_bytes());
        put(packet, offset::DESTINATION_ENDPOINT, self.destination.endpoint.0.to_le_bytes());
        put(packet, offset::PAYLOAD_LEN, (payload_len as u16).to_le_bytes());
        for (hop, port) in ports.iter().enumerate() {
            put(packet, PACKET_HEADER_BYTES + 2 * hop, port.0.to_le_bytes());
        }
        Ok(self.header_len())
    }
}

/// A packet that has passed every check of the format. Reading a field cannot fail.
///
/// A packet has no checksum: a hop's header covers it between neighbours, and the frame inside
/// carries its own from end to end.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks `bytes`, one whole packet, and wraps them.
    ///
    /// # Errors
    /// Returns the first way in which the bytes are not a packet of this version. No input panics.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let len = bytes.len();
        if len < PACKET_HEADER_BYTES {
            return Err(WireError::Truncated { len, needed: PACKET_HEADER_BYTES });
        }
        let magic = u16::from_le_bytes(get(bytes, offset::MAGIC));
        if magic != PACKET_MAGIC {
            return Err(WireError::BadMagic(magic));
        }
        if bytes[offset::VERSION] != PACKET_VERSION {
            return Err(WireError::UnsupportedVersion(bytes[offset::VERSION]));
        }
        let (route_len, next) = (bytes[offset::ROUTE_LEN], bytes[offset::ROUTE_NEXT]);
        if usize::from(route_len) > MAX_ROUTE_HOPS || next > route_len {
            return Err(WireError::BadRoute { len: route_len, next });
        }
        let payload_len = usize::from(u16::from_le_bytes(get(bytes, offset::PAYLOAD_LEN)));
        if payload_len > MAX_PACKET_PAYLOAD_BYTES {
            return Err(WireError::PayloadTooLong(payload_len));
        }
        let needed = PACKET_HEADER_BYTES + 2 * usize::from(route_len) + payload_len;
        match len.cmp(&needed) {
            std::cmp::Ordering::Less => Err(WireError::Truncated { len, needed }),
            std::cmp::Ordering::Greater => Err(WireError::TrailingBytes { len, needed }),
            std::cmp::Ordering::Equal => Ok(Self { bytes }),
        }
    }

    /// Returns the whole header as a plain struct.
    pub fn repr(&self) -> PacketRepr {
        let mut route = SourceRoute::EMPTY;
        for hop in 0..self.route_len() {
            let has_room = route.push(self.route_port(hop));
            assert!(has_room, "the length was checked");
        }
        PacketRepr {
            flags: self.flags(),
            hop_limit: self.hop_limit(),
            source: self.source(),
            destination: self.destination(),
            route,
            route_next: self.route_next(),
        }
    }

    /// Returns the packet as it was received.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the payload: one frame, sealed or not.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[PACKET_HEADER_BYTES + 2 * usize::from(self.route_len())..]
    }

    /// See [`PacketRepr::flags`].
    pub fn flags(&self) -> u8 {
        self.bytes[offset::FLAGS]
    }

    /// See [`PacketRepr::hop_limit`].
    pub fn hop_limit(&self) -> u8 {
        self.bytes[offset::HOP_LIMIT]
    }

    /// Returns the hops of the source route; 0 without one.
    pub fn route_len(&self) -> u8 {
        self.bytes[offset::ROUTE_LEN]
    }

    /// See [`PacketRepr::route_next`].
    pub fn route_next(&self) -> u8 {
        self.bytes[offset::ROUTE_NEXT]
    }

    /// Returns the port by which the route leaves the present switch; `None` at its end.
    pub fn next_port(&self) -> Option<SwitchPort> {
        (self.route_next() < self.route_len()).then(|| self.route_port(self.route_next()))
    }

    /// See [`PacketRepr::source`].
    pub fn source(&self) -> PacketAddr {
        self.addr_at(offset::SOURCE, offset::SOURCE_ENDPOINT)
    }

    /// See [`PacketRepr::destination`].
    pub fn destination(&self) -> PacketAddr {
        self.addr_at(offset::DESTINATION, offset::DESTINATION_ENDPOINT)
    }

    fn route_port(&self, hop: u8) -> SwitchPort {
        let at = PACKET_HEADER_BYTES + 2 * usize::from(hop);
        SwitchPort(u16::from_le_bytes(get(self.bytes, at)))
    }

    fn addr_at(&self, node: usize, endpoint: usize) -> PacketAddr {
        PacketAddr {
            node: NodeId(u32::from_le_bytes(get(self.bytes, node))),
            endpoint: Endpoint(u32::from_le_bytes(get(self.bytes, endpoint))),
        }
    }
}

/// Records one more switch in a packet that has passed [`Packet::parse`]: lowers the hop limit by
/// one, and advances the route by one hop if there is one.
///
/// # Panics
/// Panics if the hop limit is zero, which the switch checks beforehand.
pub fn advance_packet(packet: &mut [u8]) {
    packet[offset::HOP_LIMIT] =
        packet[offset::HOP_LIMIT].checked_sub(1).expect("hop limit is checked by the switch");
    if packet[offset::ROUTE_NEXT] < packet[offset::ROUTE_LEN] {
        packet[offset::ROUTE_NEXT] += 1;
    }
}

/// Sets the source of a packet that has passed [`Packet::parse`]. A relay node's agent does so for
/// the packets of its programs: they need not know their node's number, and cannot forge another.
pub fn set_packet_source(packet: &mut [u8], source: PacketAddr) {
    put(packet, offset::SOURCE, source.node.0.to_le_bytes());
    put(packet, offset::SOURCE_ENDPOINT, source.endpoint.0.to_le_bytes());
}
