//! Checker of QPairs' credit in quiescence: one end's count of unread bytes equals the other's, and
//! the remaining credit is the rest of the room there.

use venice_fabric::{CreditMode, QPairLevels};

use super::Rack;
use super::talk::{RECV_BYTES, credit_mode};
use crate::checkers::Checker;

impl Rack<'_> {
    pub(super) fn check_credit_when_quiet(&mut self) {
        let mut results = Vec::new();
        for node in &self.nodes {
            for (qpair, id) in node.talks[0].conversations() {
                let Some(peer) = node.initiator.qpair_peer(qpair) else { continue };
                let donor = &self.nodes[usize::from(node.donor_of(peer))];
                let mut ends = donor.talks[1].conversations();
                let Some((other, _)) = ends.find(|&(_, other)| other == id) else { continue };
                let levels =
                    (node.initiator.qpairs().levels(qpair), donor.target.qpairs().levels(other));
                let (Ok(here), Ok(there)) = levels else { continue };
                // A lost credit write is requested again only when it is needed.
                let is_sure = self.is_harmless || credit_mode(id.0) == CreditMode::InBand;
                // One in band may still be in flight on lossy links.
                let has_arrived = node.initiator.is_settled() && donor.target.is_settled();
                let is_exact = is_sure && has_arrived;
                let result = check(&here, &there, is_exact);
                let result = result.and_then(|()| check(&there, &here, is_exact));
                results.push(result.map_err(|what| format!("{id:?}: {what}")));
            }
        }
        for result in results {
            self.oracle.findings.check(Checker::Credit, self.now_ns, result);
        }
    }
}

/// Checks the credit of `sender` for `reader`.
fn check(sender: &QPairLevels, reader: &QPairLevels, is_exact: bool) -> Result<(), String> {
    let held = reader.unread_bytes + reader.uncredited_bytes;
    let is_held = match is_exact {
        true => sender.outstanding_bytes == held,
        false => sender.outstanding_bytes >= held,
    };
    let room = sender.outstanding_bytes + sender.credit_bytes;
    match is_held && room == u64::from(RECV_BYTES) {
        true => Ok(()),
        false => Err(format!("{sender:?} beside {reader:?} (to the byte: {is_exact})")),
    }
}
