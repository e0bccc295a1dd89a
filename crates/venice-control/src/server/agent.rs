//! The NodeAgent service over an [`AgentHandler`].

use super::accept::Connections;
use super::listen::{ServeError, transport};
use super::services::{States, states};
use super::tls_server::TlsServer;
use crate::convert;
use crate::error::refusal_status;
use crate::proto::{
    self, StepResponse,
    node_agent_server::{NodeAgent, NodeAgentServer},
};
use std::future::Future;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use venice_rack::caller::Caller;
use venice_rack::monitor_node::{DonorAnswer, DonorCall};
use venice_rack::types::{LeaseState, Pong, Refusal, ServiceState};
use venice_wire::{GrantId, GrantKey};

/// The calls of an agent. Write the methods as `async fn`. Every call may be repeated, and calls
/// may run concurrently.
pub trait AgentHandler: Send + Sync + 'static {
    /// Executes a call of the Monitor Node. The grants of a release are free once it is answered.
    fn call(&self, call: DonorCall) -> impl Future<Output = Result<DonorAnswer, Refusal>> + Send;

    /// Releases the grants whose keys are right. Answer when they are free.
    fn give_back(
        &self,
        caller: Caller,
        leases: Vec<(GrantId, GrantKey)>,
    ) -> impl Future<Output = Result<DonorAnswer, Refusal>> + Send;

    /// Renews leases; returns one state for each, in order.
    fn renew(
        &self,
        caller: Caller,
        leases: Vec<(GrantId, GrantKey)>,
    ) -> impl Future<Output = Vec<LeaseState>> + Send;

    /// Returns the watch of the service of a grant, for a recipient that shows its key. It ends when
    /// its sender is dropped. The default is that of an agent without services.
    fn service(
        &self,
        _caller: Caller,
        _lease: (GrantId, GrantKey),
    ) -> impl Future<Output = Result<watch::Receiver<ServiceState>, Refusal>> + Send {
        async { Ok(watch::channel(ServiceState::None).1) }
    }
}

/// Serves the agent's calls until `shutdown` completes, to callers that `tls` admits.
///
/// # Errors
/// [`ServeError::Serve`] when the service fails.
pub async fn serve_agent<H: AgentHandler>(
    listener: TcpListener,
    tls: Arc<TlsServer>,
    handler: Arc<H>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let accept = Connections::at(&tls, listener)?;
    transport()
        .add_service(NodeAgentServer::new(Service { handler, tls }))
        .serve_with_incoming_shutdown(accept, shutdown)
        .await
        .map_err(ServeError::Serve)
}

struct Service<H> {
    handler: Arc<H>,
    tls: Arc<TlsServer>,
}

impl<H> Service<H> {
    /// Admits the Monitor Node only: it leads the grant handshake.
    fn admit_monitor<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let is_monitor = |caller: &Caller| *caller == Caller::Monitor;
        self.tls.admit_if(request, "the Monitor Node", is_monitor).map(drop)
    }
}

/// Returns the response to a call that changes grants.
fn step(answer: Result<DonorAnswer, Refusal>) -> Result<Response<StepResponse>, Status> {
    match answer {
        Ok(DonorAnswer::Status(status)) => {
            Ok(Response::new(StepResponse { status: Some(convert::status_out(status)) }))
        }
        Ok(DonorAnswer::Pong(_)) => Err(Status::internal("the agent took it for a ping")),
        Err(refusal) => Err(refusal_status(&refusal)),
    }
}

#[tonic::async_trait]
impl<H: AgentHandler> NodeAgent for Service<H> {
    type WatchServiceStream = States;

    async fn watch_service(
        &self,
        request: Request<proto::WatchServiceRequest>,
    ) -> Result<Response<States>, Status> {
        let caller = self.tls.admit(&request)?;
        let lease = convert::leases_in(request.into_inner().lease.into_iter().collect()).pop();
        let lease = lease.ok_or_else(|| Status::invalid_argument("lease is missing"))?;
        let watched = self.handler.service(caller, lease).await;
        watched.map(|it| Response::new(states(it))).map_err(|refusal| refusal_status(&refusal))
    }

