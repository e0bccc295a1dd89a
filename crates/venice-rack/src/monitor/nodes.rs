//! Registration, heartbeats and death of nodes.

use super::devices::{Offered, check_offered, reports_of};
use super::{CallError, Change, Event, MonitorCore, Token};
use crate::label::is_printable;
use crate::monitor_node::{DonorCall, Reply};
use crate::rat::{GrantRecord, GrantState};
use crate::rrt::{NodeEntry, NodeRecord, Reach};
use crate::types::{
    DonorReport, HeartbeatAck, HeartbeatReport, HeldGrant, HeldState, Identity, MAX_NAME_BYTES,
    NodeRegistration, Pong, RackError, Registered, RelayPlace, ResourceKind, Share,
};
use std::collections::BTreeSet;
use venice_wire::{GrantId, NodeId, NodeSecret, SLAB_BYTES};

/// The greatest grant number adopted: no rack gives that many, and a greater one would exhaust the
/// numbers.
const MAX_ADOPTED_NUMBER: u64 = 1 << 62;
/// Most calls at a time that ask whether a node can be reached.
const MAX_TRIED: usize = 64;

/// Bound of the epochs that an agent may claim: no agent restarts as often, and a greater one would
/// exhaust the numbers.
const MAX_KEPT_EPOCH: u64 = 1 << 32;

impl MonitorCore {
    /// Registers an agent. Answered by [`Reply::Registered`], perhaps only after a
    /// [`DonorCall::Ping`] to the present holder of the name.
    pub fn handle_register(&mut self, now_ns: u64, token: Token, node: NodeRegistration) {
        self.register(now_ns, token, node, false);
    }

    /// Registers an agent. With `is_free` the former holder of the name is surely dead.
    fn register(&mut self, now_ns: u64, token: Token, node: NodeRegistration, is_free: bool) {
        let checked = check_registration(&node)
            .and_then(|()| self.check_protection(&node))
            .and_then(|()| self.check_relay(&node));
        if let Err(error) = checked {
            self.reply(token, Reply::Registered(Err(error)));
            return;
        }
        let Some(holder) = self.rrt.by_name(&node.name) else {
            let identity = self.identity_of_newcomer(&node);
            return self.accept(now_ns, token, identity, node);
        };
        let Identity { node: number, epoch } = holder.record.identity;
        if holder.record.instance == node.instance {
            if holder.record.is_stopped {
                return self.refuse_stopped_agent(token, &node.name);
            }
            self.accept_again(now_ns, token, number, node);
        } else if is_free || self.is_gone(holder) {
            // A store restored from a backup knows an earlier epoch than the agent has: it keeps its
            // own, which its recipients know.
            let is_later = |own: &Identity| {
                own.node == number && (epoch + 1..MAX_KEPT_EPOCH).contains(&own.epoch)
            };
            let next = Identity { node: number, epoch: epoch + 1 };
            let identity = node.previous.filter(is_later).unwrap_or(next);
            self.accept(now_ns, token, identity, node);
        } else {
            self.ask_holder(token, number, node);
        }
    }

    /// Returns number and epoch for a new name.
    fn identity_of_newcomer(&self, node: &NodeRegistration) -> Identity {
        let fresh = Identity { node: self.rrt.fresh_number(), epoch: 1 };
        let usable = |old: &Identity| {
            (1..u32::MAX).contains(&old.node.0)
                && (1..MAX_KEPT_EPOCH).contains(&old.epoch)
                && self.rrt.get(old.node).is_none()
        };
        node.previous.filter(usable).unwrap_or(fresh)
    }

    fn accept(
        &mut self,
        now_ns: u64,
        token: Token,
        identity: Identity,
        registration: NodeRegistration,
    ) {
        // An agent with a secret keeps it: its recipients' keys are derived from it.
        let secret = registration.secret.filter(|_| registration.previous == Some(identity));
        let secret = self.secret_or_none(secret);
        let is_draining = self.rrt.is_draining(identity.node);
        let record = NodeRecord { is_draining, ..NodeRecord::new(identity, registration, secret) };
        let is_new = self.shared.is_some() && self.rrt.by_name(&record.name).is_none();
        self.rrt.insert(NodeEntry::new(record.clone(), now_ns));
        self.note(Event::NodeJoined { name: record.name.clone(), identity });
        let newcomer = is_new.then_some(Change::PutNewcomer(identity.node));
        self.change_together(newcomer.into_iter().chain([Change::PutNode(record)]).collect());
        self.reply_registered(token, identity, secret);
    }

