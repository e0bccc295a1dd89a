//! A caller of a node's agent.

use super::channel::{self, Target};
use super::login::Login;
use super::services::ServiceWatch;
use crate::convert;
use crate::error::{ControlError, PeerKind};
use crate::proto::{self, StepResponse, node_agent_client::NodeAgentClient};
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};
use venice_rack::types::{DonorStatus, LeaseState, Pong, PrepareRequest, Refusal, TransferStep};
use venice_wire::{GrantId, GrantKey};

/// A connection to an agent. Cheap to clone; clones share the connection.
#[derive(Debug, Clone)]
pub struct AgentClient {
    addr: String,
    inner: NodeAgentClient<Channel>,
}

impl AgentClient {
    /// Connects to the agent of the node `name` at `addr` (`host:port`). `timeout` bounds the
    /// connection and each call over it.
    ///
    /// # Errors
    /// [`ControlError::Unreachable`] when nobody answers, [`ControlError::WrongPeer`] when another
    /// node does, [`ControlError::NoLogin`], [`ControlError::BadAddress`].
    pub async fn connect(
        login: &Login,
        name: &str,
        addr: &str,
        timeout: Duration,
    ) -> Result<Self, ControlError> {
        let whom = Target::Agent(name.to_owned());
        let channel = channel::open(whom, addr, login, timeout, timeout).await?;
        Ok(Self { addr: addr.to_owned(), inner: NodeAgentClient::new(channel) })
    }

    /// The address connected to.
    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// Reserves slabs for a grant.
    ///
    /// # Errors
    /// [`ControlError::Refused`] with the donor's reason.
    pub async fn prepare(&mut self, request: PrepareRequest) -> Result<DonorStatus, ControlError> {
        let response = self.inner.prepare(convert::prepare_out(request)).await;
        self.step(response)
    }

    /// Lends what was reserved.
    ///
    /// # Errors
    /// [`ControlError::Refused`] if the reservation has ended.
    pub async fn commit(
        &mut self,
        grant: GrantId,
        donor_epoch: u64,
    ) -> Result<DonorStatus, ControlError> {
        let request = proto::CommitGrantRequest { grant: grant.0, donor_epoch };
        let response = self.inner.commit(request).await;
        self.step(response)
    }

    /// Releases what was reserved.
    ///
    /// # Errors
    /// Only when the agent cannot be reached.
    pub async fn abort(&mut self, grant: GrantId) -> Result<DonorStatus, ControlError> {
        let response = self.inner.abort(proto::AbortGrantRequest { grant: grant.0 }).await;
        self.step(response)
    }

    /// Revokes grants in any state; unknown grants are no error.
    ///
    /// # Errors
    /// Only when the agent cannot be reached.
    pub async fn release(&mut self, ids: &[GrantId]) -> Result<DonorStatus, ControlError> {
        let request = proto::AgentReleaseRequest { grants: ids.iter().map(|id| id.0).collect() };
        let response = self.inner.release(request).await;
        self.step(response)
    }

    /// Prepares a transfer.
    ///
    /// # Errors
    /// [`ControlError::Refused`] with the donor's reason, also for an agent of an earlier release,
    /// which does not know the call.
    pub async fn prepare_transfer(
        &mut self,
        step: TransferStep,
    ) -> Result<DonorStatus, ControlError> {
        let response = self.inner.prepare_transfer(convert::transfer_step_out(step)).await;
        if response.as_ref().is_err_and(|status| status.code() == Code::Unimplemented) {
            let why = "its agent is of an earlier release, which transfers no grants: upgrade it";
            return Err(ControlError::Refused(Refusal::Failed(why.to_owned())));
        }
        self.step(response)
    }

    /// Executes a transfer.
    ///
    /// # Errors
    /// [`ControlError::Refused`] if the grant has ended.
    pub async fn commit_transfer(
        &mut self,
        step: TransferStep,
    ) -> Result<DonorStatus, ControlError> {
        let response = self.inner.commit_transfer(convert::transfer_step_out(step)).await;
        self.step(response)
    }

    /// Calls a prepared transfer off.
    ///
    /// # Errors
    /// Only when the agent cannot be reached.
    pub async fn abort_transfer(
        &mut self,
        from: GrantId,
        grant: GrantId,
    ) -> Result<DonorStatus, ControlError> {
        let request = proto::AbortTransferRequest { from: from.0, grant: grant.0 };
        let response = self.inner.abort_transfer(request).await;
        self.step(response)
    }

    /// Releases grants by their keys.
    ///
    /// # Errors
    /// Only when the agent cannot be reached.
    pub async fn give_back(
        &mut self,
        leases: &[(GrantId, GrantKey)],
    ) -> Result<DonorStatus, ControlError> {
        let request = proto::GiveBackRequest { leases: convert::leases_out(leases) };
        let response = self.inner.give_back(request).await;
        self.step(response)
    }

    /// Renews leases; the answers are in the order of `leases`.
    ///
    /// # Errors
    /// Only when the agent cannot be reached: a lease that is gone is [`LeaseState::Unknown`].
    pub async fn renew(
        &mut self,
        leases: &[(GrantId, GrantKey)],
    ) -> Result<Vec<LeaseState>, ControlError> {
        let request = proto::RenewLeasesRequest { leases: convert::leases_out(leases) };
        let response = self.inner.renew_leases(request).await.map_err(|s| self.error(s))?;
        let states: Vec<_> =
            response.into_inner().leases.into_iter().map(convert::lease_in).collect();
        if states.len() != leases.len() {
            return Err(ControlError::Peer {
                peer: PeerKind::Agent,
                addr: self.addr.clone(),
                message: format!("{} leases asked, {} answered", leases.len(), states.len()),
            });
        }
        Ok(states)
    }

    /// Watches the service of a grant. An agent of a release without services has none.
    ///
    /// # Errors
    /// [`ControlError::Refused`] if there is no such grant, the key is wrong, or too many watch it;
    /// [`ControlError::Unreachable`].
    pub async fn watch_service(
        &mut self,
        lease: (GrantId, GrantKey),
    ) -> Result<ServiceWatch, ControlError> {
        let lease = convert::leases_out(&[lease]).pop();
        let called = self.inner.watch_service(proto::WatchServiceRequest { lease }).await;
        let states = match called {
            Ok(response) => Some(response.into_inner()),
            Err(status) if status.code() == tonic::Code::Unimplemented => None,
            Err(status) => return Err(self.error(status)),
        };
        Ok(ServiceWatch { addr: self.addr.clone(), states, is_first: true })
    }

    /// Returns the agent's name and instance.
    ///
    /// # Errors
    /// Only when the agent cannot be reached.
    pub async fn ping(&mut self) -> Result<Pong, ControlError> {
        let response = self.inner.ping(proto::PingRequest {}).await.map_err(|s| self.error(s))?;
        let proto::PingResponse { name, instance } = response.into_inner();
        Ok(Pong { name, instance })
    }

    fn step(
        &self,
        response: Result<Response<StepResponse>, Status>,
    ) -> Result<DonorStatus, ControlError> {
        let response = response.map_err(|s| self.error(s))?;
        convert::status_in(response.into_inner().status).map_err(|s| self.error(s))
    }

    fn error(&self, status: Status) -> ControlError {
        ControlError::from_status(PeerKind::Agent, &self.addr, status)
    }
}
