//! Drives the core: calls and the time go in, what it wants done is done.

use crate::clock::{Clock, TICK};
use crate::donors::{Answer, Call, Donors};
use crate::error::MonitorError;
use crate::records::RecordStore;
use crate::turn::Tenure;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use venice_control::identity::Authority;
use venice_control::server::Door;
use venice_control::{
    Asked, DeviceRequest, DonorStatus, ForecastRow, Grant, GrantRow, HeartbeatAck, HeartbeatReport,
    Identity, LinkRow, MemoryRequest, NodeRegistration, NodeRow, Owner, PlacementPlan, QueueRow,
    QuotaFor, QuotaRecord, QuotaTable, RackError, Registered, ResourceRow, Revocation, Revocations,
};
use venice_rack::monitor::{Action, CallError, Event, JoinTokenRecord, Kept, MonitorCore, Token};
use venice_wire::{GrantId, GrantKey};

/// A standstill that an operator wants to know of.
const WORTH_TELLING: Duration = Duration::from_secs(1);
/// Inputs taken at one go, so that their changes are written at one go.
const INPUTS_AT_ONCE: usize = 64;
/// No certificate takes longer from the look at the clock until it is signed.
const STILL_SIGNING_MS: u64 = 60_000;

type Reply<T> = oneshot::Sender<T>;
/// Somebody who waits for no more than that it is done.
type Done = Reply<Result<(), RackError>>;
type AskedReply = Reply<Result<Asked, RackError>>;

/// What comes in.
pub(crate) enum Input {
    Register(NodeRegistration, Reply<Result<Registered, RackError>>),
    /// Of the node of that name, as its certificate says.
    Heartbeat(String, HeartbeatReport, Reply<Result<HeartbeatAck, RackError>>),
    RequestDevice(Owner, DeviceRequest, AskedReply),
    Request(Owner, MemoryRequest, AskedReply),
    /// Who asked for memory does not wait for it any more.
    Leave {
        owner: Owner,
        client_id: u128,
        reply: Done,
    },
    /// Where a request would be placed; nothing changes.
    Plan(Owner, MemoryRequest, Reply<Result<PlacementPlan, RackError>>),
    Release(Vec<(GrantId, GrantKey)>, Reply<Kept>),
    Drain {
        name: String,
        undo: bool,
        reply: Done,
    },
    NewToken(JoinTokenRecord, Done),
    Join {
        token: (u64, [u8; 32]),
        name: String,
        key: [u8; 32],
        reply: Done,
    },
    DeleteToken(u64, Done),
    SetQuota(QuotaRecord, Done),
    RemoveQuota(QuotaFor, Done),
    Revoke {
        name: String,
        /// Also a name that the rack does not know.
        is_sure: bool,
        reply: Done,
    },
    List(Listing),
    Stop,
}

/// A table asked for.
pub(crate) enum Listing {
    Nodes(Reply<Vec<NodeRow>>),
    Resources(Reply<Vec<ResourceRow>>),
    Grants(Reply<Vec<GrantRow>>),
    Queue(Reply<Vec<QueueRow>>),
    Quotas(Reply<QuotaTable>),
    Forecasts(Reply<Vec<ForecastRow>>),
    Links(Reply<Vec<LinkRow>>),
    Tokens(Reply<Vec<JoinTokenRecord>>),
    Revocations(Reply<Vec<Revocation>>),
}

/// Who holds the keys to the door, to be told when somebody is turned out.
#[derive(Clone)]
pub(crate) struct Wardens {
    pub(crate) door: Arc<Door>,
    pub(crate) authority: Arc<Authority>,
}

impl Wardens {
    /// Up to when a node that is turned out at this moment has its certificates void: beyond all
    /// that was signed and all that is being signed.
    fn moment_ms(&self) -> u64 {
        wall_ms().max(self.authority.newest_ms()).saturating_add(STILL_SIGNING_MS)
    }

