//! Death and orderly stop of donors.

use super::World;
use super::etcd::PendingCall;
use std::collections::{BTreeMap, BTreeSet};
use venice_rack::monitor::Token;
use venice_rack::types::Identity;

/// Donors that have deregistered.
#[derive(Default)]
pub(super) struct Ended {
    /// Deregistrations without an answer.
    sent: BTreeMap<Token, Identity>,
    /// Donors whose deregistration was answered.
    confirmed: BTreeSet<Identity>,
}

impl World {
    pub(super) fn kill_donor(&mut self, index: usize) {
        self.donors[index].alive = false;
    }

    /// Stops a donor in an orderly way. Its deregistration is lost if the Monitor Node crashes
    /// before acting on it.
    pub(super) fn end_donor(&mut self, index: usize) {
        let donor = &mut self.donors[index];
        let was_alive = std::mem::replace(&mut donor.alive, false);
        let (Some(node), true) = (donor.identity, was_alive) else { return };
        let (instance, spoken_to) = (donor.instance, self.at);
        for at in 0..self.monitors.len() {
            self.at = at;
            let token = self.put(PendingCall::Deregister(node, instance));
            self.ended.sent.insert(token, node);
            self.collect_actions();
        }
        self.at = spoken_to;
    }

    pub(super) fn answered_deregistration(&mut self, token: Token, is_confirmed: bool) {
        let Some(node) = self.ended.sent.remove(&token).filter(|_| is_confirmed) else { return };
        self.check_is_stopped(self.at, node);
        self.ended.confirmed.insert(node);
    }

    /// True if the Monitor Node has the deregistration. Of several, one may not have seen another's
    /// yet.
    pub(super) fn has_ended(&self, node: Identity) -> bool {
        self.monitors.len() == 1 && self.ended.confirmed.contains(&node)
    }

    /// Checks stopped donors, also after late messages and crashes.
    pub(super) fn check_ended(&self) {
        if self.monitors.len() == 1 {
            self.ended.confirmed.iter().for_each(|node| self.check_is_stopped(0, *node));
        }
    }

    fn check_is_stopped(&self, at: usize, node: Identity) {
        let rows = self.monitors[at].core.node_rows(self.now_ns);
        let row = rows.iter().find(|row| row.node_id == node.node.0).expect("it is known");
        if row.epoch == node.epoch {
            assert_eq!((row.state.as_str(), row.free_bytes), ("stopped", 0), "{}", row.name);
            assert_eq!(row.granted_bytes, 0, "{}: a stopped node lends nothing", row.name);
        }
    }
}
