//! The vocabulary shared by all of Venice: identifiers, units, and the packet format.
//!
//! Nothing here does I/O, allocates or keeps state. `docs/reference/wire.md` describes the packet format
//! field by field; [`Frame`] reads it without copying, [`HeaderRepr`] writes it.
//!
//! ```
//! use venice_wire::{Frame, HeaderRepr, NodeId, Opcode, Channel, MAX_FRAME_BYTES};
//!
//! let header = HeaderRepr {
//!     address: 0x2000,
//!     access_len: 4096,
//!     ..HeaderRepr::new(Channel::Crma, Opcode::Read, NodeId(1), NodeId(2))
//! };
//! let mut datagram = [0; MAX_FRAME_BYTES];
//! let len_bytes = header.emit(&[], &mut datagram)?;
//!
//! let frame = Frame::parse(&datagram[..len_bytes])?;
//! assert_eq!(frame.repr(), header);
//! # Ok::<(), venice_wire::WireError>(())
//! ```
#![forbid(unsafe_code)]

mod byte_size;
mod bytes;
mod checksum;
mod error;
mod frame;
mod header;
mod hop;
mod ids;
mod keys;
mod opcode;
mod packet;
mod port;
mod route;
mod sealed;
mod sequence;

pub use byte_size::{ByteSize, ParseByteSizeError};
pub use checksum::Checksum;
pub use error::WireError;
pub use frame::{Frame, Integrity};
pub use header::{HeaderRepr, REPLAY_FLAG, UNCHECKED_FLAG};
pub use hop::{
    Credits, GREETING_BYTES, Greeting, HOP_HEADER_BYTES, HOP_MAGIC, HOP_REPLAY_FLAG,
    HOP_UNCHECKED_FLAG, Hop, HopKind, HopRepr, MAX_HOP_BYTES, VIRTUAL_CHANNELS,
};
pub use ids::{GrantId, GrantKey, LinkId, NodeId};
pub use keys::{KeyName, NodeSecret, SEAL_KEY_BYTES, SealKey};
pub use opcode::{Channel, NO_LINK_FREE, Opcode, Refusal};
pub use packet::{
    Endpoint, MAX_PACKET_BYTES, MAX_PACKET_PAYLOAD_BYTES, PACKET_HEADER_BYTES, PACKET_MAGIC,
    Packet, PacketAddr, PacketRepr, advance_packet, set_packet_source,
};
pub use port::{PortCapabilities, PortId, PortKind, UnknownPort};
pub use route::{MAX_ROUTE_HOPS, SourceRoute, SwitchPort};
pub use sealed::{
    MAX_SEALED_PIECES, SEAL_OVERHEAD_BYTES, SEAL_TAG_BYTES, SEALED_HEADER_BYTES, SEALED_MAGIC,
    SealAlgorithm, SealDirection, SealedHeader,
};
pub use sequence::Sequence;

/// Bytes of one page: the unit in which paged memory moves.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of one slab: the unit a donor lends. A grant of `n` slabs is addressed `0..n *
/// SLAB_BYTES`.
pub const SLAB_BYTES: u64 = 16 << 20;

/// First two bytes of every frame, read as a little-endian `u16`: the letters `VN`.
pub const MAGIC: u16 = u16::from_le_bytes(*b"VN");
/// The frame format version of this crate.
pub const VERSION: u8 = 1;
/// The packet format version of this crate.
pub const PACKET_VERSION: u8 = 1;
/// The hop format version of this crate.
pub const HOP_VERSION: u8 = 1;
/// Length of the header, the same for every frame.
pub const HEADER_BYTES: usize = 64;
/// The most payload one frame carries.
pub const MAX_PAYLOAD_BYTES: usize = 4096;
/// The longest frame: a buffer of this size holds any.
pub const MAX_FRAME_BYTES: usize = HEADER_BYTES + MAX_PAYLOAD_BYTES;
