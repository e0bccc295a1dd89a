//! The agent's gRPC service over the lender.

use std::sync::Arc;

use tokio::sync::watch;
use venice_control::server::{AgentHandler, TlsServer};
use venice_control::{Caller, DonorAnswer, DonorCall, LeaseState, Refusal, ServiceState};
use venice_wire::{GrantId, GrantKey};

use crate::lender::Lender;

/// Answers the Monitor Node's handshakes and the recipients' renewals.
#[derive(Debug)]
pub(crate) struct Handler {
    pub(crate) lender: Arc<Lender>,
    pub(crate) tls: Arc<TlsServer>,
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
    async fn call(&self, call: DonorCall) -> Result<DonorAnswer, Refusal> {
        self.lender.call(call).await
    }

    async fn give_back(
        &self,
        caller: Caller,
        leases: Vec<(GrantId, GrantKey)>,
    ) -> Result<DonorAnswer, Refusal> {
        self.note_wrong_keys(&caller, &leases);
        self.lender.give_back(&leases).await
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
}
