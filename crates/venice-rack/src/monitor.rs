//! The logic of the Monitor Node.
//!
//! [`MonitorCore`] takes calls and answers (`handle_*`) and returns actions
//! ([`MonitorCore::poll_action`]). The driver performs the actions in order. An [`Action::Store`]
//! must be durable before the next action begins. Calls to donors may then run concurrently; the
//! result of each comes back through its `handle_*`, exactly once, also when there was no answer.
//!
//! # No grant leaks
//! - A request is granted as a whole: prepare at every donor, then a durable record of the intent,
//!   then commit at every donor, then a durable record of the grants, then the answer. If one donor
//!   can give all of it, it lends in one call: a durable record of the intent, one call, the answer
//!   (decision 0055).
//! - Slabs prepared and never committed are freed by the donor after a time limit. Slabs committed
//!   for a recipient that never received the answer are not renewed and fall back with their lease.
//! - A transfer is one durable transaction: the grants end and their successors begin, all of them
//!   or none (decision 0085). It comes after every donor's promise and before every donor's switch.
//! - Reports of donors override the table, if they are recent enough (revisions).

mod action;
mod admission;
mod bandwidth;
mod conflict;
mod deregistration;
mod devices;
mod distance;
mod donor_calls;
mod drain;
mod event;
mod handshake;
mod lending;
mod links;
mod listing;
mod nearest;
mod nodes;
mod peers;
mod peers_view;
mod pending;
mod planning;
mod queue;
mod quotas;
mod recovery;
mod release;
mod requests;
mod reservation;
mod revocation;
mod transfer;
mod view;
mod weighing;

pub use action::{Action, CallError, Change, Kept, Record, Token};
pub use admission::JoinTokenRecord;
pub use event::{Event, GrantFacts, RequestFacts};
pub use view::{RecordKey, Sight, View};

use crate::NS_PER_MS;
use crate::forecast::{ForecastSettings, Workloads};
use crate::monitor_node::Reply;
use crate::placement::Policy;
use crate::queueing::WaitingBounds;
use crate::quota::Quotas;
use crate::rat::{GrantRecord, Rat};
use crate::revocation::Revocations;
use crate::rrt::{NodeEntry, NodeRecord, Rrt};
use crate::tst::Tst;
use crate::types::{Identity, NodeRegistration};
use peers_view::PeersView;
use pending::{PendingRequest, SentPrepare};
use queue::Queue;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use transfer::PendingTransfer;
use venice_wire::{GrantId, GrantKey, KeyName, NodeId, NodeSecret, SealKey};

/// Most changes of one [`Action::Store`]. If more come together, those of one grant of memory stay
/// in one action.
pub const CHANGES_AT_ONCE: usize = 512;

/// Distances from a position to others, in hops; `None` where there is no such position.
pub type Distances = Box<dyn Fn(u32) -> Option<u32>>;

/// Settings of a Monitor Node.
#[derive(Debug, Clone, Copy)]
pub struct MonitorSettings {
    /// Time between two heartbeats of an agent.
    pub heartbeat_interval_ns: u64,
    /// Heartbeats in a row that a node may miss before it is down.
    pub missed_heartbeats: u32,
    /// Lease of a grant.
    pub lease_ns: u64,
    /// Time limit of a request's handshake. It must be well under the lease, or the first donor's
    /// lease ends before the recipient receives the answer.
    pub request_timeout_ns: u64,
    /// Time between the preemption notice and the end of a grant.
    pub preempt_notice_ns: u64,
    /// True if UDP goes without protection in this rack.
    pub is_plain: bool,
    /// Returns the path between two positions of a network of relays, given its shape and size: the
    /// positions passed, without the first, with the last. `None` where there is none.
    pub way: fn(topology: &str, from: u32, to: u32) -> Option<Vec<u32>>,
    /// Returns the distances from a position of a network of relays, given its shape and size: the
    /// lengths of the paths that `way` returns.
    pub distance: fn(topology: &str, from: u32) -> Distances,
    /// Returns the positions that a position of a network of relays is linked to, given its shape and
    /// size.
    pub neighbours: fn(topology: &str, position: u32) -> Vec<u32>,
    /// Returns the bits a second of an emulated link, given its text; `None`: unlimited.
    pub link_bps: fn(link: &str) -> Option<u64>,
    /// The placement policy of requests that name none.
    pub placement: Policy,
    /// Settings of forecasts and reservations.
    pub forecast: ForecastSettings,
    /// Bounds on queued requests.
    pub waiting: WaitingBounds,
}

