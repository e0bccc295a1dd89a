//! The store, and several Monitor Nodes that share it: each sees the changes of its peers late.

use super::World;
use super::starting::{keys, settings};
use std::collections::{BTreeMap, BTreeSet};
use venice_rack::monitor::{Change, MonitorCore, Record, RecordKey, Sight, Token, View};
use venice_rack::quota::{QuotaFor, QuotaRecord};
use venice_rack::rat::GrantState;
use venice_rack::types::{Identity, NodeRegistration};
use venice_wire::{GrantId, GrantKey};

/// A call without an answer at a Monitor Node.
#[derive(Clone)]
pub(super) enum PendingCall {
    Register(Box<NodeRegistration>),
    Release(Vec<(GrantId, GrantKey)>),
    Drain(String, bool),
    Deregister(Identity, u64),
    SetQuota(QuotaRecord),
    RemoveQuota(QuotaFor),
}

/// A Monitor Node and the state of its driver.
pub(super) struct Monitor {
    pub(super) core: MonitorCore,
    /// A unique number of this process.
    pub(super) life: u64,
    view: View,
    /// Transactions received so far.
    received: usize,
    pending_calls: BTreeMap<Token, PendingCall>,
    /// Requests without an answer.
    pub(super) requests: BTreeSet<u128>,
}

/// Records by key, and the log of transactions.
pub(super) struct Etcd {
    records: BTreeMap<RecordKey, (u64, Record)>,
    log: Vec<Vec<Change>>,
    is_shared: bool,
}

impl Etcd {
    pub(super) fn new(is_shared: bool) -> Self {
        Self { records: BTreeMap::new(), log: Vec::new(), is_shared }
    }

    pub(super) fn has_grant(&self, grant: GrantId) -> bool {
        self.records.contains_key(&RecordKey::Grant(grant))
    }

    /// True if the grant is committed, and not being released.
    pub(super) fn is_granted(&self, grant: GrantId) -> bool {
        let record = self.records.get(&RecordKey::Grant(grant));
        matches!(record, Some((_, Record::Grant(record))) if record.state == GrantState::Committed)
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values().map(|(_, record)| record)
    }

    fn holds(&self, (key, at): &Sight) -> bool {
        self.records.get(key).map(|(revision, _)| *revision) == *at
    }

    /// Applies changes and returns the new revision.
    fn make(&mut self, changes: &[Change]) -> u64 {
        self.log.push(changes.to_vec());
        let revision = self.log.len() as u64;
        for change in changes {
            match change.clone().into_record() {
                Some(record) => drop(self.records.insert(change.key(), (revision, record))),
                None => drop(self.records.remove(&change.key())),
            }
        }
        revision
    }
}

impl World {
    pub(super) fn start_monitor(&mut self) -> Monitor {
        self.lives += 1;
        let core = self.recovered_as(self.lives);
        let view = View::new(self.etcd.records.values().cloned());
        let (pending_calls, requests) = (BTreeMap::new(), BTreeSet::new());
        Monitor {
            core,
            life: self.lives,
            view,
            received: self.etcd.log.len(),
            pending_calls,
            requests,
        }
    }

    /// Recovers a Monitor Node from the store.
    pub(super) fn recovered_as(&self, life: u64) -> MonitorCore {
        let records = self.etcd.records.values().map(|(_, record)| record.clone());
        let start = match self.etcd.is_shared {
            true => MonitorCore::recover_with_peers,
            false => MonitorCore::recover,
        };
        start(settings(), keys(life), self.now_ns, records)
    }

    pub(super) fn put(&mut self, call: PendingCall) -> Token {
        let token = self.token();
        self.put_as(token, call);
        token
    }

