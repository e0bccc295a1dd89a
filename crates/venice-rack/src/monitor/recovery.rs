//! Recovery from the store.

use super::queue::Queue;
use super::{Change, KeySource, MonitorCore, MonitorSettings, Record};
use crate::forecast::Workloads;
use crate::quota::Quotas;
use crate::rat::{GrantRecord, GrantState, Rat};
use crate::revocation::Revocations;
use crate::rrt::{NodeEntry, Rrt};
use crate::tst::Tst;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

impl MonitorCore {
    /// Creates a Monitor Node from stored records; without records, a new one.
    ///
    /// Nodes count as living until they miss their heartbeats. Requests in their handshake are
    /// aborted: their clients never had an answer. Grants lent in one call are in doubt: their
    /// donors are called again. Transfers that are recorded are finished; others never happened.
    pub fn recover(
        settings: MonitorSettings,
        keys: Box<dyn KeySource>,
        now_ns: u64,
        records: impl IntoIterator<Item = Record>,
    ) -> Self {
        let mut core = Self::with_records(settings, keys, now_ns, records);
        core.abort_unfinished();
        core.settle_grants_in_doubt();
        core.send_transfers_again();
        core
    }

    /// The same where other Monitor Nodes may have the store too: their requests are left alone.
    pub fn recover_with_peers(
        settings: MonitorSettings,
        keys: Box<dyn KeySource>,
        now_ns: u64,
        records: impl IntoIterator<Item = Record>,
    ) -> Self {
        let mut core = Self::with_records(settings, keys, now_ns, records);
        core.begin_with_peers(now_ns);
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
            queue: Queue::default(),
            parts: BTreeMap::new(),
            sent_prepares: BTreeMap::new(),
            sent_releases: BTreeSet::new(),
            release_waiters: BTreeMap::new(),
            waiting_registrations: BTreeMap::new(),
            tried: BTreeSet::new(),
            learnt_ns: BTreeMap::new(),
            tokens: BTreeMap::new(),
            revoked: Revocations::default(),
            retention: Default::default(),
            workloads: Workloads::new(settings.forecast, now_ns),
            quotas: Quotas::default(),
            next_grant: 1,
            range_end: 1,
            // Numbers start at 1.
            grant_limit: 1,
            finished: BTreeMap::new(),
            transfers: BTreeMap::new(),
            sent_transfers: BTreeSet::new(),
            shared: None,
            next_scan_ns: now_ns.saturating_add(settings.scan_interval_ns()),
            actions: VecDeque::new(),
        }
    }

    /// Counts as free what is not granted, until the donors report.
    fn estimate_free_slabs(&mut self) {
        let held: Vec<_> = self
            .rat
            .iter()
            .map(|grant| (grant.lender(), grant.share.slabs(), grant.confirmed_revision))
            .collect();
        for (lender, slabs, revision) in held {
            if let Some(mut entry) = self.rrt.get_mut(lender.node)
                && entry.record.identity == lender
            {
                let status = &mut entry.status;
                status.free_slabs = status.free_slabs.saturating_sub(slabs);
                status.revision = status.revision.max(revision);
            }
        }
    }

    fn abort_unfinished(&mut self) {
        let is_unfinished = |grant: &GrantRecord| match grant.state {
            GrantState::Committed | GrantState::Transferring => false,
            GrantState::Committing => !grant.is_lent_at_once(),
            GrantState::Releasing => true,
        };
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
