//! Clients that request memory and devices, keep them, return them, repeat requests, or die; by the
//! library, at all Monitor Nodes.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;
use venice_control::client::{Access, AgentClient, Login, MonitorClient};
use venice_control::{
    AllocationRequest, Caller, ControlError, DEFAULT_PRIORITY, Grant, LeaseState, Queueing,
    ResourceKind, User, Want,
};
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use crate::judge::Judge;
use venice_testkit::random::SplitMix64;

/// Time limit of a call, whatever is dead.
const PATIENCE: Duration = Duration::from_secs(60);
/// Timeout of a question to one donor.
const DONOR_PATIENCE: Duration = Duration::from_secs(1);
/// Clients from this number on request only accelerators, of which there are fewer than clients.
const STEADY: u64 = 4;
/// Most loans of a client at a time.
const MOST_LOANS: usize = 4;

/// Number of clients.
pub const CLIENTS: u64 = STEADY + 4;

/// An order to the clients.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Go,
    /// Keep grants, and request nothing.
    Rest,
    /// Return all grants.
    End,
}

/// State shared by all clients.
pub struct Stage {
    pub monitors: Vec<String>,
    pub judge: Judge,
    pub orders: watch::Sender<Order>,
    /// Number of clients that obey `Order::Rest`.
    pub resting: AtomicUsize,
}

/// A client's loan, with its renewers.
struct Loan {
    asked: AllocationRequest,
    grants: Vec<Grant>,
    _keepers: JoinSet<()>,
}

struct Client {
    stage: Arc<Stage>,
    number: u64,
    random: SplitMix64,
    login: Login,
    monitor: Option<MonitorClient>,
    loans: Vec<Loan>,
}

impl Stage {
    /// Returns the addresses of the Monitor Nodes in a caller's own order.
    pub fn addresses(&self, number: u64) -> String {
        let first = number as usize % self.monitors.len();
        let (before, from) = self.monitors.split_at(first);
        [from, before].concat().join(",")
    }

    pub async fn rest(&self) {
        self.resting.fetch_add(1, Ordering::Relaxed);
        let mut orders = self.orders.subscribe();
        let _ = orders.wait_for(|order| *order != Order::Rest).await;
        self.resting.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn order(&self) -> Order {
        *self.orders.borrow()
    }

    /// Fails a call that takes longer than the limit. Records the time of calls that do not queue.
    async fn bounded<T>(
        &self,
        what: &str,
        call: impl Future<Output = T>,
        is_in_line: bool,
    ) -> Option<T> {
        let began = Instant::now();
        let ended = tokio::time::timeout(PATIENCE, call).await.ok();
        if !is_in_line {
            self.judge.waited(began.elapsed());
        }
        if ended.is_none() {
            self.judge.complain(format!("{what} had no answer after {PATIENCE:?}"));
        }
        ended
    }
}

/// Runs one client until it is told to end.
pub async fn run(stage: Arc<Stage>, number: u64, seed: u64) {
    let user = User {
        node: "test".to_owned(),
        uid: 1000 + number as u32 % 3,
        name: format!("user{}", number % 3),
        is_admin: false,
    };
    let login = venice_testkit::identity::login_of(&Caller::User(user));
    let random = SplitMix64::split(seed, number);
    let mut client = Client { stage, number, random, login, monitor: None, loans: Vec::new() };
    loop {
        match client.stage.order() {
            Order::Go => client.step().await,
            Order::Rest => client.stage.rest().await,
            Order::End => break,
        }
    }
    while !client.loans.is_empty() {
        client.give_back(false).await;
    }
}

impl Client {
    async fn step(&mut self) {
        let judge = &self.stage.judge;
        self.loans.retain(|loan| loan.grants.iter().any(|grant| judge.holds(grant)));
        if self.number >= STEADY {
            return self.hunt().await;
        }
        match self.random.below(16) {
            0..=5 if self.loans.len() < MOST_LOANS => self.borrow_memory().await,
            6 if self.loans.len() < MOST_LOANS => self.borrow_device().await,
            7 if self.loans.len() < MOST_LOANS => self.borrow_both().await,
            8..=11 => self.give_back(false).await,
            12 => self.give_back(true).await,
            13 => self.repeat().await,
            14 => self.die(),
            // A new connection.
            15 => self.monitor = None,
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(self.random.below(200))).await;
    }

