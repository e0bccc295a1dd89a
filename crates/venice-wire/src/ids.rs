//! Identifiers of nodes, grants, keys and links.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A node of the rack, numbered by the Monitor Node.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// One allocation: some slabs of one donor, lent to one recipient.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct GrantId(pub u64);

/// The random key of a grant. `Debug` does not print it, and there is no `Display`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GrantKey(pub u64);

/// One link between two nodes, from handshake to its end. The accepting side draws a new number for
/// every link, so frames of an earlier session never match a later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for GrantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GrantKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_never_printed() {
        assert_eq!(format!("{:?}", GrantKey(0xdead_beef)), "GrantKey(..)");
    }

    #[test]
    fn ids_serialise_as_plain_numbers() {
        assert_eq!(serde_json::to_string(&NodeId(7)).unwrap(), "7");
        assert_eq!(serde_json::from_str::<GrantId>("18446744073709551615").unwrap().0, u64::MAX);
    }
}
