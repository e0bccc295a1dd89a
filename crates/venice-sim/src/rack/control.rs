//! Stand-in for the Monitor Node: connects recipients and donors. It takes a moment and never
//! fails, since this simulator tests the fabric.

use venice_wire::{GrantId, GrantKey};

use super::client::window_addr;
use super::memory::{Bytes, Grant};
use super::node::Node;
use super::sabotage::Sabotage;
use super::{Event, Rack};
use crate::checkers::{Checker, RegionId};
use venice_simkernel::random::Stream;

impl Rack<'_> {
    /// Schedules a link or a grant for a session.
    pub(super) fn reconnect_later(&mut self, number: u16, session: usize) {
        let Node { life_number: life, client, .. } = &mut self.nodes[usize::from(number)];
        let Some(wanting) = client.sessions.get(session) else { return };
        let seed = Stream::new(self.scenario.seed);
        let labels = [number.into(), session as u64, wanting.lane.into(), self.now_ns];
        // At first all begin together; later detection and request take time.
        let longest_ns = match self.now_ns {
            0 => 10_000,
            _ => self.scenario.protocol.keepalive.0,
        };
        let delay_ns = seed.split("reconnect", &labels).between(1, longest_ns);
        let at_ns = self.now_ns + delay_ns;
        self.events.push(at_ns, Event::Reconnect { node: number, life: *life, session });
    }

    /// Gives a session its link or grant, if the donor is available.
    pub(super) fn reconnect(&mut self, number: u16, life: u32, session: usize) {
        let node = &self.nodes[usize::from(number)];
        if node.life_number != life || node.is_dead {
            return;
        }
        let donor = node.client.sessions[session].donor;
        let lender = &self.nodes[usize::from(donor)];
        if !lender.is_awake() || lender.revokes > 0 || !node.is_awake() {
            return self.reconnect_later(number, session);
        }
        let (grant, key, region) = self.lend(donor, number);
        let len_bytes = self.scenario.workload.window_bytes().into();
        let now_ns = self.now_ns;
        let node = &mut self.nodes[usize::from(number)];
        let peer = match node.client.sessions[session].peer {
            Some(peer) => peer,
            None => {
                node.client.sessions[session].lane += 1;
                node.add_peer(donor, now_ns)
            }
        };
        let addr = window_addr(session);
        node.initiator
            .map_window(addr, len_bytes, peer, 0, grant, key)
            .expect("the window's address is free");
        let session = &mut node.client.sessions[session];
        session.peer = Some(peer);
        session.region = Some(region);
        session.grant = Some((grant, key));
        (session.is_mapped, session.is_reconnecting) = (true, false);
        self.pump(number);
    }

    /// Returns the grant of a donor to a recipient, created if there is none.
    fn lend(&mut self, donor: u16, recipient: u16) -> (GrantId, GrantKey, RegionId) {
        if let Some((id, grant)) = self.nodes[usize::from(donor)].lent.to(recipient) {
            return (id, grant.key, grant.region);
        }
        let id = GrantId(self.next_grant);
        self.next_grant += 1;
        let mut rng = Stream::new(self.scenario.seed).split("grant", &[id.0]);
        let key = GrantKey(rng.draw());
        let region = self.lend_as(donor, recipient, id, key);
        (id, key, region)
    }

    /// Lends fresh memory under a given grant and key.
    pub(super) fn lend_as(
        &mut self,
        donor: u16,
        recipient: u16,
        id: GrantId,
        key: GrantKey,
    ) -> RegionId {
        let workload = &self.scenario.workload;
        let salt = self.scenario.seed ^ self.now_ns;
        let region = self.oracle.add_region(salt, workload.region_bytes, workload.counters.into());
        let bytes = vec![0; workload.window_bytes() as usize];
        let bytes = Bytes::new(bytes);
        let grant = Grant { key, recipient, region, bytes, is_ending: false };
        let lent = &mut self.nodes[usize::from(donor)].lent;
        lent.grants.insert(id, grant);
        region
    }

    /// Ends all grants of a donor: at once, or by notifying the recipients.
    pub(super) fn revoke_all(&mut self, donor: u16, abrupt: bool) {
        let local_ns = self.now_ns + self.nodes[usize::from(donor)].clock_ahead_ns;
        let Node { lent, target, .. } = &mut self.nodes[usize::from(donor)];
        for (&id, grant) in &mut lent.grants {
            self.oracle.region(grant.region).is_revoked = true;
            if self.saboteur.is(Sabotage::KeepGrant) {
                // It stays under another recipient's name.
                grant.recipient = u16::MAX;
            } else if !abrupt {
                grant.is_ending = true;
                target.revoke(local_ns, id);
            }
        }
        if abrupt && !self.saboteur.is(Sabotage::KeepGrant) {
            lent.grants.clear();
        }
        self.pump(donor);
    }

    /// Frees memory without users; before a donor lends again, all that it ends.
    pub(super) fn free_ended(&mut self, donor: u16, all: bool) {
        let Node { lent, target, .. } = &mut self.nodes[usize::from(donor)];
        let is_used = |id| target.mappings().any(|mapping| mapping.grant == id);
        lent.grants.retain(|&id, grant| !grant.is_ending || (!all && is_used(id)));
    }

    /// Checks, in quiescence, memory, both ends' tables and the links' counters.
    pub(super) fn check_when_quiet(&mut self) {
        let now_ns = self.now_ns;
        for node in &self.nodes {
            for (id, grant) in &node.lent.grants {
                let tell = |what| format!("memory of node {}: {what}", node.number);
                let bytes = grant.bytes.lock();
                let (bytes, words) = self.scenario.workload.split_window(&bytes);
                let region = self.oracle.region(grant.region);
                let result = region.history.check_memory(bytes).map_err(tell);
                let counted = region.counters.check_memory(&words).map_err(tell);
                self.oracle.findings.check(Checker::History, now_ns, result);
                self.oracle.findings.check(Checker::Counters, now_ns, counted);
                let result = self.check_lent(node, *id, grant);
                self.oracle.findings.check(Checker::Agreement, now_ns, result);
            }
            for session in &node.client.sessions {
                let lent = &self.nodes[usize::from(session.donor)].lent.grants;
                let (id, key) = session.grant.unwrap_or_default();
                let result = match lent.get(&id) {
                    Some(grant) if grant.key == key && grant.recipient == node.number => Ok(()),
                    _ => Err(format!(
                        "node {} uses grant {id} of node {}, which has no such grant",
                        node.number, session.donor
                    )),
                };
                self.oracle.findings.check(Checker::Agreement, now_ns, result);
            }
        }
        self.check_links_when_quiet();
        self.check_credit_when_quiet();
    }

    fn check_lent(&self, donor: &Node, id: GrantId, grant: &Grant) -> Result<(), String> {
        let recipient = self.nodes.get(usize::from(grant.recipient));
        let uses = |node: &Node| {
            let mut sessions = node.client.sessions.iter();
            sessions.any(|session| {
                session.donor == donor.number && session.grant == Some((id, grant.key))
            })
        };
        match recipient.is_some_and(uses) {
            true => Ok(()),
            false => {
                Err(format!("node {} lends grant {id}, which no recipient uses", donor.number))
            }
        }
    }

    /// Checks that no link overran its buffers, and that nothing is outstanding.
    fn check_links_when_quiet(&mut self) {
        let now_ns = self.now_ns;
        for node in &self.nodes {
            for session in &node.client.sessions {
                let Some(peer) = session.peer else { continue };
                let overruns = node.initiator.peer_stats(peer).overruns;
                let outstanding = node.initiator.outstanding(peer);
                let result = match (overruns, outstanding) {
                    (0, 0) => Ok(()),
                    _ => Err(format!(
                        "node {}: {overruns} overruns, {outstanding} requests left over",
                        node.number
                    )),
                };
                self.oracle.findings.check(Checker::Wire, now_ns, result);
            }
            if let Some(relay) = &node.relay {
                let result = relay.check_quiet();
                let result = result.map_err(|what| format!("switch {}: {what}", node.number));
                self.oracle.findings.check(Checker::Wire, now_ns, result);
            }
            for (_, from, stats) in node.target.link_stats() {
                let result = match stats.overruns {
                    0 => Ok(()),
                    overruns => Err(format!("node {}: {overruns} overruns by {from}", node.number)),
                };
                self.oracle.findings.check(Checker::Wire, now_ns, result);
            }
        }
    }
}