    /// Revocations that a node tells, as far as a Monitor Node of this rack has made them.
    fn known_again(&self, node: &str, told: Vec<Revocation>) -> Vec<Revocation> {
        let (known, others): (Vec<_>, Vec<_>) =
            told.into_iter().partition(|it| self.authority.has_sealed(it));
        for other in others {
            tracing::debug!(node, of = other.node, "tells a revocation without this rack's seal");
        }
        known
    }

    /// Nobody of these comes in any more, and those who are in do nothing more. First the door is
    /// closed: whoever is signed for under a date that is good again finds it so.
    fn turn_out(&self, revoked: &Revocations) {
        self.door.set_revoked(revoked.clone());
        for revocation in revoked.list() {
            self.authority.sign_after(revocation.until_ms);
        }
    }
}

/// A call that has come back.
struct Returned {
    donor: Identity,
    call: Call,
    result: Result<Answer, CallError>,
}

pub(crate) struct Driver {
    core: MonitorCore,
    store: RecordStore,
    clock: Clock,
    donors: Arc<Donors>,
    calls: JoinSet<Returned>,
    next_token: u64,
    registrations: BTreeMap<Token, Reply<Result<Registered, RackError>>>,
    releases: BTreeMap<Token, Reply<Kept>>,
    waiting: BTreeMap<Token, Done>,
    wardens: Wardens,
    tenure: Tenure,
    /// A request may be asked for more than once while it is in its handshake.
    requests: BTreeMap<u128, Vec<AskedReply>>,
}

impl Driver {
    pub(crate) fn new(
        core: MonitorCore,
        store: RecordStore,
        clock: Clock,
        donors: Donors,
        wardens: Wardens,
        tenure: Tenure,
    ) -> Self {
        wardens.turn_out(core.revocations());
        Self {
            core,
            store,
            clock,
            donors: Arc::new(donors),
            calls: JoinSet::new(),
            next_token: 0,
            registrations: BTreeMap::new(),
            releases: BTreeMap::new(),
            waiting: BTreeMap::new(),
            wardens,
            tenure,
            requests: BTreeMap::new(),
        }
    }

