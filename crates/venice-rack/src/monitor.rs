//! The Monitor Node's logic.
//!
//! [`MonitorCore`] takes calls and answers (`handle_*`) and gives out what is to be done
//! ([`MonitorCore::poll_action`]). The driver performs the actions in the order they come:
//! an [`Action::Store`] has to be durable before the next action is begun, calls to donors may
//! then run beside each other, and the result of each comes back through its `handle_*`, exactly
//! once, also when there was no answer.
//!
//! # Why nothing leaks
//! * A request is granted as a whole: prepare at every donor, then a durable record of the intent,
//!   then commit at every donor, then a durable record of the grants, then the answer. What one donor
//!   can give it lends at once: a durable record of the intent, one call, the answer (decision 0055).
//! * Slabs prepared and never committed are free again at the donor by themselves; slabs committed
//!   for a recipient that never heard of it are not renewed and fall back with their lease.
//! * What donors report overrules the table, if the report is new enough to know (revisions).

mod action;
mod admission;
mod ahead;
mod asking;
mod carrying;
mod devices;
mod distance;
mod drain;
mod farewell;
mod handshake;
mod lending;
mod links;
mod listing;
mod nodes;
mod peers;
mod pending;
mod planning;
mod queue;
mod quotas;
mod recovery;
mod release;
mod revoking;
mod shared;
mod stored;
mod view;
mod weighing;

pub use action::{Action, CallError, Change, Event, Kept, Record, Token};
pub use admission::JoinTokenRecord;
pub use view::{RecordKey, Sight, View};

use crate::NS_PER_MS;
use crate::forecast::{LookAhead, Workloads};
use crate::placement::Policy;
use crate::quota::Quotas;
use crate::rat::{GrantRecord, Rat};
use crate::revocation::Revocations;
use crate::rrt::{NodeEntry, NodeRecord, Rrt};
use crate::tst::Tst;
use crate::types::{Identity, NodeRegistration};
use devices::PendingDevice;
use pending::{PendingRequest, SentPrepare};
use queue::Line;
use shared::Shared;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use venice_wire::{GrantId, GrantKey, KeyName, NodeId, NodeSecret, SealKey};

/// Most changes of one [`Action::Store`]. Where more come at one go, those of one grant of memory stay
/// together.
pub const CHANGES_AT_ONCE: usize = 512;

/// How a Monitor Node is set up.
#[derive(Debug, Clone, Copy)]
pub struct MonitorSettings {
    /// Time between two heartbeats of an agent.
    pub heartbeat_interval_ns: u64,
    /// How many heartbeats may be missed in a row before a node is down.
    pub missed_heartbeats: u32,
    /// Lease of a grant.
    pub lease_ns: u64,
    /// How long the handshake for one request may take; well under the lease, or the first
    /// donor's lease ends before the recipient hears of it.
    pub request_timeout_ns: u64,
    /// How long a grant's recipient has when it is called back for a request of higher priority.
    pub preempt_notice_ns: u64,
    /// UDP goes without protection in this rack.
    pub is_plain: bool,
    /// The way between two positions of a network of relays, given its shape and size: the
    /// positions passed, the first left out, the last included. `None` where there is none.
    pub way: fn(topology: &str, from: u32, to: u32) -> Option<Vec<u32>>,
    /// Bits a second that an emulated link carries, given its text; `None`: as many as there are.
    pub link_bps: fn(link: &str) -> Option<u64>,
    /// Which donors are taken first where a request does not say.
    pub placement: Policy,
    /// How it looks ahead, and how much it keeps for what it sees.
    pub ahead: LookAhead,
}

impl MonitorSettings {
    fn lease_ms(&self) -> u64 {
        (self.lease_ns / NS_PER_MS).max(1)
    }

    fn silence_ns(&self) -> u64 {
        self.heartbeat_interval_ns.saturating_mul(u64::from(self.missed_heartbeats))
    }

    /// How often nodes and lost grants are looked through.
    fn scan_interval_ns(&self) -> u64 {
        (self.heartbeat_interval_ns / 4).max(1)
    }
}

/// Where keys come from: secret and unpredictable in a real rack.
pub trait KeySource: Send {
    /// A grant's key, never given before.
    fn next_key(&mut self) -> GrantKey;

    /// A node's secret, never given before.
    fn next_secret(&mut self) -> NodeSecret;

