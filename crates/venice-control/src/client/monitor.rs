//! A caller of the Monitor Node.

use super::channel::{self, Whom};
use super::heartbeats::Heartbeats;
use super::login::Access;
use crate::convert;
use crate::error::{ControlError, PeerKind, Stranger, cause};
use crate::proto::{self, monitor_node_client::MonitorNodeClient};
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};
use venice_rack::queueing::Asked;
use venice_rack::quota::{Limit, QuotaFor, QuotaRecord};
use venice_rack::rows::{
    DevicePlan, ForecastRow, GrantRow, LinkRow, NodeRow, PlacementPlan, QueueRow, QuotaTable,
    ResourceRow,
};
use venice_rack::types::{
    DeviceRequest, Grant, Identity, MemoryRequest, NodeRegistration, RackError, Registered,
};
use venice_wire::{GrantId, GrantKey};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longer than the Monitor Node takes over a handshake with silent donors.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Longer than it takes to notice that one of several Monitor Nodes serves no more.
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(15);
const HAND_OVER_PAUSE: Duration = Duration::from_millis(250);

/// A connection to the Monitor Node. Cheap to clone; clones share the connection.
#[derive(Debug, Clone)]
pub struct MonitorClient {
    addr: String,
    inner: MonitorNodeClient<Channel>,
}

impl MonitorClient {
    /// Connects to a rack's Monitor Node, waiting at most 3 s, and at most 16 s more for a login where
    /// that comes from a socket of this machine. The connection heals by itself when
    /// the Monitor Node restarts.
    ///
    /// # Errors
    /// [`ControlError::Unreachable`] when nobody answers, [`ControlError::Stranger`] when another
    /// rack's does, [`ControlError::NoLogin`], [`ControlError::BadAddress`].
    pub async fn connect(access: &Access) -> Result<Self, ControlError> {
        let Access { monitor: addr, login } = access;
        let (whom, wait) = (Whom::Monitor, CONNECT_TIMEOUT);
        let channel = channel::open(whom, addr, login, wait, CALL_TIMEOUT).await?;
        Ok(Self { addr: addr.clone(), inner: MonitorNodeClient::new(channel) })
    }

    /// The address connected to.
    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// Joins the rack.
    ///
    /// # Errors
    /// [`venice_rack::types::RackError::NameTaken`] when a living agent bears the name.
    pub async fn register(&mut self, node: NodeRegistration) -> Result<Registered, ControlError> {
        let request = convert::registration_out(node);
        let response = self.inner.register_node(request).await.map_err(|s| self.error(s))?;
        convert::registered_in(response.into_inner()).map_err(|s| self.error(s))
    }

    /// Opens the call over which an agent reports.
    ///
    /// # Errors
    /// When the connection is gone and cannot be made anew.
    pub async fn heartbeats(&mut self) -> Result<Heartbeats, ControlError> {
        Heartbeats::open(self.addr.clone(), &mut self.inner).await
    }

    /// Says that the agent of this epoch and instance ends.
    ///
    /// # Errors
    /// [`venice_rack::types::RackError::NotRegistered`] when another one bears its name.
    pub async fn farewell(
        &mut self,
        identity: Identity,
        instance: u64,
    ) -> Result<(), ControlError> {
        let identity = Some(convert::identity_out(identity));
        let request = proto::FarewellRequest { identity, instance };
        self.inner.farewell(request).await.map_err(|s| self.error(s))?;
        Ok(())
    }