    /// Runs until it is told to stop or the store fails.
    pub(crate) async fn run(
        mut self,
        mut inputs: mpsc::Receiver<Input>,
    ) -> Result<(), MonitorError> {
        let mut batch = Vec::with_capacity(INPUTS_AT_ONCE);
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.perform_all().await?;
            let wait = self.clock.until(self.core.poll_timeout());
            tokio::select! {
                count = inputs.recv_many(&mut batch, INPUTS_AT_ONCE) => {
                    let stop = count == 0 || batch.iter().any(|input| matches!(input, Input::Stop));
                    if stop {
                        return Ok(());
                    }
                    for input in batch.drain(..) {
                        self.take(input);
                    }
                }
                Some(done) = self.calls.join_next(), if !self.calls.is_empty() => {
                    self.hear(done.map_err(MonitorError::Driver)?);
                }
                () = tokio::time::sleep(wait) => {
                    self.core.handle_timeout(self.clock.now_ns());
                }
                _ = ticks.tick() => self.pay_attention(),
            }
        }
    }

    /// Nobody is down for heartbeats that this process could not hear.
    fn pay_attention(&mut self) {
        let missed = self.clock.tick();
        if missed >= WORTH_TELLING {
            tracing::warn!(?missed, "stood still: nodes have so much longer to report");
        }
        if self.core.handle_wall_clock(self.clock.now_ns(), wall_ms()) {
            self.wardens.turn_out(self.core.revocations());
        }
    }

    fn take(&mut self, input: Input) {
        let now_ns = self.clock.now_ns();
        match input {
            Input::Register(node, reply) => {
                let token = self.token();
                self.registrations.insert(token, reply);
                self.core.handle_register(now_ns, token, node);
            }
            Input::Heartbeat(name, report, reply) => {
                let ack = self.hear_of(now_ns, &name, report);
                // A caller that has gone away needs no answer; so below.
                let _ = reply.send(ack);
            }
            Input::Request(owner, request, reply) => {
                let client_id = request.client_id;
                match self.core.handle_request(now_ns, owner, request) {
                    Ok(()) => self.requests.entry(client_id).or_default().push(reply),
                    Err(error) => drop(reply.send(Err(error))),
                }
            }
            Input::RequestDevice(owner, request, reply) => {
                let client_id = request.client_id;
                match self.core.handle_device_request(now_ns, owner, request) {
                    Ok(()) => self.requests.entry(client_id).or_default().push(reply),
                    Err(error) => drop(reply.send(Err(error))),
                }
            }
            Input::Leave { owner, client_id, reply } => {
                let _ = reply.send(self.core.handle_leave(now_ns, &owner, client_id));
            }
            Input::Plan(owner, request, reply) => {
                drop(reply.send(self.core.plan(&owner, &request)));
            }
            Input::Release(leases, reply) => {
                let token = self.token();
                self.releases.insert(token, reply);
                self.core.handle_release(token, &leases);
            }
            Input::NewToken(record, reply) => {
                let token = self.wait_for(reply);
                self.core.handle_new_token(wall_ms(), token, record);
            }
            Input::Join { token: join, name, key, reply } => {
                let token = self.wait_for(reply);
                self.core.handle_join(wall_ms(), token, join, (&name, key));
            }
            Input::DeleteToken(id, reply) => {
                let token = self.wait_for(reply);
                self.core.handle_delete_token(wall_ms(), token, id);
            }
            Input::Revoke { name, is_sure, reply } => {
                let token = self.wait_for(reply);
                let until_ms = self.wardens.moment_ms();
                self.core.handle_revoke(now_ns, until_ms, token, (&name, is_sure));
                // Not only when it is durable: writing takes time, in which it might renew.
                self.wardens.turn_out(self.core.revocations());
            }
            Input::SetQuota(quota, reply) => {
                let token = self.wait_for(reply);
                self.core.handle_set_quota(token, quota);
            }
            Input::RemoveQuota(of, reply) => {
                let token = self.wait_for(reply);
                self.core.handle_remove_quota(token, of);
            }
            Input::Drain { name, undo, reply } => {
                let token = self.wait_for(reply);
                self.core.handle_drain(now_ns, token, &name, !undo);
            }
            Input::List(listing) => self.list(now_ns, listing),
            Input::Stop => {}
        }
    }

    /// An agent reports; also of revocations that this Monitor Node has lost.
    fn hear_of(
        &mut self,
        now_ns: u64,
        name: &str,
        mut report: HeartbeatReport,
    ) -> Result<HeartbeatAck, RackError> {
        if self.core.name_of(report.identity.node) != name {
            return Err(RackError::NotRegistered);
        }
        let told = std::mem::take(&mut report.door.revoked_besides);
        let told = self.wardens.known_again(name, told);
        let until_ms = self.wardens.moment_ms();
        if self.core.handle_revocations_told(now_ns, until_ms, told) {
            self.wardens.turn_out(self.core.revocations());
        }
        let mut ack = self.core.handle_heartbeat(now_ns, report)?;
        if let Some(news) = &mut ack.revoked {
            let known = std::mem::take(&mut news.known).into_iter();
            news.known = known.map(|it| self.wardens.authority.seal(it)).collect();
        }
        Ok(ack)
    }

    fn list(&self, now_ns: u64, listing: Listing) {
        match listing {
            Listing::Nodes(reply) => drop(reply.send(self.core.node_rows(now_ns))),
            Listing::Resources(reply) => drop(reply.send(self.core.resource_rows())),
            Listing::Grants(reply) => drop(reply.send(self.core.grant_rows(now_ns))),
            Listing::Queue(reply) => drop(reply.send(self.core.queue_rows(now_ns))),
            Listing::Quotas(reply) => drop(reply.send(self.core.quota_table())),
            Listing::Forecasts(reply) => drop(reply.send(self.core.forecast_rows())),
            Listing::Links(reply) => drop(reply.send(self.core.link_rows())),
            Listing::Tokens(reply) => drop(reply.send(self.core.tokens(wall_ms()))),
            Listing::Revocations(reply) => drop(reply.send(self.core.revocations().list())),
        }
    }

    fn wait_for(&mut self, reply: Done) -> Token {
        let token = self.token();
        self.waiting.insert(token, reply);
        token
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    async fn perform_all(&mut self) -> Result<(), MonitorError> {
        while let Some(action) = self.core.poll_action() {
            // What others prepare in the meantime is not ours to call off.
            if !self.tenure.lasts() {
                return Err(MonitorError::TurnOver);
            }
            match action {
                Action::Store(changes) => self.store.apply(changes).await?,
                Action::SendPrepare { donor, addr, request } => {
                    self.call(donor, addr, Call::Prepare(request));
                }
                Action::SendCommit { donor, addr, grant } => {
                    self.call(donor, addr, Call::Commit { grant, donor_epoch: donor.epoch });
                }
                Action::SendAbort { donor, addr, grant } => {
                    self.call(donor, addr, Call::Abort(grant));
                }
                Action::SendRelease { donor, addr, grants } => {
                    self.call(donor, addr, Call::Release(grants));
                }
                Action::SendPing { donor, addr } => self.call(donor, addr, Call::Ping),
                Action::ReplyRequest { client_id, result } => self.reply(client_id, result),
                Action::ReplyStanding { client_id, standing } => {
                    for reply in self.requests.remove(&client_id).unwrap_or_default() {
                        let _ = reply.send(Ok(Asked::Waits(standing)));
                    }
                }
                Action::ReplyRelease { token, kept } => {
                    self.releases.remove(&token).map(|reply| reply.send(kept));
                }
                Action::ReplyDone { token, result } => {
                    self.waiting.remove(&token).map(|reply| reply.send(result));
                }
                Action::ReplyRegister { token, result } => {
                    self.registrations.remove(&token).map(|reply| reply.send(result));
                }
                Action::Note(event) => log(&event),
            }
        }
        Ok(())
    }

    fn call(&mut self, donor: Identity, addr: String, call: Call) {
        let donors = Arc::clone(&self.donors);
        let name = self.core.name_of(donor.node);
        self.calls.spawn(async move {
            let result = donors.call(&name, &addr, call.clone()).await;
            Returned { donor, call, result }
        });
    }

    fn reply(&mut self, client_id: u128, result: Result<Vec<Grant>, RackError>) {
        match &result {
            Ok(grants) => match grants.first().and_then(|grant| grant.device.as_ref()) {
                Some(device) => tracing::info!(kind = %device.kind, device.address, "granted"),
                None => tracing::info!(grants = grants.len(), "memory granted"),
            },
            Err(error) => tracing::info!(%error, "refused"),
        }
        for reply in self.requests.remove(&client_id).unwrap_or_default() {
            let _ = reply.send(result.clone().map(Asked::Granted));
        }
    }

    /// Tells the core what came of a call.
    fn hear(&mut self, returned: Returned) {
        let Returned { donor, call, result } = returned;
        let now_ns = self.clock.now_ns();
        match call {
            Call::Prepare(request) => {
                self.core.handle_prepared(now_ns, donor, request.grant, status(result));
            }
            Call::Commit { grant, .. } => {
                self.core.handle_committed(now_ns, donor, grant, status(result));
            }
            Call::Abort(_) => self.core.handle_aborted(now_ns, donor, status(result)),
            Call::Release(grants) => {
                self.core.handle_released(now_ns, donor, &grants, status(result));
            }
            Call::Ping => {
                let pong = result.and_then(|answer| match answer {
                    Answer::Pong(pong) => Ok(pong),
                    Answer::Status(_) => Err(CallError::NoAnswer),
                });
                self.core.handle_pinged(now_ns, donor, pong);
            }
        }
    }
}

