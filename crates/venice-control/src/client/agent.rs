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
use venice_rack::monitor_node::{DonorAnswer, DonorCall};
use venice_rack::types::{DonorStatus, LeaseState, Pong, Refusal};
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

    /// Makes a call of the Monitor Node.
    ///
    /// # Errors
    /// [`ControlError::Refused`] with the donor's reason, also for an agent of an earlier release,
    /// which does not know transfers. Aborts, releases and pings fail only when the agent cannot be
    /// reached.
    pub async fn call(&mut self, call: DonorCall) -> Result<DonorAnswer, ControlError> {
        let inner = &mut self.inner;
        let response = match call {
            DonorCall::Prepare(request) => inner.prepare(convert::prepare_out(request)).await,
            DonorCall::Commit { grant, donor_epoch } => {
                inner.commit(proto::CommitGrantRequest { grant: grant.0, donor_epoch }).await
            }
            DonorCall::Abort(grant) => {
                inner.abort(proto::AbortGrantRequest { grant: grant.0 }).await
            }
            DonorCall::Release(grants) => {
                let grants = grants.into_iter().map(|grant| grant.0).collect();
                inner.release(proto::AgentReleaseRequest { grants }).await
            }
            DonorCall::PrepareTransfer(step) => {
                let response = inner.prepare_transfer(convert::transfer_step_out(step)).await;
                if response.as_ref().is_err_and(|status| status.code() == Code::Unimplemented) {
                    let why =
                        "its agent is of an earlier release, which transfers no grants: upgrade it";
                    return Err(ControlError::Refused(Refusal::Failed(why.to_owned())));
                }
                response
            }
            DonorCall::CommitTransfer(step) => {
                inner.commit_transfer(convert::transfer_step_out(step)).await
            }
            DonorCall::AbortTransfer { from, grant } => {
                let (from, grant) = (from.0, grant.0);
                inner.abort_transfer(proto::AbortTransferRequest { from, grant }).await
            }
            DonorCall::Ping => return self.ping().await.map(DonorAnswer::Pong),
        };
        self.step(response).map(DonorAnswer::Status)
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