    async fn prepare(
        &self,
        request: Request<proto::PrepareGrantRequest>,
    ) -> Result<Response<StepResponse>, Status> {
        self.admit_monitor(&request)?;
        let request = convert::prepare_in(request.into_inner())?;
        step(self.handler.call(DonorCall::Prepare(request)).await)
    }

    async fn commit(
        &self,
        request: Request<proto::CommitGrantRequest>,
    ) -> Result<Response<StepResponse>, Status> {
        self.admit_monitor(&request)?;
        let proto::CommitGrantRequest { grant, donor_epoch } = request.into_inner();
        step(self.handler.call(DonorCall::Commit { grant: GrantId(grant), donor_epoch }).await)
    }

    async fn abort(
        &self,
        request: Request<proto::AbortGrantRequest>,
    ) -> Result<Response<StepResponse>, Status> {
        self.admit_monitor(&request)?;
        step(self.handler.call(DonorCall::Abort(GrantId(request.into_inner().grant))).await)
    }

    async fn release(
        &self,
        request: Request<proto::AgentReleaseRequest>,
    ) -> Result<Response<StepResponse>, Status> {
        self.admit_monitor(&request)?;
        let grants = request.into_inner().grants.into_iter().map(GrantId).collect();
        step(self.handler.call(DonorCall::Release(grants)).await)
    }

    async fn prepare_transfer(
        &self,
        request: Request<proto::TransferStep>,
    ) -> Result<Response<StepResponse>, Status> {
        self.admit_monitor(&request)?;
        let transfer = convert::transfer_step_in(request.into_inner())?;
        step(self.handler.call(DonorCall::PrepareTransfer(transfer)).await)
    }

    async fn commit_transfer(
        &self,
        request: Request<proto::TransferStep>,
    ) -> Result<Response<StepResponse>, Status> {
        self.admit_monitor(&request)?;
        let transfer = convert::transfer_step_in(request.into_inner())?;
        step(self.handler.call(DonorCall::CommitTransfer(transfer)).await)
    }

    async fn abort_transfer(
        &self,
        request: Request<proto::AbortTransferRequest>,
    ) -> Result<Response<StepResponse>, Status> {
        self.admit_monitor(&request)?;
        let proto::AbortTransferRequest { from, grant } = request.into_inner();
        let (from, grant) = (GrantId(from), GrantId(grant));
        step(self.handler.call(DonorCall::AbortTransfer { from, grant }).await)
    }

    async fn give_back(
        &self,
        request: Request<proto::GiveBackRequest>,
    ) -> Result<Response<StepResponse>, Status> {
        let caller = self.tls.admit(&request)?;
        let leases = convert::leases_in(request.into_inner().leases);
        step(self.handler.give_back(caller, leases).await)
    }

    async fn renew_leases(
        &self,
        request: Request<proto::RenewLeasesRequest>,
    ) -> Result<Response<proto::RenewLeasesResponse>, Status> {
        let caller = self.tls.admit(&request)?;
        let states =
            self.handler.renew(caller, convert::leases_in(request.into_inner().leases)).await;
        let leases = states.into_iter().map(convert::lease_out).collect();
        Ok(Response::new(proto::RenewLeasesResponse { leases }))
    }

    async fn ping(
        &self,
        request: Request<proto::PingRequest>,
    ) -> Result<Response<proto::PingResponse>, Status> {
        self.tls.admit(&request)?;
        match self.handler.call(DonorCall::Ping).await {
            Ok(DonorAnswer::Pong(Pong { name, instance })) => {
                Ok(Response::new(proto::PingResponse { name, instance }))
            }
            Ok(DonorAnswer::Status(_)) => Err(Status::internal("the agent took no ping")),
            Err(refusal) => Err(refusal_status(&refusal)),
        }
    }
}