    /// Accepts the same process again: its answer was lost, or one side was away.
    fn accept_again(&mut self, now_ns: u64, token: Token, number: NodeId, node: NodeRegistration) {
        let Some(entry) = self.rrt.get(number) else { return };
        let identity = entry.record.identity;
        let secret = node.secret.or(entry.record.secret);
        let secret = self.secret_or_none(secret);
        let is_draining = self.rrt.is_draining(number);
        let record = NodeRecord { is_draining, ..NodeRecord::new(identity, node, secret) };
        if self.rrt.get(number).is_some_and(|entry| *entry.record != record) {
            let record = self.rrt.change_record(number, |known| *known = record);
            self.change(Change::PutNode(record));
        }
        self.seen(now_ns, number);
        self.reply_registered(token, identity, secret);
    }

    /// Returns the node's present secret, or a new one; none without protection.
    fn secret_or_none(&mut self, secret: Option<NodeSecret>) -> Option<NodeSecret> {
        (!self.settings.is_plain).then(|| secret.unwrap_or_else(|| self.keys.next_secret()))
    }

    /// Checks that the agent protects its datagrams if and only if the rack does: otherwise it
    /// reaches no other node.
    fn check_protection(&self, node: &NodeRegistration) -> Result<(), RackError> {
        let reason = match (self.settings.is_plain, node.is_plain) {
            (false, true) => {
                "this rack protects its UDP traffic, and the agent was started with \
                              --plain: start it without, or the Monitor Node with it"
            }
            (true, false) => {
                "this rack's UDP traffic is without protection (its Monitor Node was \
                              started with --plain): start the agent with --plain too, or the \
                              Monitor Node without"
            }
            _ => return Ok(()),
        };
        Err(RackError::BadRequest(reason.to_owned()))
    }

    fn reply_registered(&mut self, token: Token, identity: Identity, secret: Option<NodeSecret>) {
        let registered = Registered {
            identity,
            heartbeat_interval_ms: self.settings.heartbeat_interval_ns / crate::NS_PER_MS,
            lease_ms: self.settings.lease_ms(),
            secret,
        };
        self.reply(token, Reply::Registered(Ok(registered)));
    }

    /// Pings the holder of a name that was alive lately.
    fn ask_holder(&mut self, token: Token, number: NodeId, node: NodeRegistration) {
        let waiting = self.waiting_registrations.entry(number).or_default();
        waiting.push((token, node));
        if waiting.len() == 1
            && let Some(holder) = self.rrt.get(number)
        {
            self.call_donor(holder.record.identity, DonorCall::Ping);
        }
    }

    /// Handles the result of [`DonorCall::Ping`].
    pub fn handle_pinged(&mut self, now_ns: u64, donor: Identity, result: Result<Pong, CallError>) {
        let waiting = self.waiting_registrations.remove(&donor.node).unwrap_or_default();
        self.note_tried(donor, &result);
        let Some(holder) = self.rrt.get(donor.node) else { return };
        let unchanged = holder.record.identity == donor;
        let (name, instance) = (holder.record.name.clone(), holder.record.instance);
        let control_addr = holder.record.control_addr.clone();
        if waiting.is_empty() {
            return;
        }
        let is_dead = match result {
            // Its port was taken over by another process, perhaps by the new agent itself.
            Ok(pong) => pong.instance != instance,
            Err(CallError::Gone) => true,
            Err(CallError::NoAnswer | CallError::Refused(_)) => false,
        };
        if unchanged && is_dead {
            self.mark_down(now_ns, donor);
        }
        for (token, node) in waiting {
            if unchanged && !is_dead && node.instance != instance {
                let (name, control_addr) = (name.clone(), control_addr.clone());
                let result = Err(RackError::NameTaken { name, control_addr });
                self.reply(token, Reply::Registered(result));
            } else {
                self.register(now_ns, token, node, unchanged && is_dead);
            }
        }
    }

