//! Revoked nodes: their certificates are void.

use crate::caller::Caller;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A revoked node. Certificates made for it, or for users it vouched for, up to a moment are void.
/// Later ones are valid: the node may join again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// The node's name.
    pub node: String,
    /// The moment, in milliseconds since 1970.
    pub until_ms: u64,
    /// Proof to the Monitor Node that a revocation reported by a node is its own. Empty in the
    /// Monitor Node itself, which needs none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seal: Vec<u8>,
}

impl Revocation {
    /// Creates a revocation without a seal.
    pub fn new(node: impl Into<String>, until_ms: u64) -> Self {
        Self { node: node.into(), until_ms, seal: Vec::new() }
    }
}

/// The Monitor Node's answer to a node whose revocations differ from its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RevocationNews {
    /// All revocations of the Monitor Node.
    pub known: Vec<Revocation>,
    /// Revocations of before this moment void nothing any more; in milliseconds since 1970.
    pub over_before_ms: u64,
}

/// All revoked nodes. Two sets merge by keeping the later revocation of each node, so a Monitor
/// Node that has lost some readmits no revoked node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revocations(BTreeMap<String, Voided>);

/// The end of the void period of a node, with its seal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Voided {
    until_ms: u64,
    seal: Vec<u8>,
}

impl Revocations {
    /// Adds a revocation. The later of two of one node stays.
    pub fn put(&mut self, revocation: Revocation) {
        let Revocation { node, until_ms, seal } = revocation;
        let voided = self.0.entry(node).or_default();
        if until_ms >= voided.until_ms {
            *voided = Voided { until_ms, seal };
        }
    }

    /// Merges the revocations of the Monitor Node, and keeps those it lacks unless they are over.
    /// Returns the latter, to be reported to the Monitor Node.
    pub fn learn(&mut self, news: RevocationNews) -> Vec<Revocation> {
        let sent: Self = news.known.iter().cloned().collect();
        news.known.into_iter().for_each(|revocation| self.put(revocation));
        self.0.retain(|node, voided| {
            sent.0.contains_key(node) || voided.until_ms >= news.over_before_ms
        });
        let is_besides = |it: &Revocation| sent.until_ms(&it.node) < Some(it.until_ms);
        self.list().into_iter().filter(is_besides).collect()
    }

    /// True if a certificate for `caller`, made at `issued_ms`, is void.
    pub fn covers(&self, caller: &Caller, issued_ms: u64) -> bool {
        let until_ms = caller.node().and_then(|node| self.until_ms(node));
        until_ms.is_some_and(|until_ms| issued_ms <= until_ms)
    }

    /// Returns the moment up to which a node's certificates are void, in milliseconds since 1970;
    /// `None` if the node is not revoked.
    pub fn until_ms(&self, node: &str) -> Option<u64> {
        self.0.get(node).map(|voided| voided.until_ms)
    }

    /// Removes the revocation of a node.
    pub fn forget(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// Returns a hash of the set (FNV-1a): equal for equal sets, in every process.
    pub fn version(&self) -> u64 {
        let bytes = self.0.iter().flat_map(|(node, voided)| {
            // Names contain no zero byte.
            node.bytes().chain([0]).chain(voided.until_ms.to_be_bytes())
        });
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    /// Returns all revocations, by name.
    pub fn list(&self) -> Vec<Revocation> {
        let entry = |(node, voided): (&String, &Voided)| Revocation {
            node: node.clone(),
            until_ms: voided.until_ms,
            seal: voided.seal.clone(),
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
    fn revocation_covers_users_until_rejoin() {
        let at = |until_ms| Revocation::new("node7", until_ms);
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

    #[test]
    fn unknown_revocations_stay_until_over() {
        let of = |node: &str, until_ms| Revocation::new(node, until_ms);
        let mut known: Revocations =
            [of("lost", 100), of("older", 100), of("newer", 100)].into_iter().collect();
        let sent = vec![of("older", 200), of("newer", 50), of("other", 7)];
        let besides = known.learn(RevocationNews { known: sent, over_before_ms: 100 });
        assert_eq!(besides, [of("lost", 100), of("newer", 100)]);
        let all = [of("lost", 100), of("newer", 100), of("older", 200), of("other", 7)];
        assert_eq!(known.list(), all);
        // A later certificate is valid.
        assert!(!known.covers(&Caller::Node("lost".into()), 101));
        let besides = known.learn(RevocationNews { known: Vec::new(), over_before_ms: 101 });
        assert_eq!(besides, [of("older", 200)]);
        assert_eq!(known.list(), besides);
    }
}