    /// The key of this name at the node with this secret, the same that the node derives.
    fn seal_key(&self, secret: &NodeSecret, name: KeyName) -> SealKey;
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
    line: Line,
    /// Which request a grant in its handshake belongs to.
    parts: BTreeMap<GrantId, u128>,
    /// Requests for devices in their handshake, by the client's number.
    device_requests: BTreeMap<u128, PendingDevice>,
    /// Which of these a grant in its handshake belongs to.
    device_parts: BTreeMap<GrantId, u128>,
    /// Prepares without an answer yet.
    sent_prepares: BTreeMap<GrantId, SentPrepare>,
    /// Releases without an answer yet.
    sent_releases: BTreeSet<GrantId>,
    /// Recipients that wait for releases, and what they will hear.
    release_waiters: BTreeMap<Token, (BTreeSet<GrantId>, Kept)>,
    /// Registrations that wait until it is known whether the name's holder lives.
    waiting_registrations: BTreeMap<NodeId, Vec<(Token, NodeRegistration)>>,
    /// Join tokens, by number.
    tokens: BTreeMap<u64, JoinTokenRecord>,
    /// Who was turned out.
    revoked: Revocations,
    /// How long that matters.
    memory: revoking::Memory,
    /// What workloads use and are foretold to need.
    workloads: Workloads,
    /// Who may have how much.
    quotas: Quotas,
    next_grant: u64,
    /// Grant numbers from `next_grant` to below this one may be given without another record.
    range_end: u64,
    /// Grant numbers below this are somebody's.
    grant_limit: u64,
    /// Requests whose answer is on its way out.
    finished: BTreeMap<u128, PendingRequest>,
    /// The same for devices.
    finished_devices: BTreeMap<u128, PendingDevice>,
    /// There are other Monitor Nodes with the same store, or may be.
    shared: Option<Shared>,
    next_scan_ns: u64,
    actions: VecDeque<Action>,
}

impl MonitorCore {
    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        let action = self.actions.pop_front()?;
        if let Action::ReplyRequest { client_id, .. } = &action {
            self.finished.remove(client_id);
            self.finished_devices.remove(client_id);
        }
        Some(action)
    }

    /// When [`Self::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> u64 {
        let deadlines = self.requests.values().map(|request| request.deadline_ns);
        let of_devices = self.device_requests.values().map(|request| request.deadline_ns);
        deadlines
            .chain(of_devices)
            .chain(self.line.next_ns())
            .min()
            .map_or(self.next_scan_ns, |deadline| deadline.min(self.next_scan_ns))
    }

    /// Notices silent nodes, late handshakes, and lost grants whose lease is over.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.fail_late_requests(now_ns);
        self.fail_late_device_requests(now_ns);
        let mut may_be_room = self.line.is_pause_over(now_ns);
        if now_ns >= self.next_scan_ns {
            may_be_room = true;
            self.next_scan_ns = now_ns.saturating_add(self.settings.scan_interval_ns());
            self.mark_silent_nodes(now_ns);
            self.drop_lost_grants(now_ns);
            self.look_ahead(now_ns);
            self.call_off_forsaken(now_ns);
        }
        self.note_room(now_ns, may_be_room);
        self.tell_line(now_ns);
    }

    /// Makes a change and has it recorded.
    fn change(&mut self, change: Change) {
        self.enter(&change);
        // Changes made at one go are written at one go.
        match self.actions.back_mut() {
            Some(Action::Store(changes)) if changes.len() < CHANGES_AT_ONCE => changes.push(change),
            _ => self.actions.push_back(Action::Store(vec![change])),
        }
    }

    /// Makes a change to the tables. Those of nodes are made by who knows what else comes with them.
    fn enter(&mut self, change: &Change) {
        match change {
            Change::PutNode(_) | Change::PutNewcomer(_) => {}
            Change::PutLastRequest { .. } | Change::PutLastPromise { .. } => {}
            Change::PutGrantLimit(limit) => self.grant_limit = self.grant_limit.max(*limit),
            Change::PutGrant(grant) => self.rat.put(grant.clone()),
            Change::DeleteGrant(id) => {
                self.rat.remove(*id);
            }
            Change::PutToken(record) => drop(self.tokens.insert(record.id, record.clone())),
            Change::DeleteToken(id) => drop(self.tokens.remove(id)),
            Change::PutRevocation(revocation) => self.revoked.put(revocation.clone()),
            Change::DeleteRevocation(node) => self.revoked.forget(node),
            Change::PutCertificateLife(life_ms) => self.memory.certificate_life_ms = *life_ms,
            Change::PutQuota(record) => self.quotas.put(record.clone()),
            Change::DeleteQuota(of) => self.quotas.remove(of),
        }
    }

    /// Has changes recorded all or none, whatever was recorded at one go before.
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

    fn note(&mut self, event: Event) {
        self.actions.push_back(Action::Note(event));
    }

    /// Whether a grant's memory is gone, as far as can be known, and since when.
    fn lost_since_ns(&self, grant: &GrantRecord) -> Option<u64> {
        let node = self.rrt.get(grant.donor)?;
        if node.record.identity.epoch != grant.donor_epoch {
            Some(node.epoch_since_ns)
        } else if self.is_gone(node) {
            Some(node.down_since_ns)
        } else {
            None
        }
    }

    /// The agent of its epoch is dead, as far as can be known.
    fn is_gone(&self, node: &NodeEntry) -> bool {
        let NodeRecord { identity, is_stopped, .. } = *node.record;
        !node.up && (is_stopped || !self.is_heard_elsewhere(identity.node))
    }

    /// True while the node of this very epoch is up.
    fn is_up(&self, donor: Identity) -> bool {
        self.rrt.get(donor.node).is_some_and(|node| node.up && node.record.identity == donor)
    }

    /// A node's name; empty where there is no such node.
    pub fn name_of(&self, node: NodeId) -> String {
        self.rrt.get(node).map(|entry| entry.record.name.clone()).unwrap_or_default()
    }

    fn control_addr(&self, donor: NodeId) -> String {
        self.rrt.get(donor).map(|node| node.record.control_addr.clone()).unwrap_or_default()
    }
}
