//! Starting anew from what the store has kept.

use super::queue::Line;
use super::{Change, KeySource, MonitorCore, MonitorSettings, Record};
use crate::forecast::Workloads;
use crate::quota::Quotas;
use crate::rat::{GrantRecord, GrantState, Rat};
use crate::revocation::Revocations;
use crate::rrt::{NodeEntry, Rrt};
use crate::tst::Tst;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

impl MonitorCore {
    /// A Monitor Node that knows what the records say; without records, a new one.
    ///
    /// Nodes are taken to live until they miss their heartbeats. Requests that were in their
    /// handshake are called off: their clients never had an answer. What was to be lent at once may
    /// have been: its donors are asked.
    pub fn recover(
        settings: MonitorSettings,
        keys: Box<dyn KeySource>,
        now_ns: u64,
        records: impl IntoIterator<Item = Record>,
    ) -> Self {
        let mut core = Self::with_records(settings, keys, now_ns, records);
        core.call_off_unfinished();
        core.ask_in_doubt();
        core
    }

    /// The same, where others may have the store too: what they have begun is theirs.
    pub fn recover_among_others(
        settings: MonitorSettings,
        keys: Box<dyn KeySource>,
        now_ns: u64,
        records: impl IntoIterator<Item = Record>,
    ) -> Self {
        let mut core = Self::with_records(settings, keys, now_ns, records);
        core.begin_among_others(now_ns);
        core
    }

    fn with_records(
        settings: MonitorSettings,
        keys: Box<dyn KeySource>,
        now_ns: u64,
        records: impl IntoIterator<Item = Record>,
    ) -> Self {
        let mut core = Self::empty(settings, keys, now_ns);
        for record in records {
            match record {
                Record::Node(record) => core.rrt.insert(NodeEntry::new(record, now_ns)),
                other => core.enter(&Change::from(other)),
            }
        }
        core.estimate_free_slabs();
        core
    }

    fn empty(settings: MonitorSettings, keys: Box<dyn KeySource>, now_ns: u64) -> Self {
        Self {
            settings,
            keys,
            rrt: Rrt::default(),
            rat: Rat::default(),
            tst: Tst::default(),
            requests: BTreeMap::new(),
            line: Line::default(),
            parts: BTreeMap::new(),
            device_requests: BTreeMap::new(),
            device_parts: BTreeMap::new(),
            sent_prepares: BTreeMap::new(),
            sent_releases: BTreeSet::new(),
            release_waiters: BTreeMap::new(),
            waiting_registrations: BTreeMap::new(),
            tokens: BTreeMap::new(),
            revoked: Revocations::default(),
            memory: Default::default(),
            workloads: Workloads::new(settings.ahead, now_ns),
            quotas: Quotas::default(),
            next_grant: 1,
            range_end: 1,
            // Numbers start at 1.
            grant_limit: 1,
            finished: BTreeMap::new(),
            finished_devices: BTreeMap::new(),
            shared: None,
            next_scan_ns: now_ns.saturating_add(settings.scan_interval_ns()),
            actions: VecDeque::new(),
        }
    }

    /// Until the donors report, what is not granted counts as free.
    fn estimate_free_slabs(&mut self) {
        let held: Vec<_> = self
            .rat
            .iter()
            .map(|grant| (grant.donor, grant.donor_epoch, grant.slabs, grant.confirmed_revision))
            .collect();
        for (donor, epoch, slabs, revision) in held {
            if let Some(mut entry) = self.rrt.get_mut(donor)
                && entry.record.identity.epoch == epoch
            {
                let status = &mut entry.status;
                status.free_slabs = status.free_slabs.saturating_sub(slabs);
                status.revision = status.revision.max(revision);
            }
        }
    }

    fn call_off_unfinished(&mut self) {
        let is_unfinished =
            |grant: &GrantRecord| grant.state != GrantState::Committed && !grant.is_lent_at_once();
        let unfinished: Vec<GrantRecord> =
            self.rat.iter().filter(|grant| is_unfinished(grant)).cloned().collect();
        let ids = unfinished.iter().map(|grant| grant.id).collect();
        for grant in unfinished {
            if grant.state == GrantState::Committing {
                let state = GrantState::Releasing;
                self.change(Change::PutGrant(GrantRecord { state, ..grant }));
            }
        }
        self.send_releases(ids);
    }
}
