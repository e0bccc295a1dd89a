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
use venice_rack::types::{
    DonorStatus, LeaseState, Pong, PrepareRequest, Refusal, ServiceState, TransferStep,
};
use venice_wire::{GrantId, GrantKey};

/// The calls of an agent. Write the methods as `async fn`. Every call may be repeated, and calls
/// may run concurrently.
pub trait AgentHandler: Send + Sync + 'static {
    /// Reserves slabs, or a device, for a grant.
    fn prepare(
        &self,
        request: PrepareRequest,
    ) -> impl Future<Output = Result<DonorStatus, Refusal>> + Send;

    /// Lends what was reserved.
    fn commit(
        &self,
        grant: GrantId,
        donor_epoch: u64,
    ) -> impl Future<Output = Result<DonorStatus, Refusal>> + Send;

    /// Releases what was reserved.
    fn abort(&self, grant: GrantId) -> impl Future<Output = DonorStatus> + Send;

    /// Revokes grants. Answer when the slabs are free again.
    fn release(&self, grants: Vec<GrantId>) -> impl Future<Output = DonorStatus> + Send;

    /// Promises to give a grant to a successor. By default refused.
    fn prepare_transfer(
        &self,
        step: TransferStep,
    ) -> impl Future<Output = Result<DonorStatus, Refusal>> + Send {
        let _ = step;
        async { Err(Refusal::Failed("it transfers no grants".to_owned())) }
    }

    /// Gives a grant to its successor. By default refused.
    fn commit_transfer(
        &self,
        step: TransferStep,
    ) -> impl Future<Output = Result<DonorStatus, Refusal>> + Send {
        let _ = step;
        async { Err(Refusal::UnknownGrant) }
    }

    /// Withdraws the promise of a grant to a successor. By default refused, as there is none.
    fn abort_transfer(
        &self,
        from: GrantId,
        grant: GrantId,
    ) -> impl Future<Output = Result<DonorStatus, Refusal>> + Send {
        let _ = (from, grant);
        async { Err(Refusal::UnknownGrant) }
    }

    /// Releases the grants whose keys are right. Answer when the slabs are free again.
    fn give_back(
        &self,
        caller: Caller,
        leases: Vec<(GrantId, GrantKey)>,
    ) -> impl Future<Output = DonorStatus> + Send;

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

    /// Returns the agent's name and instance.
    fn ping(&self) -> impl Future<Output = Pong> + Send;
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

fn step(status: DonorStatus) -> Response<StepResponse> {
    Response::new(StepResponse { status: Some(convert::status_out(status)) })
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
        self.handler.prepare(request).await.map(step).map_err(|refusal| refusal_status(&refusal))
    }

    async fn commit(
        &self,
        request: Request<proto::CommitGrantRequest>,
    ) -> Result<Response<StepResponse>, Status> {
        self.admit_monitor(&request)?;
        let proto::CommitGrantRequest { grant, donor_epoch } = request.into_inner();
        let committed = self.handler.commit(GrantId(grant), donor_epoch).await;
        committed.map(step).map_err(|refusal| refusal_status(&refusal))
    }

    async fn abort(
        &self,
        request: Request<proto::AbortGrantRequest>,
    ) -> Result<Response<StepResponse>, Status> {
        self.admit_monitor(&request)?;
        Ok(step(self.handler.abort(GrantId(request.into_inner().grant)).await))
    }

    async fn release(
        &self,
        request: Request<proto::AgentReleaseRequest>,
    ) -> Result<Response<StepResponse>, Status> {
        self.admit_monitor(&request)?;
        let grants = request.into_inner().grants.into_iter().map(GrantId).collect();
        Ok(step(self.handler.release(grants).await))
    }

    async fn prepare_transfer(
        &self,
        request: Request<proto::TransferStep>,
    ) -> Result<Response<StepResponse>, Status> {
        self.admit_monitor(&request)?;
        let transfer = convert::transfer_step_in(request.into_inner())?;
        let promised = self.handler.prepare_transfer(transfer).await;
        promised.map(step).map_err(|refusal| refusal_status(&refusal))
    }

    async fn commit_transfer(
        &self,
        request: Request<proto::TransferStep>,
    ) -> Result<Response<StepResponse>, Status> {
        self.admit_monitor(&request)?;
        let transfer = convert::transfer_step_in(request.into_inner())?;
        let switched = self.handler.commit_transfer(transfer).await;
        switched.map(step).map_err(|refusal| refusal_status(&refusal))
    }

    async fn abort_transfer(
        &self,
        request: Request<proto::AbortTransferRequest>,
    ) -> Result<Response<StepResponse>, Status> {
        self.admit_monitor(&request)?;
        let proto::AbortTransferRequest { from, grant } = request.into_inner();
        let aborted = self.handler.abort_transfer(GrantId(from), GrantId(grant)).await;
        aborted.map(step).map_err(|refusal| refusal_status(&refusal))
    }

    async fn give_back(
        &self,
        request: Request<proto::GiveBackRequest>,
    ) -> Result<Response<StepResponse>, Status> {
        let caller = self.tls.admit(&request)?;
        let leases = convert::leases_in(request.into_inner().leases);
        Ok(step(self.handler.give_back(caller, leases).await))
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
        let Pong { name, instance } = self.handler.ping().await;
        Ok(Response::new(proto::PingResponse { name, instance }))
    }
}
