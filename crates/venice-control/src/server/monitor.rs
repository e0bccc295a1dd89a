//! The MonitorNode service over a [`MonitorHandler`].

use super::accept::Connections;
use super::audit::audit;
use super::call_limiter::{CallLimit, CallLimiter};
use super::enrolment::{ADMINS, EnrolmentHandler, EnrolmentService};
use super::events::{self, Events, Watches};
use super::heartbeats::{Answers, Heartbeats};
use super::listen::{ServeError, transport};
use super::monitor_handler::MonitorHandler;
use super::tls_server::TlsServer;
use crate::convert;
use crate::error::rack_status;
use crate::proto::{
    self,
    gate_server::GateServer,
    monitor_node_server::{MonitorNode, MonitorNodeServer},
};
use std::future::Future;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::transport::server::Router;
use tonic::{Request, Response, Status, Streaming};
use tower::layer::util::{Identity, Stack};
use venice_rack::caller::{Caller, Owner, User};
use venice_rack::queueing::{DEFAULT_PRIORITY, Preempt, Queueing};
use venice_rack::quota::{QuotaFor, QuotaRecord};
use venice_rack::types::AllocationRequest;

/// Serves the Monitor Node's calls until `shutdown` completes, to callers that `tls` admits: nodes
/// in the runtime `nodes`, where handshakes run too, other callers in the current runtime. Thus
/// thousands of reporting agents do not delay a program's request. A user, other than an
/// administrator, has at most `calls_of_user` calls in flight.
///
/// # Errors
/// [`ServeError::Serve`] when the service fails.
pub async fn serve_monitor<H: MonitorHandler + EnrolmentHandler>(
    listener: TcpListener,
    tls: Arc<TlsServer>,
    handler: Arc<H>,
    (nodes, calls_of_user): (&Handle, usize),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let (of_nodes, of_others) = Connections::apart(&tls, listener, nodes)?;
    let (stop, mut stopped) = watch::channel(());
    let limit = CallLimit(CallLimiter::new(calls_of_user, Arc::clone(&tls)));
    let watches = Arc::default();
    let router = || router((&tls, &watches), &handler, &stopped, limit.clone());
    let (to_nodes, to_others) = (router(), router());
    // A set, so that the task is aborted when this future is dropped.
    let mut beside = JoinSet::new();
    let served = async move {
        let stopped = async { drop(stopped.changed().await) };
        to_nodes.serve_with_incoming_shutdown(of_nodes, stopped).await
    };
    beside.spawn_on(served, nodes);
    let shutdown = async {
        shutdown.await;
        drop(stop);
    };
    to_others.serve_with_incoming_shutdown(of_others, shutdown).await.map_err(ServeError::Serve)?;
    match beside.join_next().await {
        Some(Ok(served)) => served.map_err(ServeError::Serve),
        // The runtime is gone, and with it its callers.
        Some(Err(_)) | None => Ok(()),
    }
}

/// Returns the router of all services.
fn router<H: MonitorHandler + EnrolmentHandler>(
    (tls, watches): (&Arc<TlsServer>, &Arc<Watches>),
    handler: &Arc<H>,
    serving: &watch::Receiver<()>,
    limit: CallLimit,
) -> Router<Stack<CallLimit, Identity>> {
    let (tls, handler) = (Arc::clone(tls), Arc::clone(handler));
    let enrolment = EnrolmentService::new(Arc::clone(&handler), Arc::clone(&tls));
    transport()
        .layer(limit)
        .add_service(MonitorNodeServer::new(Service {
            handler,
            tls,
            serving: serving.clone(),
            watches: Arc::clone(watches),
        }))
        .add_service(GateServer::new(enrolment))
}

struct Service<H> {
    handler: Arc<H>,
    tls: Arc<TlsServer>,
    /// Its sender is dropped when serving ends: open calls end then.
    serving: watch::Receiver<()>,
    watches: Arc<Watches>,
}