/// The time of day, in milliseconds since 1970.
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn status(result: Result<Answer, CallError>) -> Result<DonorStatus, CallError> {
    match result? {
        Answer::Status(status) => Ok(status),
        Answer::Pong(_) => Err(CallError::NoAnswer),
    }
}

fn log(event: &Event) {
    match event {
        Event::NodeJoined { name, identity } => {
            tracing::info!(node = name, number = identity.node.0, epoch = identity.epoch, "joined");
        }
        Event::NodeBack { name } => tracing::info!(node = name, "reports again"),
        Event::NodeDown { name } => tracing::warn!(node = name, "is down: its grants are lost"),
        Event::NodeDrains { name, drains: true } => tracing::info!(node = name, "is drained"),
        Event::NodeDrains { name, drains: false } => {
            tracing::info!(node = name, "is drained no longer");
        }
        Event::NodeAdmitted { name } => tracing::info!(node = name, "may join: its token is used"),
        Event::NodeRevoked { name } => {
            tracing::warn!(node = name, "turned out: its certificates are void");
        }
        Event::QuotaSet { of, bytes } => {
            tracing::info!(user = name_of(of), bytes, "quota set");
        }
        Event::QuotaRemoved { of } => tracing::info!(user = name_of(of), "quota removed"),
        Event::GrantAdopted { donor, id } => {
            tracing::warn!(donor, grant = id.0, "lends a grant that was not in the table");
        }
        Event::GrantNotAdopted { donor, id, slabs } => {
            tracing::warn!(donor, grant = id.0, slabs, "tells of a grant that cannot be");
        }
    }
}

