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
    /// By which the Monitor Node knows a revocation that a node tells it for one of its own making.
    /// Empty where it needs none: in the Monitor Node itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seal: Vec<u8>,
}

impl Revocation {
    /// One without a seal.
    pub fn new(node: impl Into<String>, until_ms: u64) -> Self {
        Self { node: node.into(), until_ms, seal: Vec::new() }
    }
}

/// What the Monitor Node tells a node whose door goes by other revocations than it does itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RevocationNews {
    /// All that it knows.
    pub known: Vec<Revocation>,
    /// Those up to before this moment void nothing any more, in milliseconds since 1970.
    pub over_before_ms: u64,
}

/// All nodes that were turned out. Two sets of them become one by keeping the later of each node: a
/// Monitor Node that has lost some lets nobody in again by that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revocations(BTreeMap<String, Voided>);

/// Up to when, and the seal of that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Voided {
    until_ms: u64,
    seal: Vec<u8>,
}

impl Revocations {
    /// Enters one; an earlier one of the same node gives way, a later one stays.
    pub fn put(&mut self, revocation: Revocation) {
        let Revocation { node, until_ms, seal } = revocation;
        let voided = self.0.entry(node).or_default();
        if until_ms >= voided.until_ms {
            *voided = Voided { until_ms, seal };
        }
    }

    /// Takes in what the Monitor Node tells, and keeps what it does not know, unless that is over:
    /// returns the latter, for the Monitor Node.
    pub fn learn(&mut self, news: RevocationNews) -> Vec<Revocation> {
        let told: Self = news.known.iter().cloned().collect();
        news.known.into_iter().for_each(|revocation| self.put(revocation));
        self.0.retain(|node, voided| {
            told.0.contains_key(node) || voided.until_ms >= news.over_before_ms
        });
        let is_besides = |it: &Revocation| told.until_ms(&it.node) < Some(it.until_ms);
        self.list().into_iter().filter(is_besides).collect()
    }

    /// Whether a certificate for `caller`, made at `issued_ms`, is void.
    pub fn covers(&self, caller: &Caller, issued_ms: u64) -> bool {
        let until_ms = caller.node().and_then(|node| self.until_ms(node));
        until_ms.is_some_and(|until_ms| issued_ms <= until_ms)
    }

    /// Up to when the certificates of a node are void, in milliseconds since 1970; `None` where it
    /// was not turned out.
    pub fn until_ms(&self, node: &str) -> Option<u64> {
        self.0.get(node).map(|voided| voided.until_ms)
    }

    /// Takes out that of one node.
    pub fn forget(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// A number that tells one set of them from another (FNV-1a): the same for the same set,
    /// whichever process looks at it.
    pub fn version(&self) -> u64 {
        let bytes = self.0.iter().flat_map(|(node, voided)| {
            // No name has a zero in it.
            node.bytes().chain([0]).chain(voided.until_ms.to_be_bytes())
        });
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    /// All of them, by name.
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
    fn a_node_turned_out_takes_its_users_with_it_and_may_come_again() {
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
    fn what_the_monitor_node_does_not_know_stays_until_it_is_over() {
        let of = |node: &str, until_ms| Revocation::new(node, until_ms);
        let mut known: Revocations =
            [of("lost", 100), of("older", 100), of("newer", 100)].into_iter().collect();
        let told = vec![of("older", 200), of("newer", 50), of("other", 7)];
        let besides = known.learn(RevocationNews { known: told, over_before_ms: 100 });
        assert_eq!(besides, [of("lost", 100), of("newer", 100)]);
        let all = [of("lost", 100), of("newer", 100), of("older", 200), of("other", 7)];
        assert_eq!(known.list(), all);
        // By a later certificate it comes in again.
        assert!(!known.covers(&Caller::Node("lost".into()), 101));
        let besides = known.learn(RevocationNews { known: Vec::new(), over_before_ms: 101 });
        assert_eq!(besides, [of("older", 200)]);
        assert_eq!(known.list(), besides);
    }
}