    /// Handles an agent's heartbeat.
    ///
    /// # Errors
    /// [`RackError::NotRegistered`] if it is not the registered holder of its name, or was revoked
    /// since it registered.
    pub fn handle_heartbeat(
        &mut self,
        now_ns: u64,
        report: HeartbeatReport,
    ) -> Result<HeartbeatAck, RackError> {
        let HeartbeatReport { identity, instance, memory, links, port, pressure, .. } = report;
        let HeartbeatReport { door, usage, peers_version, .. } = report;
        let mut entry = self.rrt.get_mut(identity.node).ok_or(RackError::NotRegistered)?;
        let slabs_before = entry.available_slabs();
        let is_holder = entry.record.identity == identity && entry.record.instance == instance;
        // A report from before the agent's end, or its revocation, may come afterwards. A node that
        // was let in again registers again: its record says then that it is a member.
        if !is_holder || entry.record.is_stopped || entry.record.is_revoked {
            return Err(RackError::NotRegistered);
        }
        entry.last_heartbeat_ns = Some(now_ns);
        entry.port = port;
        entry.pressure = pressure;
        let revoked_version = door.revoked_version;
        entry.door = Some(door);
        entry.usage = usage;
        let is_newest = entry.update_status(memory.status);
        if is_newest {
            entry.devices = reports_of(&entry.record, &memory.devices);
        }
        drop(entry);
        if is_newest {
            self.reconcile(now_ns, identity, memory);
        }
        self.seen(now_ns, identity.node);
        self.try_to_reach(identity.node);
        for link in links {
            if self.rrt.get(link.to).is_some() {
                self.tst.record(identity.node, link);
            }
        }
        let slabs = self.rrt.get(identity.node).map_or(0, NodeEntry::available_slabs);
        let is_more = slabs > slabs_before || self.queue.has_devices();
        self.note_room(now_ns, is_more);
        let peers = self.peers_for(identity.node, peers_version);
        let is_draining = self.rrt.is_draining(identity.node);
        let revoked = self.revocation_news(revoked_version);
        let called_back = self.called_back_of(identity.node);
        Ok(HeartbeatAck { peers, is_draining, called_back, revoked, trust_version: 0 })
    }

    /// Notes that the node lives.
    fn seen(&mut self, now_ns: u64, node: NodeId) {
        let Some(mut entry) = self.rrt.get_mut(node) else { return };
        entry.seen_ns = now_ns;
        if !entry.up {
            entry.up = true;
            let name = entry.record.name.clone();
            drop(entry);
            self.note(Event::NodeBack { name });
        }
    }

    /// Calls a node that reports, unless it is known to answer.
    fn try_to_reach(&mut self, node: NodeId) {
        let Some(entry) = self.rrt.get(node) else { return };
        let donor = entry.record.identity;
        if entry.reach != Reach::Answers
            && self.tried.len() < MAX_TRIED
            && self.tried.insert(donor.node)
        {
            self.call_donor(donor, DonorCall::Ping);
        }
    }

    /// Notes the result of a call that asked whether a node can be reached.
    fn note_tried(&mut self, donor: Identity, result: &Result<Pong, CallError>) {
        self.tried.remove(&donor.node);
        let Some(mut entry) = self.rrt.get_mut(donor.node) else { return };
        if entry.record.identity != donor {
            return;
        }
        let reach = match result {
            Ok(_) | Err(CallError::Refused(_)) => Reach::Answers,
            Err(CallError::Gone | CallError::NoAnswer) => Reach::Fails,
        };
        let before = std::mem::replace(&mut entry.reach, reach);
        let (name, addr) = (entry.record.name.clone(), entry.record.control_addr.clone());
        drop(entry);
        match (before, reach) {
            (Reach::Unknown | Reach::Answers, Reach::Fails) => {
                self.note(Event::NodeUnreachable { name, addr });
            }
            (Reach::Fails, Reach::Answers | Reach::Unknown) => {
                self.note(Event::NodeReached { name });
            }
            (Reach::Unknown | Reach::Answers, Reach::Answers | Reach::Unknown)
            | (Reach::Fails, Reach::Fails) => {}
        }
    }

