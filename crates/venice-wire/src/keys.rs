//! The secrets of the udp port: a node's secret, and the keys derived from it for others.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{GrantId, NodeId};

/// Length of a secret and of a key in bytes, as AES-256-GCM and ChaCha20-Poly1305 require.
pub const SEAL_KEY_BYTES: usize = 32;

/// A secret shared by a node and the Monitor Node alone. Every key with which others seal datagrams
/// to this node is derived from it. Drawn anew for each incarnation of the node's agent.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeSecret(pub [u8; SEAL_KEY_BYTES]);

/// A key shared by one sender and one receiving node. The sender receives it from the Monitor Node;
/// the receiver derives it from its [`NodeSecret`] and the [`KeyName`].
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SealKey(pub [u8; SEAL_KEY_BYTES]);

/// The name of one of a node's keys. Every sealed datagram carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum KeyName {
    /// The key of this grant's recipient. It ends with the grant.
    Grant(GrantId),
    /// The key of another node of the rack: link tests, relayed packets.
    Peer(NodeId),
}

impl KeyName {
    /// Returns the number of the kind, as it travels.
    pub const fn kind(self) -> u8 {
        match self {
            Self::Grant(_) => 1,
            Self::Peer(_) => 2,
        }
    }

    /// Returns the number within its kind, as it travels.
    pub const fn id(self) -> u64 {
        match self {
            Self::Grant(grant) => grant.0,
            Self::Peer(node) => node.0 as u64,
        }
    }

    /// Returns the name with this kind and number, or `None` if the kind is unknown.
    pub fn from_parts(kind: u8, id: u64) -> Option<Self> {
        match kind {
            1 => Some(Self::Grant(GrantId(id))),
            2 => Some(Self::Peer(NodeId(u32::try_from(id).ok()?))),
            _ => None,
        }
    }
}

impl fmt::Debug for NodeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeSecret(..)")
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_never_printed() {
        assert_eq!(format!("{:?}", NodeSecret([0xab; 32])), "NodeSecret(..)");
        assert_eq!(format!("{:?}", SealKey([0xab; 32])), "SealKey(..)");
    }

    #[test]
    fn key_name_roundtrips() {
        for name in [KeyName::Grant(GrantId(u64::MAX)), KeyName::Peer(NodeId(7))] {
            assert_eq!(KeyName::from_parts(name.kind(), name.id()), Some(name));
        }
        assert_eq!(KeyName::from_parts(0, 1), None);
        assert_eq!(KeyName::from_parts(2, 1 << 32), None);
    }
}
