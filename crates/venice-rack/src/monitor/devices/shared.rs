//! Requests for devices at one of several Monitor Nodes with the same store.

use super::super::MonitorCore;
use crate::rat::GrantState;
use crate::types::RackError;
use venice_wire::GrantId;

impl MonitorCore {
    /// True if a donor may lend for this request now, as far as the other Monitor Nodes' requests
    /// are known; if not, the request is answered.
    pub(super) fn is_ours_to_commit_device(&mut self, now_ns: u64, client_id: u128) -> bool {
        let Some(pending) = self.device_requests.get(&client_id).filter(|_| self.shared.is_some())
        else {
            return true;
        };
        if let Some(answer) = self.device_granted_before(&pending.request).transpose() {
            self.withdraw_device(client_id, answer);
            return false;
        }
        if let Err(error) = self.check_device_quota_again(client_id) {
            self.fail_device(now_ns, client_id, error);
            return false;
        }
        self.call_off_rivals(client_id);
        true
    }

    /// Forgets a prepare that was not sent: its device is chosen anew.
    pub(in super::super) fn forget_device_prepare(&mut self, grant: GrantId) {
        let Some(client_id) = self.device_parts.remove(&grant) else { return };
        if let Some(pending) = self.device_requests.get_mut(&client_id) {
            pending.part = None;
        }
    }

    /// Forgets a commit whose intent was not recorded.
    pub(in super::super) fn forget_device_commit(&mut self, grant: GrantId) {
        let Some(client_id) = self.device_parts.get(&grant) else { return };
        let pending = self.device_requests.get_mut(client_id);
        if let Some(part) = pending.and_then(|pending| pending.part.as_mut()) {
            part.is_committing = false;
        }
    }

    /// Puts requests whose answer was not sent back into their handshake, and returns them.
    pub(in super::super) fn take_up_finished_devices(&mut self) -> Vec<u128> {
        let finished = std::mem::take(&mut self.finished_devices);
        let clients = finished.keys().copied().collect();
        for (client_id, pending) in finished {
            let part = pending.part.iter();
            self.device_parts.extend(part.map(|part| (part.grant, client_id)));
            self.device_requests.insert(client_id, pending);
        }
        clients
    }

    /// Drops requests whose device other Monitor Nodes have called off: they belong to those.
    pub(in super::super) fn yield_lost_devices(&mut self) {
        let is_kept = |id: GrantId| {
            self.rat.get(id).is_some_and(|grant| grant.state == GrantState::Committing)
        };
        let lost = self.device_requests.iter().filter(|(_, pending)| {
            pending.part.as_ref().is_some_and(|part| part.is_committing && !is_kept(part.grant))
        });
        let lost: Vec<u128> = lost.map(|(client_id, _)| *client_id).collect();
        for client_id in lost {
            self.withdraw_device(client_id, Err(RackError::HandshakeFailed));
        }
    }

    /// Resumes after a conflict. Those that had ended (`finished`) end again, those that were
    /// prepared have their intent recorded, and those without a device look for one.
    pub(in super::super) fn advance_devices(
        &mut self,
        now_ns: u64,
        prepared: &[GrantId],
        finished: Vec<u128>,
    ) {
        for client_id in finished {
            let pending = self.device_requests.get(&client_id);
            if let Some(part) = pending.and_then(|pending| pending.part.as_ref()) {
                let (grant, revision) = (part.grant, part.confirmed_revision);
                self.finish_device(now_ns, client_id, grant, revision);
            }
        }
        let clients: Vec<u128> =
            prepared.iter().filter_map(|grant| self.device_parts.get(grant)).copied().collect();
        clients.into_iter().for_each(|client_id| self.commit_device(now_ns, client_id));
        let without = self.device_requests.iter().filter(|(_, pending)| pending.part.is_none());
        let without: Vec<u128> = without.map(|(client_id, _)| *client_id).collect();
        without.into_iter().for_each(|client_id| self.place_device(now_ns, client_id));
    }
}