    /// Requests a device as soon as another client has released it, and releases it again.
    async fn hunt(&mut self) {
        if self.loans.is_empty() {
            self.borrow_device().await;
        } else {
            tokio::time::sleep(Duration::from_millis(self.random.below(200))).await;
            let is_at_donors = self.random.is_one_in(2);
            self.give_back(is_at_donors).await;
        }
        tokio::time::sleep(Duration::from_millis(self.random.below(20))).await;
    }

    async fn borrow_memory(&mut self) {
        let copies = 1 + self.random.below(2) as u32;
        let bytes = (1 + self.random.below(2)) * SLAB_BYTES;
        self.borrow(vec![Want::memory(bytes, copies)]).await;
    }

    async fn borrow_device(&mut self) {
        let (kind, mib) = match self.number >= STEADY || self.random.is_one_in(2) {
            true => (ResourceKind::Accelerator, 0),
            false => (ResourceKind::Storage, 1 + self.random.below(4)),
        };
        self.borrow(vec![Want::device(kind, mib << 20)]).await;
    }

    /// Borrows memory and a device together.
    async fn borrow_both(&mut self) {
        let device = Want::device(ResourceKind::Storage, 1 << 20);
        self.borrow(vec![Want::memory(SLAB_BYTES, 1), device]).await;
    }

    fn request(&mut self, wants: Vec<Want>) -> AllocationRequest {
        AllocationRequest {
            client_id: self.client_id(),
            recipient: format!("client{}", self.number),
            wants,
            donors: Vec::new(),
            home: String::new(),
            placement: None,
            purpose: "loop".to_owned(),
            queueing: self.queueing(),
        }
    }

    /// Some requests queue.
    fn queueing(&mut self) -> Queueing {
        let wait_ms = if self.random.is_one_in(3) { 3000 } else { 0 };
        Queueing { wait_ms, priority: DEFAULT_PRIORITY, ..Queueing::default() }
    }

    fn client_id(&mut self) -> u128 {
        u128::from(self.number) << 64 | u128::from(self.random.draw())
    }

    async fn borrow(&mut self, wants: Vec<Want>) {
        let request = self.request(wants);
        let asked = Instant::now();
        let Some(Ok(grants)) = self.ask(&request).await else { return };
        let mut keepers = JoinSet::new();
        let mut taken = Vec::new();
        for grant in grants {
            let keeper = Keeper::new(&self.stage, &self.login, &grant, asked);
            if let Some(keeper) = keeper.begin(request.client_id).await {
                keepers.spawn(keeper.run());
                taken.push(grant);
            }
        }
        self.loans.push(Loan { asked: request, grants: taken, _keepers: keepers });
    }

    async fn ask(
        &mut self,
        request: &AllocationRequest,
    ) -> Option<Result<Vec<Grant>, ControlError>> {
        let mut monitor = self.monitor().await?;
        let stage = Arc::clone(&self.stage);
        let (call, may_wait) = (monitor.allocate(request.clone()), request.queueing.wait_ms > 0);
        let outcome = stage.bounded("a request", call, may_wait).await?;
        stage.judge.heard(what(request), &outcome);
        Some(outcome)
    }

    /// Checks that a repeated request gets the same grants.
    async fn repeat(&mut self) {
        let Some(at) = self.any_loan() else { return };
        let (request, before) = (self.loans[at].asked.clone(), self.loans[at].grants.clone());
        let Some(Ok(grants)) = self.ask(&request).await else { return };
        // A lost grant may have been replaced meanwhile: the replacement is unused and expires.
        if before.iter().all(|grant| self.stage.judge.holds(grant)) && grants != before {
            let ids = |grants: &[Grant]| grants.iter().map(|it| it.id.0).collect::<Vec<_>>();
            let (before, now) = (ids(&before), ids(&grants));
            self.stage.judge.complain(format!("a request had {before:?}, and asked again {now:?}"));
        }
    }

