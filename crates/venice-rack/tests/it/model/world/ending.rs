//! Donors that die, and donors that are ended in an orderly way and say so.

use super::World;
use super::etcd::Question;
use std::collections::{BTreeMap, BTreeSet};
use venice_rack::monitor::Token;
use venice_rack::types::Identity;

/// Donors that have said farewell.
#[derive(Default)]
pub(super) struct Ended {
    /// Who waits for an answer to it.
    said: BTreeMap<Token, Identity>,
    /// Whose was answered.
    heard: BTreeSet<Identity>,
}

impl World {
    pub(super) fn kill_donor(&mut self, index: usize) {
        self.donors[index].alive = false;
    }

    /// What it says to a Monitor Node that crashes before it has done anything about it is lost.
    pub(super) fn end_donor(&mut self, index: usize) {
        let donor = &mut self.donors[index];
        let was_alive = std::mem::replace(&mut donor.alive, false);
        let (Some(node), true) = (donor.identity, was_alive) else { return };
        let (instance, spoken_to) = (donor.instance, self.at);
        for at in 0..self.monitors.len() {
            self.at = at;
            let token = self.put(Question::Farewell(node, instance));
            self.ended.said.insert(token, node);
            self.hear_monitor();
        }
        self.at = spoken_to;
    }

    pub(super) fn answered_farewell(&mut self, token: Token, is_heard: bool) {
        let Some(node) = self.ended.said.remove(&token).filter(|_| is_heard) else { return };
        self.check_is_stopped(self.at, node);
        self.ended.heard.insert(node);
    }

    /// The Monitor Node has been told. Of several, one may not have heard yet what another was told.
    pub(super) fn has_ended(&self, node: Identity) -> bool {
        self.monitors.len() == 1 && self.ended.heard.contains(&node)
    }

    /// Whatever comes late, and also after a crash.
    pub(super) fn check_ended(&self) {
        if self.monitors.len() == 1 {
            self.ended.heard.iter().for_each(|node| self.check_is_stopped(0, *node));
        }
    }

    fn check_is_stopped(&self, at: usize, node: Identity) {
        let rows = self.monitors[at].core.node_rows(self.now_ns);
        let row = rows.iter().find(|row| row.node_id == node.node.0).expect("it is known");
        if row.epoch == node.epoch {
            assert_eq!((row.state.as_str(), row.free_bytes), ("stopped", 0), "{}", row.name);
            assert_eq!(row.granted_bytes, 0, "{}: nothing is lent by who is gone", row.name);
        }
    }
}