    /// Borrows memory: all of it, spread over one grant or more, or none; waits for it, where the
    /// request says so. May be repeated with the
    /// same `client_id` when the answer was lost; where the rack has several Monitor Nodes that is
    /// done here, at another one.
    ///
    /// # Errors
    /// [`ControlError::NoRoom`], [`ControlError::UnknownNode`],
    /// [`venice_rack::types::RackError::OverQuota`].
    pub async fn request_memory(
        &mut self,
        request: MemoryRequest,
    ) -> Result<Vec<Grant>, ControlError> {
        let began = Instant::now();
        let waited_before_ms = request.queueing.waited_ms;
        let mut request = request;
        loop {
            match self.ask_for_memory(request.clone()).await? {
                Asked::Granted(grants) => return Ok(grants),
                Asked::Waits(_) => {
                    let waited_ms = began.elapsed().as_millis() as u64;
                    request.queueing.waited_ms = waited_before_ms.saturating_add(waited_ms);
                }
            }
        }
    }

    /// One step of [`Self::request_memory`]: a request that waits is told within seconds how it
    /// stands, and is to be made again then, at once, with the same `client_id` and what of its
    /// wait is over. Whoever does not is out of the line within seconds.
    ///
    /// # Errors
    /// As [`Self::request_memory`].
    pub async fn ask_for_memory(&mut self, request: MemoryRequest) -> Result<Asked, ControlError> {
        let may_wait = request.queueing.left_ms() > 0;
        let request = convert::request_out(request);
        let answer = self.answer(may_wait, |mut monitor| {
            let request = request.clone();
            async move { monitor.request_memory(request).await }
        });
        convert::asked_in(answer.await?).map_err(|s| self.error(s))
    }

    /// Borrows one device; waits for it, where the request says so. May be repeated as a request for
    /// memory may.
    ///
    /// # Errors
    /// [`venice_rack::types::RackError::NoDevice`], [`ControlError::UnknownNode`].
    pub async fn request_device(&mut self, request: DeviceRequest) -> Result<Grant, ControlError> {
        let began = Instant::now();
        let waited_before_ms = request.queueing.waited_ms;
        let mut request = request;
        loop {
            match self.ask_for_device(request.clone()).await? {
                Asked::Granted(grants) => {
                    let grant = grants.into_iter().next();
                    let none = || self.error(Status::internal("the answer has no grant"));
                    return grant.ok_or_else(none);
                }
                Asked::Waits(_) => {
                    let waited_ms = began.elapsed().as_millis() as u64;
                    request.queueing.waited_ms = waited_before_ms.saturating_add(waited_ms);
                }
            }
        }
    }

    /// One step of [`Self::request_device`], as [`Self::ask_for_memory`] is of that for memory. What is
    /// granted is one grant.
    ///
    /// # Errors
    /// [`venice_rack::types::RackError::NoDevice`], [`ControlError::UnknownNode`].
    pub async fn ask_for_device(&mut self, request: DeviceRequest) -> Result<Asked, ControlError> {
        let may_wait = request.queueing.left_ms() > 0;
        let request = convert::device_request_out(request);
        let answer = self.answer(may_wait, |mut monitor| {
            let request = request.clone();
            async move { monitor.request_device(request).await }
        });
        convert::asked_for_device_in(answer.await?).map_err(|s| self.error(s))
    }

    /// Which device [`Self::ask_for_device`] would get at this moment, and why no other. Nothing is
    /// granted.
    ///
    /// # Errors
    /// [`ControlError::UnknownNode`], and whatever makes no sense; a request for which there is none
    /// is a plan that says so.
    pub async fn plan_device(
        &mut self,
        request: DeviceRequest,
    ) -> Result<DevicePlan, ControlError> {
        let request = convert::device_request_out(request);
        let response = self.inner.plan_device(request).await.map_err(|s| self.error(s))?;
        Ok(convert::device_plan_in(response.into_inner()))
    }

    /// Waits no longer for what [`Self::ask_for_memory`] or [`Self::ask_for_device`] asked for; what
    /// was granted meanwhile ends.
    ///
    /// # Errors
    /// [`ControlError::Forbidden`]: somebody else asked for it.
    pub async fn leave_queue(&mut self, client_id: u128) -> Result<(), ControlError> {
        let request = proto::LeaveQueueRequest { client_id: client_id.to_le_bytes().to_vec() };
        self.inner.leave_queue(request).await.map_err(|s| self.error(s))?;
        Ok(())
    }