    /// Returns a loan to the Monitor Node or to the donors.
    async fn give_back(&mut self, is_at_donors: bool) {
        let Some(at) = self.any_loan() else { return };
        let Loan { grants, .. } = self.loans.swap_remove(at);
        grants.iter().for_each(|grant| self.stage.judge.left(grant));
        let leases: Vec<_> = grants.iter().map(|grant| (grant.id, grant.key)).collect();
        let mut keyless = leases.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        if !is_at_donors {
            let Some(mut monitor) = self.monitor().await else { return };
            let stage = Arc::clone(&self.stage);
            let Some(outcome) = stage.bounded("a release", monitor.release(&leases), false).await
            else {
                return;
            };
            stage.judge.heard("given back", &outcome);
            let Ok(left) = outcome else { return };
            keyless = left;
        }
        for grant in grants.iter().filter(|grant| keyless.contains(&grant.id)) {
            // A return that fails expires with its lease.
            let connected = AgentClient::connect(
                &self.login,
                &grant.donor,
                &grant.control_addr,
                DONOR_PATIENCE,
            );
            if let Ok(mut agent) = connected.await {
                let _ = agent.give_back(&[(grant.id, grant.key)]).await;
            }
        }
    }

    /// Stops renewing a loan.
    fn die(&mut self) {
        if let Some(at) = self.any_loan() {
            let Loan { grants, .. } = self.loans.swap_remove(at);
            grants.iter().for_each(|grant| self.stage.judge.left(grant));
        }
    }

    fn any_loan(&mut self) -> Option<usize> {
        let count = self.loans.len() as u64;
        (count > 0).then(|| self.random.below(count) as usize)
    }

    async fn monitor(&mut self) -> Option<MonitorClient> {
        if self.monitor.is_none() {
            let access = Access::new(self.stage.addresses(self.number), self.login.clone());
            let connected = MonitorClient::connect(&access).await;
            self.stage.judge.heard("connected", &connected);
            self.monitor = connected.ok();
        }
        self.monitor.clone()
    }
}

fn what(request: &AllocationRequest) -> &'static str {
    let has_device = request.wants.iter().any(|want| want.kind.is_device());
    match request.memory().is_some() {
        true if has_device => "memory and devices granted",
        true => "memory granted",
        false => "devices granted",
    }
}

/// Renews one grant as long as it lives.
struct Keeper {
    stage: Arc<Stage>,
    login: Login,
    grant: Grant,
    agent: Option<AgentClient>,
    /// Latest time at which the donor may have restarted the lease.
    known: Instant,
}

impl Keeper {
    fn new(stage: &Arc<Stage>, login: &Login, grant: &Grant, asked: Instant) -> Self {
        let (stage, login, grant) = (Arc::clone(stage), login.clone(), grant.clone());
        Self { stage, login, grant, agent: None, known: asked }
    }

    /// Uses a grant only after its donor has confirmed it: the answer may have taken longer than
    /// its lease.
    async fn begin(mut self, client_id: u128) -> Option<Self> {
        let lease = Duration::from_secs_f64(self.grant.lease_s);
        while self.known.elapsed() < lease {
            let sent = Instant::now();
            match self.renew().await {
                Some(true) => {
                    self.stage.judge.took(client_id, &self.grant, sent);
                    self.known = sent;
                    return Some(self);
                }
                Some(false) => {
                    self.stage.judge.is_unknown(&self.grant, self.known);
                    return None;
                }
                None => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
        None
    }

    async fn run(mut self) {
        let lease = Duration::from_secs_f64(self.grant.lease_s);
        while self.known.elapsed() < self.stage.judge.trust() {
            tokio::time::sleep(lease / 8).await;
            let sent = Instant::now();
            match self.renew().await {
                Some(true) => {
                    self.known = sent;
                    self.stage.judge.renewed(&self.grant, sent);
                }
                Some(false) => return self.stage.judge.is_unknown(&self.grant, self.known),
                None => {}
            }
        }
        self.stage.judge.left(&self.grant);
    }

    /// True if its donor has it; `None` without an answer.
    async fn renew(&mut self) -> Option<bool> {
        let state = renew(&mut self.agent, &self.login, &self.grant).await;
        state.map(|state| matches!(state, LeaseState::Live { .. }))
    }
}

async fn renew(
    agent: &mut Option<AgentClient>,
    login: &Login,
    grant: &Grant,
) -> Option<LeaseState> {
    let mut connected = match agent.take() {
        Some(agent) => agent,
        None => AgentClient::connect(login, &grant.donor, &grant.control_addr, DONOR_PATIENCE)
            .await
            .ok()?,
    };
    let lease: [(GrantId, GrantKey); 1] = [(grant.id, grant.key)];
    let states = connected.renew(&lease).await.ok()?;
    *agent = Some(connected);
    states.into_iter().next()
}
