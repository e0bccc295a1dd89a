//! The agent's gRPC service over the lender.

use std::sync::Arc;

use tokio::sync::watch;
use venice_control::server::{AgentHandler, TlsServer};
use venice_control::{
    Caller, DonorStatus, LeaseState, Pong, PrepareRequest, Refusal, ServiceState, TransferStep,
};
use venice_wire::{GrantId, GrantKey};

use crate::lender::Lender;

/// Answers the Monitor Node's handshakes and the recipients' renewals.
#[derive(Debug)]
pub(crate) struct Handler {
    pub(crate) lender: Arc<Lender>,
    pub(crate) tls: Arc<TlsServer>,
    pub(crate) name: String,
    pub(crate) instance: u64,
}

impl Handler {
    /// Counts wrong keys. A grant that has ended is no fault; a living grant with another key is.
    fn note_wrong_keys(&self, caller: &Caller, leases: &[(GrantId, GrantKey)]) {
        for lease in leases.iter().filter(|lease| self.lender.key_fits(lease) == Some(false)) {
            self.tls.refuse_key(caller, lease.0.0);
        }
    }
}

impl AgentHandler for Handler {
    async fn prepare(&self, request: PrepareRequest) -> Result<DonorStatus, Refusal> {
        self.lender.prepare(request)
    }

    async fn commit(&self, grant: GrantId, donor_epoch: u64) -> Result<DonorStatus, Refusal> {
        self.lender.commit(grant, donor_epoch)
    }

    async fn abort(&self, grant: GrantId) -> DonorStatus {
        self.lender.abort(grant)
    }

    async fn release(&self, grants: Vec<GrantId>) -> DonorStatus {
        self.lender.release(&grants).await
    }

    async fn prepare_transfer(&self, step: TransferStep) -> Result<DonorStatus, Refusal> {
        self.lender.prepare_transfer(&step)
    }

    async fn commit_transfer(&self, step: TransferStep) -> Result<DonorStatus, Refusal> {
        self.lender.commit_transfer(&step).await
    }

    async fn abort_transfer(&self, from: GrantId, grant: GrantId) -> Result<DonorStatus, Refusal> {
        Ok(self.lender.abort_transfer(from, grant))
    }

    async fn give_back(&self, caller: Caller, leases: Vec<(GrantId, GrantKey)>) -> DonorStatus {
        self.note_wrong_keys(&caller, &leases);
        let is_right = |lease: &&(GrantId, GrantKey)| self.lender.key_fits(lease) == Some(true);
        let grants: Vec<GrantId> =
            leases.iter().filter(is_right).map(|(grant, _)| *grant).collect();
        self.lender.release(&grants).await
    }

    async fn renew(&self, caller: Caller, leases: Vec<(GrantId, GrantKey)>) -> Vec<LeaseState> {
        self.note_wrong_keys(&caller, &leases);
        self.lender.renew(&leases)
    }

    async fn service(
        &self,
        caller: Caller,
        lease: (GrantId, GrantKey),
    ) -> Result<watch::Receiver<ServiceState>, Refusal> {
        self.note_wrong_keys(&caller, &[lease]);
        self.lender.watch_service(lease)
    }

    async fn ping(&self) -> Pong {
        Pong { name: self.name.clone(), instance: self.instance }
    }
}