impl<H> Service<H> {
    /// Authenticates a program and parses its request.
    fn request_of(
        &self,
        request: Request<proto::AllocateRequest>,
    ) -> Result<(Owner, AllocationRequest), Status> {
        let user = self.program(&request)?;
        let request = request.into_inner();
        let is_bound = request.is_bound;
        let mut request = convert::request_in(request)?;
        self.allow(&user, &mut request.queueing)?;
        Ok((Owner { is_bound, ..user.into() }, request))
    }

    /// Checks the user's right to this priority, and sets whose grants may be preempted and whether
    /// bounds apply.
    fn allow(&self, user: &User, queueing: &mut Queueing) -> Result<(), Status> {
        queueing.is_admin = user.is_admin;
        if queueing.preempt != Preempt::No && user.is_admin {
            queueing.preempt = Preempt::All;
        }
        if queueing.priority > DEFAULT_PRIORITY && !user.is_admin {
            let who = format!("{ADMINS} (for priorities above {DEFAULT_PRIORITY})");
            return Err(self.tls.forbid(&Caller::User(user.clone()), &who));
        }
        Ok(())
    }

    fn program<T>(&self, request: &Request<T>) -> Result<User, Status> {
        let caller = self.tls.admit(request)?;
        let Caller::User(user) = caller else { return Err(self.tls.forbid(&caller, "programs")) };
        Ok(user)
    }
}

fn quota_of(user: Option<String>) -> Result<QuotaFor, Status> {
    let user = user.map(convert::user_name_in).transpose()?;
    Ok(user.map_or(QuotaFor::Others, QuotaFor::User))
}

fn whose(of: &QuotaFor) -> &str {
    match of {
        QuotaFor::User(user) => user,
        QuotaFor::Others => "all others",
    }
}

fn is_node(caller: &Caller, name: &str) -> bool {
    matches!(caller, Caller::Node(node) if node == name)
}

#[tonic::async_trait]
impl<H: MonitorHandler> MonitorNode for Service<H> {
    async fn register_node(
        &self,
        request: Request<proto::RegisterNodeRequest>,
    ) -> Result<Response<proto::RegisterNodeResponse>, Status> {
        let name = request.get_ref().name.clone();
        self.tls.admit_if(&request, &format!("node {name}"), |who| is_node(who, &name))?;
        let node = convert::registration_in(request.into_inner())?;
        let registered = self.handler.register(node).await.map_err(|e| rack_status(&e))?;
        Ok(Response::new(convert::registered_out(registered)))
    }

    type HeartbeatsStream = Answers;

    async fn heartbeats(
        &self,
        request: Request<Streaming<proto::HeartbeatRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let (handler, tls) = (Arc::clone(&self.handler), Arc::clone(&self.tls));
        let serving = self.serving.clone();
        Heartbeats { handler, tls, serving }.answer(request).map(Response::new)
    }

    async fn farewell(
        &self,
        request: Request<proto::FarewellRequest>,
    ) -> Result<Response<proto::FarewellResponse>, Status> {
        let caller = self.tls.admit(&request)?;
        let Caller::Node(name) = caller else { return Err(self.tls.forbid(&caller, "agents")) };
        let proto::FarewellRequest { identity, instance } = request.into_inner();
        let identity = convert::identity_in(identity)?;
        self.handler.deregister(name, identity, instance).await.map_err(|e| rack_status(&e))?;
        Ok(Response::new(proto::FarewellResponse {}))
    }

    async fn allocate(
        &self,
        request: Request<proto::AllocateRequest>,
    ) -> Result<Response<proto::AllocateResponse>, Status> {
        let (owner, request) = self.request_of(request)?;
        let asked = self.handler.allocate(owner, request).await;
        Ok(Response::new(convert::asked_out(asked.map_err(|e| rack_status(&e))?)))
    }

    async fn plan_allocation(
        &self,
        request: Request<proto::AllocateRequest>,
    ) -> Result<Response<proto::PlanAllocationResponse>, Status> {
        let (owner, request) = self.request_of(request)?;
        let plan = self.handler.plan(owner, request).await.map_err(|e| rack_status(&e))?;
        Ok(Response::new(convert::plan_out(plan)))
    }

