//! The store that several Monitor Nodes share: records with their revisions, conditional
//! transactions, a watch, and members with signs of life. It loses nothing; it may freeze or be
//! unreachable.

use std::collections::BTreeMap;

use venice_rack::monitor::{Change, Record, RecordKey, Sight};
use venice_rack::monitor_node::Sign;

use super::messages::{Batch, Outcome, Request, Response, Snapshot, Transaction};

/// Time after its last sign of life at which a member expires.
const LEASE_NS: u64 = 5_000_000_000;
/// Period of the check for expired members.
pub(super) const LOOK_EVERY_NS: u64 = 250_000_000;

#[derive(Debug, Default)]
pub(super) struct SharedStore {
    records: BTreeMap<RecordKey, (u64, Record)>,
    revision: u64,
    members: BTreeMap<u64, Member>,
    next_member: u64,
}

#[derive(Debug)]
struct Member {
    ends_ns: u64,
    sign: Sign,
    /// Outcomes of transactions, by their numbers.
    outcomes: BTreeMap<u64, Outcome>,
}

impl SharedStore {
    /// Handles a request; returns the answer and the batches for all watchers.
    pub(super) fn handle(&mut self, now_ns: u64, request: Request) -> (Response, Vec<Batch>) {
        match request {
            Request::Join => self.join(now_ns),
            Request::Load => (Response::Loaded(self.snapshot()), Vec::new()),
            Request::Transact(transaction) => {
                let (outcome, batches) = self.transact(transaction);
                (Response::Transacted(outcome), batches)
            }
            Request::Sign(member, sign) => self.sign(now_ns, member, sign),
            other => unreachable!("the store has no request {}", other.name()),
        }
    }

    /// Removes members without a recent sign of life.
    pub(super) fn handle_timeout(&mut self, now_ns: u64) -> Vec<Batch> {
        let is_over = |(_, member): &(&u64, &Member)| member.ends_ns <= now_ns;
        let over: Vec<u64> = self.members.iter().filter(is_over).map(|(id, _)| *id).collect();
        over.into_iter()
            .map(|id| {
                self.members.remove(&id);
                self.batch(Vec::new(), vec![(id, None)])
            })
            .collect()
    }

    /// Returns the records.
    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values().map(|(_, record)| record)
    }

    pub(super) fn get(&self, key: &RecordKey) -> Option<&Record> {
        self.records.get(key).map(|(_, record)| record)
    }

    fn join(&mut self, now_ns: u64) -> (Response, Vec<Batch>) {
        self.next_member += 1;
        let member = self.next_member;
        let sign = Sign { number: 0, silent: Default::default() };
        let (ends_ns, outcomes) = (now_ns + LEASE_NS, BTreeMap::new());
        self.members.insert(member, Member { ends_ns, sign: sign.clone(), outcomes });
        let batch = self.batch(Vec::new(), vec![(member, Some(sign))]);
        (Response::Joined { member }, vec![batch])
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            revision: self.revision,
            records: self.records.values().cloned().collect(),
            signs: self.members.iter().map(|(id, member)| (*id, member.sign.clone())).collect(),
        }
    }

    fn sign(&mut self, now_ns: u64, id: u64, sign: Sign) -> (Response, Vec<Batch>) {
        let Some(member) = self.members.get_mut(&id) else {
            return (Response::Signed { is_member: false }, Vec::new());
        };
        member.ends_ns = now_ns + LEASE_NS;
        let mut batches = Vec::new();
        // A late one is older than the state.
        if member.sign.number < sign.number {
            member.sign = sign.clone();
            batches.push(self.batch(Vec::new(), vec![(id, Some(sign))]));
        }
        (Response::Signed { is_member: true }, batches)
    }

    fn transact(&mut self, transaction: Transaction) -> (Outcome, Vec<Batch>) {
        let Transaction { member, number, conditions, changes } = transaction;
        let made_before = self.members.get(&member).and_then(|it| it.outcomes.get(&number));
        if let Some(outcome) = made_before {
            return (outcome.clone(), Vec::new());
        }
        let is_member = self.members.contains_key(&member);
        let (outcome, batches) = if is_member && conditions.iter().all(|it| self.holds(it)) {
            let batch = self.make(changes);
            (Outcome::Made { revision: batch.revision }, vec![batch])
        } else {
            let found = |(key, _): &Sight| Some((key.clone(), self.records.get(key)?.0));
            let found = conditions.iter().filter_map(found).collect();
            (Outcome::Conflict { found, is_member }, Vec::new())
        };
        if let Some(member) = self.members.get_mut(&member) {
            member.outcomes.insert(number, outcome.clone());
        }
        (outcome, batches)
    }

    fn holds(&self, (key, at): &Sight) -> bool {
        self.records.get(key).map(|(revision, _)| *revision) == *at
    }

    fn make(&mut self, changes: Vec<Change>) -> Batch {
        let batch = self.batch(changes, Vec::new());
        for change in &batch.changes {
            match change.clone().into_record() {
                Some(record) => {
                    self.records.insert(change.key(), (batch.revision, record));
                }
                None => drop(self.records.remove(&change.key())),
            }
        }
        batch
    }

    fn batch(&mut self, changes: Vec<Change>, signs: Vec<(u64, Option<Sign>)>) -> Batch {
        self.revision += 1;
        Batch { revision: self.revision, changes, signs }
    }
}