    /// Those who wait for room, in the order they are served.
    ///
    /// # Errors
    /// As [`Self::nodes`].
    pub async fn queue(&mut self) -> Result<Vec<QueueRow>, ControlError> {
        let response = self.inner.list_queue(proto::ListQueueRequest {}).await;
        let rows = response.map_err(|s| self.error(s))?.into_inner().waiting;
        Ok(rows.into_iter().map(convert::queue_row_in).collect())
    }

    /// The answer to what may be asked twice: of several Monitor Nodes, of whichever gives one.
    async fn answer<T, F>(
        &self,
        may_wait: bool,
        call: impl Fn(MonitorNodeClient<Channel>) -> F,
    ) -> Result<T, ControlError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let until = Instant::now() + HAND_OVER_PATIENCE;
        loop {
            match call(self.inner.clone()).await {
                Err(status) if self.may_answer_yet(&status, may_wait) && Instant::now() < until => {
                    tokio::time::sleep(HAND_OVER_PAUSE).await;
                }
                done => return done.map(Response::into_inner).map_err(|s| self.error(s)),
            }
        }
    }

    /// One of several Monitor Nodes said nothing to it, or that it serves no more: another may. Whoever
    /// waits anyhow has time for one that starts again.
    fn may_answer_yet(&self, status: &Status, may_wait: bool) -> bool {
        let is_stopping =
            matches!(self.error(status.clone()), ControlError::Rack(RackError::Stopping));
        if self.addr.contains(',') && is_stopping {
            return true;
        }
        let is_silence = matches!(
            status.code(),
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded
        );
        let is_stranger = cause::<Stranger>(status).is_some();
        (self.addr.contains(',') || may_wait)
            && is_silence
            && status.details().is_empty()
            && !is_stranger
    }

    /// Where [`Self::request_memory`] would be placed at this moment, and why. Nothing is granted.
    ///
    /// # Errors
    /// [`ControlError::UnknownNode`], and whatever makes no sense; a request that the rack has no
    /// room for, or the user no quota, is a plan that says so.
    pub async fn plan_memory(
        &mut self,
        request: MemoryRequest,
    ) -> Result<PlacementPlan, ControlError> {
        let request = convert::request_out(request);
        let response = self.inner.plan_memory(request).await.map_err(|s| self.error(s))?;
        Ok(convert::plan_in(response.into_inner()))
    }

    /// Gives grants back. Those that are gone already are no error. Returned are those whose keys
    /// the Monitor Node does not know: they have to be given back at their donors. Where the answer is
    /// lost and the rack has several Monitor Nodes, another one is asked.
    ///
    /// # Errors
    /// [`ControlError::Forbidden`] when a key is not its grant's; the others are given back then.
    pub async fn release(
        &mut self,
        leases: &[(GrantId, GrantKey)],
    ) -> Result<Vec<GrantId>, ControlError> {
        let request = proto::ReleaseGrantsRequest { leases: convert::leases_out(leases) };
        let answer = self.answer(false, |mut monitor| {
            let request = request.clone();
            async move { monitor.release_grants(request).await }
        });
        Ok(answer.await?.keyless.into_iter().map(GrantId).collect())
    }

    /// Has nothing more placed on the node `name`, or (`undo`) something again.
    ///
    /// # Errors
    /// [`ControlError::UnknownNode`].
    pub async fn drain(&mut self, name: &str, undo: bool) -> Result<(), ControlError> {
        let request = proto::DrainNodeRequest { name: name.to_owned(), undo };
        self.inner.drain_node(request).await.map_err(|s| self.error(s))?;
        Ok(())
    }

    /// Says how much a user may have borrowed at a time; what the record does not say stays as it was.
    /// For administrators.
    ///
    /// # Errors
    /// [`ControlError::Forbidden`]; [`venice_rack::types::RackError::BadRequest`].
    pub async fn set_quota(&mut self, quota: QuotaRecord) -> Result<(), ControlError> {
        let QuotaRecord { of, limits } = quota;
        let bytes = limits.memory_bytes.and_then(Limit::at_most);
        let limits = Some(convert::limits_out(limits));
        let request = proto::SetQuotaRequest { user: quota_user(of), bytes, limits };
        self.inner.set_quota(request).await.map_err(|s| self.error(s))?;
        Ok(())
    }

    /// Takes a quota away. For administrators.
    ///
    /// # Errors
    /// As [`Self::set_quota`], also where there is none.
    pub async fn remove_quota(&mut self, of: QuotaFor) -> Result<(), ControlError> {
        let request = proto::RemoveQuotaRequest { user: quota_user(of) };
        self.inner.remove_quota(request).await.map_err(|s| self.error(s))?;
        Ok(())
    }

    /// The quotas, and what is used of them.
    ///
    /// # Errors
    /// Only when the Monitor Node cannot be reached.
    pub async fn quotas(&mut self) -> Result<QuotaTable, ControlError> {
        let response = self.inner.list_quotas(proto::ListQuotasRequest {}).await;
        Ok(convert::quota_table_in(response.map_err(|s| self.error(s))?.into_inner()))
    }

    /// The nodes.
    ///
    /// # Errors
    /// Only when the Monitor Node cannot be reached; so for the other tables.
    pub async fn nodes(&mut self) -> Result<Vec<NodeRow>, ControlError> {
        let response = self.inner.list_nodes(proto::ListNodesRequest {}).await;
        let rows = response.map_err(|s| self.error(s))?.into_inner().nodes;
        Ok(rows.into_iter().map(convert::node_row_in).collect())
    }

    /// The Resource Registration Table.
    ///
    /// # Errors
    /// As [`Self::nodes`].
    pub async fn resources(&mut self) -> Result<Vec<ResourceRow>, ControlError> {
        let response = self.inner.list_resources(proto::ListResourcesRequest {}).await;
        let rows = response.map_err(|s| self.error(s))?.into_inner().resources;
        Ok(rows.into_iter().map(convert::resource_row_in).collect())
    }

    /// The Resource Allocation Table.
    ///
    /// # Errors
    /// As [`Self::nodes`].
    pub async fn grants(&mut self) -> Result<Vec<GrantRow>, ControlError> {
        let response = self.inner.list_grants(proto::ListGrantsRequest {}).await;
        let rows = response.map_err(|s| self.error(s))?.into_inner().grants;
        Ok(rows.into_iter().map(convert::grant_row_in).collect())
    }

    /// What workloads are foretold to need, and what is kept for them.
    ///
    /// # Errors
    /// As [`Self::nodes`].
    pub async fn forecasts(&mut self) -> Result<Vec<ForecastRow>, ControlError> {
        let response = self.inner.list_forecasts(proto::ListForecastsRequest {}).await;
        let rows = response.map_err(|s| self.error(s))?.into_inner().workloads;
        Ok(rows.into_iter().map(convert::forecast_in).collect())
    }

    /// The Topology Status Table.
    ///
    /// # Errors
    /// As [`Self::nodes`].
    pub async fn links(&mut self) -> Result<Vec<LinkRow>, ControlError> {
        let response = self.inner.list_links(proto::ListLinksRequest {}).await;
        let rows = response.map_err(|s| self.error(s))?.into_inner().links;
        Ok(rows.into_iter().map(convert::link_row_in).collect())
    }

    fn error(&self, status: Status) -> ControlError {
        ControlError::from_status(PeerKind::MonitorNode, &self.addr, status)
    }
}

/// A user's name; `None`: each who has none of its own.
fn quota_user(of: QuotaFor) -> Option<String> {
    match of {
        QuotaFor::User(user) => Some(user),
        QuotaFor::Others => None,
    }
}
