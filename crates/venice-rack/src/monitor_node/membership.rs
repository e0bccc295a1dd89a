//! Several Monitor Nodes that share one store.
//!
//! Each member writes a sign of life to the store every second. It lists the nodes whose heartbeats
//! the member does not receive. The store delivers changes in order: a member that reads its own
//! sign back has seen all changes made before it wrote the sign. For a limited time from then on it
//! may act on its view of the store.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use venice_wire::NodeId;

/// Time after the last confirmed sign until a member stops serving, in nanoseconds. It is longer
/// than the failover to another member of etcd takes, and far shorter than the margin of
/// revocations.
pub const FRESH_FOR_NS: u64 = 6_000_000_000;

/// A member's sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sign {
    /// Its number, from 1 on; that of joining is 0.
    pub number: u64,
    /// The nodes whose heartbeats the member does not receive.
    pub silent: BTreeSet<NodeId>,
}

/// The members, this one included, by `M`, the key of a member. Times are of a clock that counts
/// pauses of this process, in nanoseconds.
#[derive(Debug)]
pub struct Membership<M> {
    own: M,
    peers: BTreeMap<M, BTreeSet<NodeId>>,
    /// Nodes that the next sign lists.
    silent: BTreeSet<NodeId>,
    signs: u64,
    /// Signs not read back yet, with their times.
    unconfirmed: VecDeque<(u64, u64)>,
    until_ns: u64,
    /// True if later confirmations do not extend the time.
    is_over: bool,
}

impl<M: Ord> Membership<M> {
    /// Creates it for a member whose view is complete up to `known_ns`.
    pub fn new(own: M, known_ns: u64) -> Self {
        Self {
            own,
            peers: BTreeMap::new(),
            silent: BTreeSet::new(),
            signs: 0,
            unconfirmed: VecDeque::new(),
            until_ns: known_ns.saturating_add(FRESH_FOR_NS),
            is_over: false,
        }
    }

    /// Returns the key of this member.
    pub fn own(&self) -> &M {
        &self.own
    }

    /// Returns the next sign, to be written now.
    pub fn next_sign(&mut self, now_ns: u64) -> Sign {
        self.signs += 1;
        self.unconfirmed.push_back((self.signs, now_ns));
        Sign { number: self.signs, silent: self.silent.clone() }
    }

    /// Sets the nodes whose heartbeats this member does not receive.
    pub fn set_silent(&mut self, silent: BTreeSet<NodeId>) {
        self.silent = silent;
    }

    /// Handles a member's sign from the store, or its end. Returns true if it is of a new peer.
    pub fn handle_sign(&mut self, member: M, sign: Option<Sign>) -> bool {
        match sign {
            Some(sign) if member == self.own => {
                self.confirm(sign.number);
                false
            }
            Some(sign) => self.peers.insert(member, sign.silent).is_none(),
            None => {
                self.peers.remove(&member);
                false
            }
        }
    }

    fn confirm(&mut self, number: u64) {
        while let Some((of, at_ns)) = self.unconfirmed.front().copied()
            && of <= number
        {
            self.unconfirmed.pop_front();
            if of == number && !self.is_over {
                self.until_ns = at_ns.saturating_add(FRESH_FOR_NS);
            }
        }
    }

    /// Returns the nodes that no peer receives heartbeats from; `None` without peers.
    pub fn silent_at_peers(&self) -> Option<BTreeSet<NodeId>> {
        self.peers.values().cloned().reduce(|all, one| &all & &one)
    }

    /// Returns the time until which the view may be acted on. It is checked before every action that
    /// no condition in the store guards: a process that stalled finds its view outdated before it
    /// acts.
    pub fn until_ns(&self) -> u64 {
        self.until_ns
    }

    /// Ends it for good: the peers consider this member gone, or the store was re-created.
    pub fn end(&mut self) {
        (self.until_ns, self.is_over) = (0, true);
    }
}
