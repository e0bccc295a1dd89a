//! Transfers at the donor: a grant's memory goes to its successor with its content.
//!
//! Frames and verbs reach the memory by the grant's number and key: the old ones end, what still
//! reads the memory for the old owner is waited for, then the new ones begin. A program that has
//! mapped the memory cannot be stopped from using it. So memory whose files were ever handed out is
//! not transferred. A device is reached by its service: that of the old owner ends, and another one
//! starts for the new owner.

use std::sync::Arc;
use std::time::Duration;

use venice_control::{DonorStatus, Refusal, TransferStep};
use venice_fabric::RecipientId;
use venice_memory::donor::Slab;
use venice_ports::monotonic_ns;
use venice_rack::donor::Switched;
use venice_wire::GrantId;

use crate::lender::{Lender, State};

/// Interval between two checks whether answers to the old owner are sent.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Reason of the refusal of mapped memory.
const MAPPED: &str = "its memory was mapped by a program (port shm), and a mapping cannot be taken \
                      away from a program: use --port udp for memory that is to be transferred";

impl Lender {
    /// Promises to transfer a grant. Its memory is not handed out meanwhile.
    pub(crate) fn prepare_transfer(
        self: &Arc<Self>,
        step: &TransferStep,
    ) -> Result<DonorStatus, Refusal> {
        let mut state = self.state();
        let now_ns = state.now_ns();
        let mut result = state.core.handle_prepare_transfer(now_ns, step);
        let until_ns = monotonic_ns().saturating_add(self.prepare_timeout_ns());
        if result.is_ok() && !self.grants().lock().hold_files(step.from, until_ns) {
            state.core.handle_abort_transfer(now_ns, step.from, step.grant);
            result = Err(Refusal::Failed(MAPPED.to_owned()));
        }
        self.carry_out(state);
        // There may be another deadline.
        self.notify_deadlines();
        result
    }

    /// Withdraws the promise.
    pub(crate) fn abort_transfer(self: &Arc<Self>, from: GrantId, grant: GrantId) -> DonorStatus {
        let mut state = self.state();
        let now_ns = state.now_ns();
        let was_promised = state.core.promised(from) == Some(grant);
        let status = state.core.handle_abort_transfer(now_ns, from, grant);
        if was_promised {
            self.grants().lock().hold_files(from, 0);
        }
        self.carry_out(state);
        status
    }

    /// Transfers a grant; completes when the new owner alone is answered. That happens whatever
    /// becomes of this call.
    pub(crate) async fn commit_transfer(
        self: &Arc<Self>,
        step: &TransferStep,
    ) -> Result<DonorStatus, Refusal> {
        let status = self.switch(step)?;
        let (lender, grant) = (Arc::clone(self), step.grant);
        let begun = tokio::spawn(async move {
            while !lender.begin_successor(grant) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            lender.notify_deadlines();
        });
        begun.await.expect("no task panics with a successor");
        Ok(status)
    }

    /// Ends the old number and key at every port, and sets the memory aside for the new ones.
    fn switch(self: &Arc<Self>, step: &TransferStep) -> Result<DonorStatus, Refusal> {
        let mut state = self.state();
        let now_ns = state.now_ns();
        // The promise was over, and the owner has mapped the memory since.
        if !self.grants().lock().hold_files(step.from, u64::MAX) {
            state.core.handle_release(now_ns, step.from);
            self.carry_out(state);
            return Err(Refusal::UnknownGrant);
        }
        let result = state.core.handle_transfer(now_ns, step);
        match &result {
            Ok(Switched::New(_)) => {
                tracing::info!(from = %step.from, to = %step.grant, owner = %step.owner, "transferred");
                let slabs = match state.set_aside.remove(&step.from) {
                    Some(none) => {
                        self.transfer_service(&state, step);
                        Some(none)
                    }
                    None => self.end_at_ports(&mut state, step.from),
                };
                state.set_aside.extend(slabs.map(|slabs| (step.grant, slabs)));
            }
            Ok(Switched::Repeated(_)) => {}
            Err(_) => drop(self.grants().lock().hold_files(step.from, 0)),
        }
        self.carry_out(state);
        result.map(Switched::status)
    }

    /// A device is reached by its service, which the old owner must not reach any more.
    fn transfer_service(&self, state: &State, step: &TransferStep) {
        let Some(share) = state.core.share(step.grant) else { return };
        let (secret, why) =
            (self.ports().node_secret(), format!("it was transferred to {}", step.owner));
        let share = (share, &step.owner);
        self.services.transfer(step.from, (step.grant, step.key), share, secret, why);
    }

    /// Begins the new number and key; false as long as an answer to the old owner is to be sent
    /// from the memory.
    fn begin_successor(&self, grant: GrantId) -> bool {
        let mut state = self.state();
        let Some(slabs) = state.set_aside.get(&grant) else { return true };
        if !slabs.iter().all(Slab::is_unlent) {
            return false;
        }
        let view = state.core.grant(grant).filter(|view| view.slabs > 0);
        if let Some(view) = view
            && let Some(slabs) = state.set_aside.remove(&grant)
        {
            self.share(RecipientId(view.recipient), grant, view.key, slabs);
        }
        true
    }
}