    /// Checks that the rack keeps one topology, and that each place in it has one node.
    fn check_relay(&self, node: &NodeRegistration) -> Result<(), RackError> {
        let others =
            self.rrt.iter().filter(|(_, entry)| entry.up && entry.record.name != node.name);
        for (_, entry) in others {
            let reason = match (&entry.record.relay, &node.relay) {
                (None, None) => continue,
                (Some(there), Some(here)) if there.topology == here.topology => {
                    if there.position != here.position {
                        continue;
                    }
                    format!("position {} is {}'s already", here.position, entry.record.name)
                }
                (there, here) => {
                    let shape = |relay: &Option<RelayPlace>| {
                        relay.as_ref().map_or("all-to-all".to_owned(), |r| r.topology.clone())
                    };
                    format!("this rack is wired as {}, not as {}", shape(there), shape(here))
                }
            };
            return Err(RackError::BadRequest(format!("{}: {reason}", node.name)));
        }
        Ok(())
    }

    /// Brings the table in line with the donor's report.
    fn reconcile(&mut self, now_ns: u64, donor: Identity, report: DonorReport) {
        let revision = report.status.revision;
        let held: BTreeSet<GrantId> = report.held.iter().map(|held| held.id).collect();
        let is_over = |grant: &&GrantRecord| {
            grant.donor_epoch == donor.epoch
                && !matches!(grant.state, GrantState::Committing | GrantState::Transferring)
                && grant.confirmed_revision <= revision
                && !held.contains(&grant.id)
        };
        let over: Vec<_> = self.rat.of_donor(donor.node).filter(is_over).cloned().collect();
        for grant in &over {
            self.change(Change::DeleteGrant(grant.id));
        }
        for grant in over.iter().filter(|grant| grant.state == GrantState::Committed) {
            self.note(Event::GrantEnded(self.facts_of(grant)));
        }
        self.settle_by_report(now_ns, donor, report.status, &report.held);
        self.settle_transfers_by_report(now_ns, donor, report.status, &report.held);
        self.forget_unknown_grants(donor.node, &held);
        let mut release = Vec::new();
        // Each of the donor's resources counts once, whatever it reports.
        let mut left = Offered::by(self.rrt.get(donor.node), report.status.total_slabs);
        let (known, unknown): (Vec<HeldGrant>, Vec<HeldGrant>) =
            report.held.into_iter().partition(|held| self.rat.get(held.id).is_some());
        for held in known.into_iter().chain(unknown) {
            // The registration says what a device is.
            let offered = left.take(&held.share);
            match self.rat.get(held.id).map(|grant| grant.state) {
                Some(GrantState::Releasing) => release.push(held.id),
                Some(GrantState::Committing | GrantState::Committed | GrantState::Transferring) => {
                }
                None if self.in_handshake(held.id) || self.is_being_replaced(donor, held.id) => {}
                None => self.adopt_or_abort(now_ns, donor, (revision, offered), held),
            }
        }
        self.send_releases(release);
    }

    /// Handles a grant in a donor's report that is not in the table. If merely prepared, its
    /// handshake is long over; if committed, some recipient uses it, so it is added to the table.
    fn adopt_or_abort(
        &mut self,
        now_ns: u64,
        donor: Identity,
        (revision, offered): (u64, Option<Share>),
        held: HeldGrant,
    ) {
        if self.belongs_to_peer(now_ns, donor.node, &held) {
            return;
        }
        if held.state == HeldState::Prepared {
            self.call_donor(donor, DonorCall::Abort(held.id));
            return;
        }
        let Some(share) = offered.filter(|_| is_possible(&held)) else {
            let donor = self.name_of(donor.node);
            let HeldGrant { id, share, .. } = held;
            return self.note(Event::GrantNotAdopted { donor, id, share });
        };
        self.skip_grant_numbers_to(held.id);
        let record = GrantRecord {
            id: held.id,
            origin: None,
            owner: held.owner,
            recipient: held.recipient,
            home: None,
            purpose: held.purpose,
            priority: held.priority,
            donor: donor.node,
            donor_epoch: donor.epoch,
            share,
            bandwidth_bps: 0,
            lease_ms: held.lease_ms,
            granted_ns: now_ns,
            state: GrantState::Committed,
            confirmed_revision: revision,
            ownership: held.ownership,
            from: None,
            claim_ms: 0,
            charged: None,
        };
        self.note(Event::GrantAdopted(self.facts_of(&record)));
        self.change(Change::PutGrant(record));
    }

