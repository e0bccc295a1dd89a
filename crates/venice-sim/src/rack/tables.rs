//! Checker of both ends' mapping tables: in quiescence every window has its entry at the donor,
//! every entry its window, and the program uses each.

use super::Rack;
use super::client::window_addr;
use super::node::Node;
use crate::checkers::Checker;
use crate::network::node_id;

impl Rack<'_> {
    /// Gives the ends time to agree, then requires it.
    pub(super) fn wait_for_tables(&mut self) {
        let end_ns = self.now_ns + self.patience_ns;
        self.run_until("both ends' tables agree", |rack| {
            rack.now_ns >= end_ns
                || (rack.events_count.is_multiple_of(16) && rack.check_tables().is_ok())
        });
        let result = self.check_tables();
        self.oracle.findings.check(Checker::Agreement, self.now_ns, result);
    }

    fn check_tables(&self) -> Result<(), String> {
        self.nodes.iter().try_for_each(|node| {
            self.check_windows(node)?;
            self.check_entries(node)
        })
    }

    /// Checks that the windows of a recipient are those of its program, and have entries at the
    /// donors.
    fn check_windows(&self, node: &Node) -> Result<(), String> {
        let number = node.number;
        let sessions = node.client.sessions.iter().enumerate();
        let mapped: Vec<_> = sessions.filter(|(_, session)| session.is_mapped).collect();
        let mut windows = 0;
        for window in node.initiator.mappings() {
            windows += 1;
            let is_its = |n: usize, session: &super::client::Session| {
                let grant = session.grant.map(|(grant, _)| grant);
                window_addr(n) == window.window_addr
                    && (session.peer, grant) == (Some(window.peer), Some(window.grant))
            };
            let Some(&(_, session)) = mapped.iter().find(|(n, session)| is_its(*n, session)) else {
                return Err(format!(
                    "node {number} has {window:?}, which its program does not use"
                ));
            };
            let donor = &self.nodes[usize::from(session.donor)];
            let mut entries = donor.target.mappings();
            let is_open = entries.any(|entry| {
                entry.node == node_id(number) && entry.grant == window.grant && !entry.is_revoking
            });
            if is_open != window.is_open {
                return Err(format!(
                    "node {number} has {window:?}, node {} has an entry for it: {is_open}",
                    session.donor
                ));
            }
        }
        match windows == mapped.len() {
            true => Ok(()),
            false => Err(format!(
                "node {number} has {windows} windows, its program works with {}",
                mapped.len()
            )),
        }
    }

    /// Checks that the recipients in a donor's table have open windows to these grants.
    fn check_entries(&self, donor: &Node) -> Result<(), String> {
        for entry in donor.target.mappings() {
            let recipient = self.nodes.get(entry.node.0 as usize);
            let has_window = |node: &Node| {
                let mut windows = node.initiator.mappings();
                windows.any(|window| {
                    window.is_open
                        && window.grant == entry.grant
                        && node.donor_of(window.peer) == donor.number
                })
            };
            if entry.is_revoking || !recipient.is_some_and(has_window) {
                return Err(format!("node {} has {entry:?}, which no window uses", donor.number));
            }
        }
        Ok(())
    }
}
