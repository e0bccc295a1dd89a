//! Begin and end of faults.

use super::Rack;
use crate::scenario::FaultKind;

impl Rack<'_> {
    pub(super) fn begin_fault(&mut self, n: usize) {
        match self.scenario.faults[n].kind {
            FaultKind::Cut { from, to, both } => {
                self.network.link(from, to).cut();
                if both {
                    self.network.link(to, from).cut();
                }
            }
            FaultKind::Isolate { node } => {
                for (from, to) in self.links_of(node) {
                    self.network.link(from, to).cut();
                }
            }
            FaultKind::Crash { node, same_keys } => self.crash(node, same_keys),
            FaultKind::KillRecipient { node } => self.kill_recipient(node),
            FaultKind::Freeze { node } => self.nodes[usize::from(node)].freezes += 1,
            FaultKind::Storm { impairment } => self.network.begin_storm(n, impairment),
            FaultKind::Revoke { node, abrupt } => {
                self.nodes[usize::from(node)].revokes += 1;
                self.revoke_all(node, abrupt);
            }
        }
    }

    pub(super) fn end_fault(&mut self, n: usize) {
        match self.scenario.faults[n].kind {
            FaultKind::Cut { from, to, both } => {
                self.network.link(from, to).heal();
                if both {
                    self.network.link(to, from).heal();
                }
            }
            FaultKind::Isolate { node } => {
                for (from, to) in self.links_of(node) {
                    self.network.link(from, to).heal();
                }
            }
            FaultKind::Crash { node, .. } => self.restart(node),
            // The new program has begun at once.
            FaultKind::KillRecipient { .. } => {}
            FaultKind::Freeze { node } => self.thaw(node),
            FaultKind::Storm { .. } => self.network.end_storm(n),
            FaultKind::Revoke { node, .. } => {
                self.nodes[usize::from(node)].revokes -= 1;
                self.free_ended(node, true);
            }
        }
    }

    /// Returns both directions of every link of a node.
    fn links_of(&self, node: u16) -> Vec<(u16, u16)> {
        let others = (0..self.nodes.len() as u16).filter(|&other| other != node);
        others.flat_map(|other| [(node, other), (other, node)]).collect()
    }

    fn crash(&mut self, number: u16, same_keys: bool) {
        let callers: Vec<u16> = self
            .nodes
            .iter()
            .filter(|node| node.is_up_with(number))
            .map(|node| node.number)
            .collect();
        let node = &mut self.nodes[usize::from(number)];
        node.crashes += 1;
        if node.crashes > 1 {
            return;
        }
        node.is_dead = true;
        node.lent.remembered.clear();
        for (id, grant) in std::mem::take(&mut node.lent.grants) {
            self.oracle.region(grant.region).is_revoked = true;
            // A recipient without a connection could not tell the new memory from the old, and need
            // not.
            if same_keys && !grant.is_ending && callers.contains(&grant.recipient) {
                node.lent.remembered.push((id, grant.key, grant.recipient));
            }
        }
        node.client.die(self.now_ns, &mut self.oracle);
        node.talks.iter_mut().for_each(|talks| talks.die(&mut self.oracle));
    }

    fn restart(&mut self, number: u16) {
        let node = &mut self.nodes[usize::from(number)];
        node.crashes -= 1;
        if node.crashes > 0 {
            return;
        }
        node.is_dead = false;
        node.restart();
        for (id, key, recipient) in std::mem::take(&mut node.lent.remembered) {
            self.lend_as(number, recipient, id, key);
        }
        self.pump(number);
    }

    fn kill_recipient(&mut self, number: u16) {
        let node = &mut self.nodes[usize::from(number)];
        if node.is_dead {
            return;
        }
        node.client.die(self.now_ns, &mut self.oracle);
        node.talks[0].die(&mut self.oracle);
        node.restart_recipient();
        self.pump(number);
    }

    fn thaw(&mut self, number: u16) {
        let node = &mut self.nodes[usize::from(number)];
        node.freezes -= 1;
        if !node.is_awake() {
            return;
        }
        node.catch_up(self.now_ns, &mut self.oracle, &mut self.saboteur);
        node.timer_ns = None;
        self.pump(number);
    }
}
