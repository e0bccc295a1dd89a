//! The store, and several Monitor Nodes that have it: each hears late of what the others change.

use super::World;
use super::starting::{keys, settings};
use std::collections::{BTreeMap, BTreeSet};
use venice_rack::monitor::{Change, MonitorCore, Record, RecordKey, Sight, Token, View};
use venice_rack::quota::{QuotaFor, QuotaRecord};
use venice_rack::types::{Identity, NodeRegistration};
use venice_wire::{GrantId, GrantKey};

/// What a Monitor Node was asked and has not answered.
#[derive(Clone)]
pub(super) enum Question {
    Register(Box<NodeRegistration>),
    Release(Vec<(GrantId, GrantKey)>),
    Drain(String, bool),
    Farewell(Identity, u64),
    SetQuota(QuotaRecord),
    RemoveQuota(QuotaFor),
}

/// A Monitor Node and what its driver keeps.
pub(super) struct Monitor {
    pub(super) core: MonitorCore,
    /// No other has the same, before or after.
    pub(super) life: u64,
    view: View,
    /// So many transactions it has heard of.
    heard: usize,
    questions: BTreeMap<Token, Question>,
    /// Requests without an answer.
    pub(super) requests: BTreeSet<u128>,
}

/// Records by key, and every transaction there was.
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

    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values().map(|(_, record)| record)
    }

    fn holds(&self, (key, at): &Sight) -> bool {
        self.records.get(key).map(|(revision, _)| *revision) == *at
    }

    /// The revision then.
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
        let (questions, requests) = (BTreeMap::new(), BTreeSet::new());
        Monitor { core, life: self.lives, view, heard: self.etcd.log.len(), questions, requests }
    }

    /// A Monitor Node that starts from the store.
    pub(super) fn recovered_as(&self, life: u64) -> MonitorCore {
        let records = self.etcd.records.values().map(|(_, record)| record.clone());
        let start = match self.etcd.is_shared {
            true => MonitorCore::recover_among_others,
            false => MonitorCore::recover,
        };
        start(settings(), keys(life), self.now_ns, records)
    }

    pub(super) fn put(&mut self, question: Question) -> Token {
        let token = self.token();
        self.put_as(token, question);
        token
    }

    pub(super) fn put_as(&mut self, token: Token, question: Question) {
        self.monitors[self.at].questions.insert(token, question.clone());
        let now_ns = self.now_ns;
        let core = self.core();
        match question {
            Question::Register(node) => core.handle_register(now_ns, token, *node),
            Question::Release(leases) => core.handle_release(token, &leases),
            Question::Drain(name, drains) => core.handle_drain(now_ns, token, &name, drains),
            Question::Farewell(node, instance) => {
                core.handle_farewell(now_ns, token, node, instance);
            }
            Question::SetQuota(quota) => core.handle_set_quota(token, quota),
            Question::RemoveQuota(of) => core.handle_remove_quota(token, of),
        }
    }

    pub(super) fn answered_question(&mut self, token: Token) {
        self.monitors[self.at].questions.remove(&token);
    }

    /// Makes a transaction of the Monitor Node that is spoken to, if the records are as it thinks.
    pub(super) fn store(&mut self, changes: Vec<Change>) {
        let monitor = &mut self.monitors[self.at];
        let sights = monitor.view.conditions(&changes);
        if !self.etcd.is_shared || sights.iter().all(|sight| self.etcd.holds(sight)) {
            changes.iter().for_each(|change| self.ledger.store(change));
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
            monitor.heard += 1;
            let told = self.etcd.log[monitor.heard - 1].clone();
            news.extend(monitor.view.learn(monitor.heard as u64, told));
        }
        monitor.core.handle_conflict(self.now_ns, changes, &monitor.view, news);
        self.ask_anew();
    }

    /// Whoever has no answer yet asks again.
    fn ask_anew(&mut self) {
        let monitor = &self.monitors[self.at];
        for (token, question) in monitor.questions.clone() {
            self.put_as(token, question);
        }
        for client_id in self.monitors[self.at].requests.clone() {
            if self.ask_anew_for_device(client_id) {
                continue;
            }
            let recipient = &self.recipients[client_id as usize - 1];
            let (owner, request) = (recipient.owner.clone(), recipient.request.clone());
            let now_ns = self.now_ns;
            self.core().handle_request(now_ns, owner, request).unwrap();
        }
    }

    /// That Monitor Node hears of the next transaction; false when there is none.
    pub(super) fn hear_of_others(&mut self, at: usize) -> bool {
        let at = at % self.monitors.len();
        let spoken_to = std::mem::replace(&mut self.at, at);
        // What waits was decided without the news.
        while self.act() {}
        let (log, monitor) = (&self.etcd.log, &mut self.monitors[at]);
        let is_behind = monitor.heard < log.len();
        if is_behind {
            monitor.heard += 1;
            let news = monitor.view.learn(monitor.heard as u64, log[monitor.heard - 1].clone());
            if !news.is_empty() {
                monitor.core.handle_stored(self.now_ns, news);
            }
        }
        self.at = spoken_to;
        is_behind
    }

    /// Each knows whom the others do not hear.
    pub(super) fn tell_silence(&mut self) {
        let silent: Vec<BTreeSet<_>> =
            self.monitors.iter().map(|monitor| monitor.core.silent_nodes().collect()).collect();
        for (at, monitor) in self.monitors.iter_mut().enumerate() {
            let others = silent.iter().enumerate().filter(|(other, _)| *other != at);
            let all = others.map(|(_, silent)| silent.clone()).reduce(|all, one| &all & &one);
            monitor.core.handle_silent_elsewhere(all);
        }
    }

    /// Nodes that no Monitor Node hears.
    pub(super) fn note_silence(&mut self) {
        let silent = self.monitors.iter().map(|it| it.core.silent_nodes().collect::<BTreeSet<_>>());
        let all = silent.reduce(|all, one| &all & &one).unwrap_or_default();
        for node in all {
            self.ledger.node_down(node);
        }
    }
}