    async fn request_memory(
        &self,
        request: Request<proto::RequestMemoryRequest>,
    ) -> Result<Response<proto::RequestMemoryResponse>, Status> {
        let answer = self.allocate(request.map(convert::memory_request_in)).await?;
        let proto::AllocateResponse { grants, standing } = answer.into_inner();
        Ok(Response::new(proto::RequestMemoryResponse { grants, standing }))
    }

    async fn leave_queue(
        &self,
        request: Request<proto::LeaveQueueRequest>,
    ) -> Result<Response<proto::LeaveQueueResponse>, Status> {
        let user = self.program(&request)?;
        let proto::LeaveQueueRequest { client_id, is_bound } = request.into_inner();
        let client_id = convert::client_id_in(&client_id)?;
        let owner = Owner { is_bound, ..user.into() };
        let left = self.handler.leave_queue(owner, client_id).await;
        left.map_err(|e| rack_status(&e))?;
        Ok(Response::new(proto::LeaveQueueResponse {}))
    }

    async fn list_queue(
        &self,
        request: Request<proto::ListQueueRequest>,
    ) -> Result<Response<proto::ListQueueResponse>, Status> {
        self.tls.admit(&request)?;
        let waiting = self.handler.queue().await.into_iter().map(convert::queue_row_out).collect();
        Ok(Response::new(proto::ListQueueResponse { waiting }))
    }

    async fn release_grants(
        &self,
        request: Request<proto::ReleaseGrantsRequest>,
    ) -> Result<Response<proto::ReleaseGrantsResponse>, Status> {
        let caller = self.tls.admit(&request)?;
        let leases = convert::leases_in(request.into_inner().leases);
        let kept = self.handler.release(leases).await.map_err(|e| rack_status(&e))?;
        for grant in &kept.forged {
            self.tls.refuse_key(&caller, grant.0);
        }
        if let Some(grant) = kept.forged.first() {
            let said = format!("wrong key for grant {}: not released", grant.0);
            return Err(Status::permission_denied(said));
        }
        let keyless = kept.keyless.into_iter().map(|grant| grant.0).collect();
        Ok(Response::new(proto::ReleaseGrantsResponse { keyless }))
    }

    async fn transfer_grants(
        &self,
        request: Request<proto::TransferGrantsRequest>,
    ) -> Result<Response<proto::TransferGrantsResponse>, Status> {
        let by = self.program(&request)?;
        let request = convert::transfer_in(request.into_inner())?;
        let rows = self.handler.transfer(by, request).await.map_err(|e| rack_status(&e))?;
        Ok(Response::new(convert::transferred_out(rows)))
    }

    async fn claim_grants(
        &self,
        request: Request<proto::ClaimGrantsRequest>,
    ) -> Result<Response<proto::ClaimGrantsResponse>, Status> {
        let user = self.program(&request)?;
        let request = convert::claim_in(request.into_inner())?;
        let grants = self.handler.claim(user.into(), request).await.map_err(|e| rack_status(&e))?;
        Ok(Response::new(convert::claimed_out(grants)))
    }

    async fn drain_node(
        &self,
        request: Request<proto::DrainNodeRequest>,
    ) -> Result<Response<proto::DrainNodeResponse>, Status> {
        let name = request.get_ref().name.clone();
        let who = format!("root on {name}, or on the Monitor Node's machine");
        let may = |caller: &Caller| match caller {
            Caller::User(user) => user.is_admin || (user.uid == 0 && user.node == name),
            _ => is_node(caller, &name),
        };
        let by = self.tls.admit_if(&request, &who, may)?;
        let proto::DrainNodeRequest { name, undo } = request.into_inner();
        let name = convert::name_in(name, "the node")?;
        let drained = self.handler.drain(name.clone(), undo).await.map_err(|e| rack_status(&e));
        let act = if undo { "undo drain" } else { "drain" };
        audit(&by, act, format_args!("node {name}"), &drained);
        drained?;
        Ok(Response::new(proto::DrainNodeResponse {}))
    }