fn name_of(of: &QuotaFor) -> &str {
    match of {
        QuotaFor::User(user) => user,
        QuotaFor::Others => "(all others)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MonitorConfig;
    use crate::keys::SystemKeys;
    use venice_control::Caller;
    use venice_control::client::Login;
    use venice_control::identity::Holder;

    async fn driver(dir: &std::path::Path) -> Driver {
        let authority = Arc::new(venice_identity_test::authority());
        let holder = Holder::new(authority.credential(&Caller::Monitor).unwrap()).unwrap();
        let door = Door::new(holder.clone()).unwrap();
        let (store, records) = RecordStore::open(dir.join("store")).await.unwrap();
        let keys = Box::new(SystemKeys::new().unwrap());
        let settings = MonitorConfig::default().settings();
        let core = MonitorCore::recover(settings, keys, 0, records);
        let donors = Donors::new(Login::held(holder), Duration::from_secs(1));
        Driver::new(
            core,
            store,
            Clock::start(),
            donors,
            Wardens { door, authority },
            Tenure::for_ever(),
        )
    }

    #[tokio::test]
    async fn the_door_is_closed_before_a_revocation_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut driver = driver(dir.path()).await;
        let authority = Arc::clone(&driver.wardens.authority);
        // A clock that was ahead for a while dated a certificate an hour later.
        authority.sign_after(wall_ms() + 3_600_000);
        let node7 = Caller::Node("node7".into());
        let early = authority.credential(&node7).unwrap().said().issued_ms;
        let (reply, _answer) = oneshot::channel();
        driver.take(Input::Revoke { name: "node7".into(), is_sure: true, reply });

        let until_ms = driver.wardens.door.revoked_until_ms("node7");
        assert!(until_ms.is_some_and(|until_ms| until_ms > early), "{until_ms:?}, {early}");
        assert!(driver.core.revocations().covers(&node7, wall_ms() + STILL_SIGNING_MS / 2));
        // It may come in anew at once all the same.
        let anew = authority.credential(&node7).unwrap().said().issued_ms;
        assert!(!driver.core.revocations().covers(&node7, anew));
        driver.perform_all().await.unwrap();
    }

    #[tokio::test]
    async fn whose_turn_is_over_does_nothing_more() {
        let dir = tempfile::tempdir().unwrap();
        let mut driver = driver(dir.path()).await;
        driver.tenure = Tenure::over();
        let (reply, mut answer) = oneshot::channel();
        driver.take(Input::DeleteToken(1, reply));
        let ended = driver.perform_all().await;
        assert!(matches!(ended, Err(MonitorError::TurnOver)), "{ended:?}");
        assert!(answer.try_recv().is_err(), "it answered");
    }
}
