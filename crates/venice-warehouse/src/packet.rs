//! Packets, in a slab: events and queues have their numbers.

use serde::{Deserialize, Serialize};

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
