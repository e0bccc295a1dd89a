//! Whose certificates are worth nothing any more.

use crate::caller::Caller;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A node that was turned out: certificates made for it, or for users on its word, up to a moment
/// are void. Later ones are not: it may join again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// The node's name.
    pub node: String,
    /// The moment, in milliseconds since 1970.
    pub until_ms: u64,
}

/// All nodes that were turned out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revocations(BTreeMap<String, u64>);

impl Revocations {
    /// Enters one; an earlier one of the same node gives way, a later one stays.
    pub fn put(&mut self, revocation: Revocation) {
        let until_ms = self.0.entry(revocation.node).or_default();
        *until_ms = (*until_ms).max(revocation.until_ms);
    }

    /// Whether a certificate for `caller`, made at `issued_ms`, is void.
    pub fn covers(&self, caller: &Caller, issued_ms: u64) -> bool {
        let until_ms = caller.node().and_then(|node| self.0.get(node));
        until_ms.is_some_and(|until_ms| issued_ms <= *until_ms)
    }

    /// Up to when the certificates of a node are void, in milliseconds since 1970; `None` where it
    /// was not turned out.
    pub fn until_ms(&self, node: &str) -> Option<u64> {
        self.0.get(node).copied()
    }

    /// Takes out that of one node.
    pub fn forget(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// A number that tells one set of them from another (FNV-1a): the same for the same set,
    /// whichever process looks at it.
    pub fn version(&self) -> u64 {
        let bytes = self.0.iter().flat_map(|(node, until_ms)| {
            // No name has a zero in it.
            node.bytes().chain([0]).chain(until_ms.to_be_bytes())
        });
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    /// All of them, by name.
    pub fn list(&self) -> Vec<Revocation> {
        let entry = |(node, until_ms): (&String, &u64)| Revocation {
            node: node.clone(),
            until_ms: *until_ms,
        };
        self.0.iter().map(entry).collect()
    }
}

impl FromIterator<Revocation> for Revocations {
    fn from_iter<I: IntoIterator<Item = Revocation>>(all: I) -> Self {
        let mut revocations = Self::default();
        all.into_iter().for_each(|revocation| revocations.put(revocation));
        revocations
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::User;

    #[test]
    fn a_node_turned_out_takes_its_users_with_it_and_may_come_again() {
        let at = |until_ms| Revocation { node: "node7".into(), until_ms };
        let mut revoked: Revocations = [at(100), at(50)].into_iter().collect();
        let node = Caller::Node("node7".into());
        let user = User { node: "node7".into(), uid: 7, name: "a".into(), is_admin: false };
        for caller in [node, Caller::User(user)] {
            assert!(revoked.covers(&caller, 100));
            assert!(!revoked.covers(&caller, 101));
        }
        assert!(!revoked.covers(&Caller::Node("node8".into()), 1));
        assert!(!revoked.covers(&Caller::Monitor, 1));
        assert_eq!(revoked.list(), [at(100)]);
        let versions = [Revocations::default(), revoked.clone(), [at(101)].into_iter().collect()];
        let versions = versions.map(|it: Revocations| it.version());
        assert!(
            versions[0] != versions[1] && versions[1] != versions[2] && versions[0] != versions[2]
        );
        revoked.forget("node7");
        assert_eq!(revoked.version(), versions[0]);
    }
}