    pub(super) fn mark_silent_nodes(&mut self, now_ns: u64) {
        let silence_ns = self.settings.silence_ns();
        let silent: Vec<_> = self
            .rrt
            .iter()
            .filter(|(_, entry)| entry.up && entry.seen_ns.saturating_add(silence_ns) <= now_ns)
            .map(|(_, entry)| entry.record.identity)
            .collect();
        for donor in silent {
            self.mark_down(now_ns, donor);
        }
    }

    /// Marks the node of this epoch as dead, as far as can be known.
    pub(super) fn mark_down(&mut self, now_ns: u64, donor: Identity) {
        if self.take_down(now_ns, donor) {
            self.note(Event::NodeDown { name: self.name_of(donor.node) });
            self.note_lost_grants(donor);
        }
    }

    /// Marks a node as down. Returns false if it was not up.
    pub(super) fn take_down(&mut self, now_ns: u64, donor: Identity) -> bool {
        if !self.is_up(donor) {
            return false;
        }
        let Some(mut entry) = self.rrt.get_mut(donor.node) else { return false };
        entry.up = false;
        entry.reach = Reach::Unknown;
        entry.down_since_ns = now_ns;
        drop(entry);
        self.tst.node_down(donor.node);
        true
    }

    /// Drops lost grants after a lease, so that users can see them for a while.
    pub(super) fn drop_lost_grants(&mut self, now_ns: u64) {
        let lease_ns = self.settings.lease_ns;
        self.learnt_ns.retain(|_, learnt_ns| learnt_ns.saturating_add(lease_ns) > now_ns);
        let is_over = |grant: &&GrantRecord| {
            (grant.state != GrantState::Committing || self.is_in_doubt(grant.id))
                && self
                    .lost_since_ns(grant)
                    .is_some_and(|since| since.saturating_add(lease_ns) <= now_ns)
        };
        let over: Vec<_> = self.rat.iter().filter(is_over).map(|grant| grant.id).collect();
        for id in over {
            self.change(Change::DeleteGrant(id));
        }
    }
}

/// True if this Monitor Node, or an earlier one, could have granted that.
fn is_possible(held: &HeldGrant) -> bool {
    let HeldGrant { id, owner, recipient, purpose, .. } = held;
    let owner = owner.iter().flat_map(|owner| [&owner.node, &owner.user]);
    let mut names = owner.chain([recipient, purpose]);
    (1..=MAX_ADOPTED_NUMBER).contains(&id.0) && names.all(|name| name.len() <= MAX_NAME_BYTES)
}

fn check_registration(node: &NodeRegistration) -> Result<(), RackError> {
    let bad = |reason: String| Err(RackError::BadRequest(reason));
    let name = &node.name;
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(|c: char| c.is_control()) {
        return bad(format!(
            "a node's name has 1 to {MAX_NAME_BYTES} printable characters, not {name:?}"
        ));
    }
    let NodeRegistration { control_addr, udp_addr, shm_socket, link, .. } = node;
    let texts = [control_addr, udp_addr, shm_socket, link];
    if texts.into_iter().any(|text| text.len() > MAX_NAME_BYTES || !is_printable(text)) {
        return bad(format!(
            "{name} reports an address or a link of more than {MAX_NAME_BYTES} bytes, or with \
             control characters"
        ));
    }
    if node.control_addr.is_empty() {
        return bad(format!("{name} reports no address for calls to it"));
    }
    for resource in node.resources.iter().filter(|r| r.kind == ResourceKind::Memory) {
        let slab_bytes = resource.slab_bytes;
        if slab_bytes != SLAB_BYTES {
            return bad(format!("{name} lends slabs of {slab_bytes} bytes, not {SLAB_BYTES}"));
        }
    }
    check_offered(node).map_err(|why| RackError::BadRequest(format!("{name}: {why}")))
}