    pub(super) fn put_as(&mut self, token: Token, call: PendingCall) {
        self.monitors[self.at].pending_calls.insert(token, call.clone());
        let now_ns = self.now_ns;
        let core = self.core();
        match call {
            PendingCall::Register(node) => core.handle_register(now_ns, token, *node),
            PendingCall::Release(leases) => core.handle_release(token, &leases),
            PendingCall::Drain(name, drains) => core.handle_drain(now_ns, token, &name, drains),
            PendingCall::Deregister(node, instance) => {
                core.handle_deregister(now_ns, token, node, instance);
            }
            PendingCall::SetQuota(quota) => core.handle_set_quota(token, quota, "root@h"),
            PendingCall::RemoveQuota(of) => core.handle_remove_quota(token, of, "root@h"),
        }
    }

    pub(super) fn answered_call(&mut self, token: Token) {
        self.monitors[self.at].pending_calls.remove(&token);
    }

    /// Makes a transaction of the selected Monitor Node, if its conditions hold.
    pub(super) fn store(&mut self, changes: Vec<Change>) {
        let monitor = &mut self.monitors[self.at];
        let sights = monitor.view.conditions(&changes);
        if !self.etcd.is_shared || sights.iter().all(|sight| self.etcd.holds(sight)) {
            changes.iter().for_each(|change| self.quotas.store(change));
            let revision = self.etcd.make(&changes);
            monitor.view.made(revision, changes);
            self.check_bandwidth();
            return;
        }
        let found = |(key, _): &Sight| {
            let (revision, _) = self.etcd.records.get(key)?;
            Some((key.clone(), *revision))
        };
        let found: BTreeMap<RecordKey, u64> = sights.iter().filter_map(found).collect();
        let mut news = Vec::new();
        while !monitor.view.has_moved_on(&sights, &found) {
            monitor.received += 1;
            let changes = self.etcd.log[monitor.received - 1].clone();
            news.extend(monitor.view.learn(monitor.received as u64, changes));
        }
        monitor.core.handle_conflict(self.now_ns, changes, &monitor.view, news);
        self.repeat_calls();
    }

    /// Repeats all calls without an answer.
    fn repeat_calls(&mut self) {
        let monitor = &self.monitors[self.at];
        for (token, call) in monitor.pending_calls.clone() {
            self.put_as(token, call);
        }
        for client_id in self.monitors[self.at].requests.clone() {
            let recipient = &self.recipients[client_id as usize - 1];
            let (owner, request) = (recipient.owner.clone(), recipient.request.clone());
            let now_ns = self.now_ns;
            if let Err(error) = self.core().handle_request(now_ns, owner, request) {
                self.answered(client_id, Err(error));
            }
        }
    }

    /// Delivers the next transaction to that Monitor Node; returns false if there is none.
    pub(super) fn receive_from_peers(&mut self, at: usize) -> bool {
        let at = at % self.monitors.len();
        let selected = std::mem::replace(&mut self.at, at);
        // Waiting actions were decided without the changes.
        while self.act() {}
        let (log, monitor) = (&self.etcd.log, &mut self.monitors[at]);
        let is_behind = monitor.received < log.len();
        if is_behind {
            monitor.received += 1;
            let news =
                monitor.view.learn(monitor.received as u64, log[monitor.received - 1].clone());
            if !news.is_empty() {
                monitor.core.handle_stored(self.now_ns, news);
            }
        }
        self.at = selected;
        is_behind
    }

    /// Tells each Monitor Node which nodes its peers do not hear.
    pub(super) fn share_silent_nodes(&mut self) {
        let silent: Vec<BTreeSet<_>> =
            self.monitors.iter().map(|monitor| monitor.core.silent_nodes().collect()).collect();
        for (at, monitor) in self.monitors.iter_mut().enumerate() {
            let others = silent.iter().enumerate().filter(|(other, _)| *other != at);
            let all = others.map(|(_, silent)| silent.clone()).reduce(|all, one| &all & &one);
            monitor.core.handle_silent_at_peers(all);
        }
    }

    /// Notes nodes that no Monitor Node hears.
    pub(super) fn note_silent_nodes(&mut self) {
        let silent = self.monitors.iter().map(|it| it.core.silent_nodes().collect::<BTreeSet<_>>());
        let all = silent.reduce(|all, one| &all & &one).unwrap_or_default();
        for node in all {
            self.quotas.node_down(node);
        }
    }
}