impl MonitorSettings {
    fn lease_ms(&self) -> u64 {
        (self.lease_ns / NS_PER_MS).max(1)
    }

    fn silence_ns(&self) -> u64 {
        self.heartbeat_interval_ns.saturating_mul(u64::from(self.missed_heartbeats))
    }

    /// Returns the interval of the scan for silent nodes and lost grants, in nanoseconds.
    fn scan_interval_ns(&self) -> u64 {
        (self.heartbeat_interval_ns / 4).max(1)
    }
}

/// The source of keys: secret and unpredictable in a real rack.
pub trait KeySource: Send {
    /// Draws a grant's key, never given before.
    fn next_key(&mut self) -> GrantKey;

    /// Draws a node's secret, never given before.
    fn next_secret(&mut self) -> NodeSecret;

    /// Derives the key of this name at the node with this secret, as the node derives it.
    fn seal_key(&self, secret: &NodeSecret, name: KeyName) -> SealKey;
}

/// Keys by counting on from a number, for simulated racks: whoever knows one knows all.
#[derive(Debug)]
pub struct CountingKeys(pub u64);

impl KeySource for CountingKeys {
    fn next_key(&mut self) -> GrantKey {
        self.0 += 1;
        GrantKey(self.0)
    }

    fn next_secret(&mut self) -> NodeSecret {
        self.0 += 1;
        NodeSecret([self.0 as u8; 32])
    }

    fn seal_key(&self, secret: &NodeSecret, name: KeyName) -> SealKey {
        SealKey(secret.0.map(|byte| byte ^ name.id() as u8 ^ name.kind()))
    }
}

/// The Monitor Node.
pub struct MonitorCore {
    settings: MonitorSettings,
    keys: Box<dyn KeySource>,
    rrt: Rrt,
    rat: Rat,
    tst: Tst,
    /// Requests in their handshake, by the client's number.
    requests: BTreeMap<u128, PendingRequest>,
    /// Requests that wait for room.
    queue: Queue,
    /// The request of each grant in its handshake.
    parts: BTreeMap<GrantId, u128>,
    /// Prepares without an answer yet.
    sent_prepares: BTreeMap<GrantId, SentPrepare>,
    /// Releases without an answer yet.
    sent_releases: BTreeSet<GrantId>,
    /// Recipients that wait for releases, with the grants not released.
    release_waiters: BTreeMap<Token, (BTreeSet<GrantId>, Kept)>,
    /// Registrations that wait for the liveness of the name's holder.
    waiting_registrations: BTreeMap<NodeId, Vec<(Token, NodeRegistration)>>,
    /// Times at which peers' grants of the last lease were learnt.
    learnt_ns: BTreeMap<GrantId, u64>,
    /// The nodes that are being called to learn whether they can be reached.
    tried: BTreeSet<NodeId>,
    /// Join tokens, by number.
    tokens: BTreeMap<u64, JoinTokenRecord>,
    /// Revoked nodes.
    revoked: Revocations,
    /// Retention of revocations.
    retention: revocation::Retention,
    /// The use and forecast need of workloads.
    workloads: Workloads,
    /// The quotas of users.
    quotas: Quotas,
    next_grant: u64,
    /// Grant numbers from `next_grant` to below this one may be used without another record.
    range_end: u64,
    /// Grant numbers below this are in use, here or at another Monitor Node.
    grant_limit: u64,
    /// Requests whose answer is on its way out.
    finished: BTreeMap<u128, PendingRequest>,
    /// Transfers without an answer yet, by the client's number.
    transfers: BTreeMap<u128, PendingTransfer>,
    /// Commits of transfers without an answer yet, by the successor.
    sent_transfers: BTreeSet<GrantId>,
    /// Set if other Monitor Nodes have the same store, or may have.
    shared: Option<PeersView>,
    next_scan_ns: u64,
    actions: VecDeque<Action>,
}

