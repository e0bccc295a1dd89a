//! The agent's gRPC service over the lender.

use std::sync::Arc;

use venice_control::server::AgentHandler;
use venice_control::{DonorStatus, LeaseState, Pong, PrepareRequest, Refusal};
use venice_wire::{GrantId, GrantKey};

use crate::lender::Lender;

/// Answers the Monitor Node's handshakes and the recipients' renewals.
#[derive(Debug)]
pub(crate) struct Handler {
    pub(crate) lender: Arc<Lender>,
    pub(crate) name: String,
    pub(crate) instance: u64,
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

    async fn renew(&self, leases: Vec<(GrantId, GrantKey)>) -> Vec<LeaseState> {
        self.lender.renew(&leases)
    }

    async fn ping(&self) -> Pong {
        Pong { name: self.name.clone(), instance: self.instance }
    }
}