    async fn set_quota(
        &self,
        request: Request<proto::SetQuotaRequest>,
    ) -> Result<Response<proto::SetQuotaResponse>, Status> {
        let by = self.tls.admit_if(&request, ADMINS, Caller::is_admin)?;
        let proto::SetQuotaRequest { user, limits } = request.into_inner();
        let record = QuotaRecord { of: quota_of(user)?, limits: convert::limits_in(limits)? };
        let what = format!("{}: {}", whose(&record.of), record.limits);
        let set = self.handler.set_quota(by.clone(), record).await.map_err(|e| rack_status(&e));
        audit(&by, "set quota", what, &set);
        set?;
        Ok(Response::new(proto::SetQuotaResponse {}))
    }

    async fn remove_quota(
        &self,
        request: Request<proto::RemoveQuotaRequest>,
    ) -> Result<Response<proto::RemoveQuotaResponse>, Status> {
        let by = self.tls.admit_if(&request, ADMINS, Caller::is_admin)?;
        let of = quota_of(request.into_inner().user)?;
        let removed =
            self.handler.remove_quota(by.clone(), of.clone()).await.map_err(|e| rack_status(&e));
        audit(&by, "remove quota", whose(&of), &removed);
        removed?;
        Ok(Response::new(proto::RemoveQuotaResponse {}))
    }

    async fn list_quotas(
        &self,
        request: Request<proto::ListQuotasRequest>,
    ) -> Result<Response<proto::ListQuotasResponse>, Status> {
        self.tls.admit(&request)?;
        Ok(Response::new(convert::quota_table_out(self.handler.quotas().await)))
    }

    async fn list_nodes(
        &self,
        request: Request<proto::ListNodesRequest>,
    ) -> Result<Response<proto::ListNodesResponse>, Status> {
        self.tls.admit(&request)?;
        let nodes = self.handler.nodes().await.into_iter().map(convert::node_row_out).collect();
        Ok(Response::new(proto::ListNodesResponse { nodes }))
    }

    async fn list_resources(
        &self,
        request: Request<proto::ListResourcesRequest>,
    ) -> Result<Response<proto::ListResourcesResponse>, Status> {
        self.tls.admit(&request)?;
        let rows = self.handler.resources().await;
        let resources = rows.into_iter().map(convert::resource_row_out).collect();
        Ok(Response::new(proto::ListResourcesResponse { resources }))
    }

    async fn list_grants(
        &self,
        request: Request<proto::ListGrantsRequest>,
    ) -> Result<Response<proto::ListGrantsResponse>, Status> {
        self.tls.admit(&request)?;
        let grants = self.handler.grants().await.into_iter().map(convert::grant_row_out).collect();
        Ok(Response::new(proto::ListGrantsResponse { grants }))
    }

    async fn list_forecasts(
        &self,
        request: Request<proto::ListForecastsRequest>,
    ) -> Result<Response<proto::ListForecastsResponse>, Status> {
        self.tls.admit(&request)?;
        let rows = self.handler.forecasts().await.into_iter();
        let workloads = rows.map(convert::forecast_out).collect();
        Ok(Response::new(proto::ListForecastsResponse { workloads }))
    }

    async fn list_links(
        &self,
        request: Request<proto::ListLinksRequest>,
    ) -> Result<Response<proto::ListLinksResponse>, Status> {
        self.tls.admit(&request)?;
        let links = self.handler.links().await.into_iter().map(convert::link_row_out).collect();
        Ok(Response::new(proto::ListLinksResponse { links }))
    }

    type WatchEventsStream = Events;

    async fn watch_events(
        &self,
        request: Request<proto::WatchEventsRequest>,
    ) -> Result<Response<Events>, Status> {
        let server = (Arc::clone(&self.tls), self.serving.clone());
        let handler = Arc::clone(&self.handler);
        events::watch_events(handler, server, &self.watches, request).await.map(Response::new)
    }
}