impl MonitorCore {
    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        let action = self.actions.pop_front()?;
        if let Action::ReplyRequest { client_id, .. } = &action {
            self.finished.remove(client_id);
        }
        Some(action)
    }

    /// Returns the time at which [`Self::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> u64 {
        let deadlines = self.requests.values().map(|request| request.deadline_ns);
        deadlines
            .chain(self.transfers.values().map(|transfer| transfer.deadline_ns))
            .chain(self.queue.next_ns())
            .min()
            .map_or(self.next_scan_ns, |deadline| deadline.min(self.next_scan_ns))
    }

    /// Detects silent nodes, late handshakes, and lost grants whose lease is over.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.fail_late_requests(now_ns);
        self.end_late_transfers(now_ns);
        let mut may_be_room = self.queue.is_pause_over(now_ns);
        if now_ns >= self.next_scan_ns {
            may_be_room = true;
            self.next_scan_ns = now_ns.saturating_add(self.settings.scan_interval_ns());
            self.mark_silent_nodes(now_ns);
            self.drop_lost_grants(now_ns);
            self.sample_workloads(now_ns);
            self.take_back_orphans_of_peers(now_ns);
        }
        self.note_room(now_ns, may_be_room);
        self.answer_queue(now_ns);
    }

    /// Makes a change and queues its record.
    fn change(&mut self, change: Change) {
        self.enter(&change);
        // Changes made together are written together.
        match self.actions.back_mut() {
            Some(Action::Store(changes)) if changes.len() < CHANGES_AT_ONCE => changes.push(change),
            _ => self.actions.push_back(Action::Store(vec![change])),
        }
    }

    /// Applies a change to the tables. Changes of nodes are applied by the caller, with what
    /// depends on them.
    fn enter(&mut self, change: &Change) {
        match change {
            Change::PutNode(_) | Change::PutNewcomer(_) => {}
            Change::PutLastRequest { .. } | Change::PutLastPromise { .. } => {}
            Change::PutGrantLimit(limit) => self.grant_limit = self.grant_limit.max(*limit),
            Change::PutGrant(grant) => self.rat.put(grant.clone()),
            Change::DeleteGrant(id) | Change::TransferGrant(id) => {
                self.rat.remove(*id);
            }
            Change::PutToken(record) => drop(self.tokens.insert(record.id, record.clone())),
            Change::DeleteToken(id) => drop(self.tokens.remove(id)),
            Change::PutRevocation(revocation) => self.revoked.put(revocation.clone()),
            Change::DeleteRevocation(node) => self.revoked.forget(node),
            Change::PutCertificateLife(life_ms) => self.retention.certificate_life_ms = *life_ms,
            Change::PutQuota(record) => self.quotas.put(record.clone()),
            Change::DeleteQuota(of) => self.quotas.remove(of),
        }
    }

    /// Queues changes to be recorded all or none, whatever was queued before.
    fn change_together(&mut self, together: Vec<Change>) {
        if let Some(Action::Store(changes)) = self.actions.back()
            && changes.len() + together.len() > CHANGES_AT_ONCE
        {
            self.actions.push_back(Action::Store(Vec::new()));
        }
        for change in together {
            self.change(change);
        }
    }

    fn reply(&mut self, token: Token, reply: Reply) {
        self.actions.push_back(Action::Reply(token, reply));
    }

    fn note(&mut self, event: Event) {
        self.actions.push_back(Action::Note(event));
    }

    /// Returns the time since which a grant's memory is gone, as far as can be known; `None` if it
    /// is not.
    fn lost_since_ns(&self, grant: &GrantRecord) -> Option<u64> {
        let node = self.rrt.get(grant.donor)?;
        if node.record.identity.epoch != grant.donor_epoch {
            Some(node.epoch_since_ns)
        } else if self.is_gone(node) {
            // A peer that grants of a node reaches it, or did so a moment ago.
            let learnt_ns = self.learnt_ns.get(&grant.id).copied().unwrap_or(0);
            Some(node.down_since_ns.max(learnt_ns))
        } else {
            None
        }
    }

    /// True if the agent of that epoch is dead, as far as can be known.
    fn is_gone(&self, node: &NodeEntry) -> bool {
        let NodeRecord { identity, is_stopped, .. } = *node.record;
        !node.up && (is_stopped || !self.is_heard_by_peer(identity.node))
    }

    /// True while the node of this very epoch is up.
    fn is_up(&self, donor: Identity) -> bool {
        self.rrt.get(donor.node).is_some_and(|node| node.up && node.record.identity == donor)
    }

    /// Returns a node's name; empty if there is no such node.
    pub fn name_of(&self, node: NodeId) -> String {
        self.rrt.get(node).map(|entry| entry.record.name.clone()).unwrap_or_default()
    }

    fn control_addr(&self, donor: NodeId) -> String {
        self.rrt.get(donor).map(|node| node.record.control_addr.clone()).unwrap_or_default()
    }
}
