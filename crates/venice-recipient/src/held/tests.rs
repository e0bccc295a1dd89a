use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;

use tokio::sync::watch;
use venice_control::server::{AgentHandler, serve_agent};
use venice_control::{
    Caller, DonorAnswer, DonorCall, DonorStatus, LeaseState, ResourceKind, Share,
};
use venice_testkit::identity;
use venice_testkit::wait::wait_until;
use venice_wire::{GrantId, GrantKey, NodeId};

use super::*;

const LEASE_S: f64 = 4.0;

fn grant(control_addr: String) -> Grant {
    Grant {
        id: GrantId(1),
        donor: "node1".into(),
        donor_node: NodeId(1),
        donor_epoch: 1,
        share: Share::of_slabs(0),
        key: GrantKey(1),
        control_addr,
        endpoints: Vec::new(),
        lease_s: LEASE_S,
    }
}

#[test]
fn notice_names_reason_and_time() {
    let notice = Notice { reason: NoticeReason::Preempted, within_ms: Some(59_001) };
    let (donor, what) = ("node1".to_owned(), "/dev/gpu0".to_owned());
    let event = HeldEvent::Wanted(notice);
    let text = HeldNews { grant: GrantId(1), donor, what, event, why: None }.to_string();
    let expected = "/dev/gpu0 of node1: a request of higher priority needs it: it ends in 60 s";
    assert_eq!(text, expected);
}

#[test]
fn silent_donor_delays_no_other() {
    let donors: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addr = |donor: &TcpListener| donor.local_addr().unwrap().to_string();
    let grants: Vec<_> = donors.iter().map(|donor| grant(addr(donor))).collect();
    let (tell, told) = mpsc::channel();
    let access = venice_testkit::identity::access("127.0.0.1:1");
    let tell = move |news| drop(tell.send(news));
    let held = Held::keep(&access, (grants, Instant::now()), OnLoss::Fail, tell).unwrap();
    // They accept the call, and do not answer.
    let _calls: Vec<_> = donors.iter().map(|donor| donor.accept().unwrap()).collect();
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty), "one after another");
    for _ in &donors {
        let news = told.recv().unwrap();
        assert_eq!(news.event, HeldEvent::Lost(Fate::Unresponsive));
    }
    assert_eq!(held.lost(), Some(Fate::Unresponsive));
}

/// An agent with one service for each grant of a device, by its number.
struct Agent {
    services: BTreeMap<GrantId, watch::Sender<ServiceState>>,
    renewed: Mutex<BTreeSet<GrantId>>,
    returned: Mutex<BTreeSet<GrantId>>,
}

impl AgentHandler for Agent {
    async fn call(&self, _: DonorCall) -> Result<DonorAnswer, Refusal> {
        unreachable!("the Monitor Node's call")
    }

    async fn give_back(
        &self,
        _: Caller,
        leases: Vec<(GrantId, GrantKey)>,
    ) -> Result<DonorAnswer, Refusal> {
        lock_set(&self.returned).extend(leases.into_iter().map(|(grant, _)| grant));
        Ok(DonorAnswer::Status(DonorStatus::default()))
    }

    async fn renew(&self, _: Caller, leases: Vec<(GrantId, GrantKey)>) -> Vec<LeaseState> {
        lock_set(&self.renewed).extend(leases.iter().map(|(grant, _)| *grant));
        leases.iter().map(|_| LeaseState::Live { remaining_ms: 1, notice: None }).collect()
    }

    async fn service(
        &self,
        _: Caller,
        (grant, _): (GrantId, GrantKey),
    ) -> Result<watch::Receiver<ServiceState>, Refusal> {
        Ok(self.services[&grant].subscribe())
    }
}

fn lock_set(set: &Mutex<BTreeSet<GrantId>>) -> MutexGuard<'_, BTreeSet<GrantId>> {
    set.lock().unwrap()
}

impl Agent {
    /// Starts it with these states of the devices' services. Returns it with a loan of a grant of
    /// memory, number 1, and of the devices, from number 2 on.
    fn start(states: &[ServiceState]) -> (Arc<Agent>, Loan, Runtime) {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let numbers = (2..).map(GrantId);
        let services = states.iter().map(|state| watch::channel(state.clone()).0);
        let services: BTreeMap<_, _> = numbers.zip(services).collect();
        let of = |id: GrantId, share| Grant { id, share, lease_s: 20.0, ..grant(addr.clone()) };
        let device = |id: &GrantId| {
            let (kind, address) = (ResourceKind::Accelerator, id.0.to_string());
            of(*id, Share { kind, address, ..Share::of_slabs(0) })
        };
        let loan = Loan {
            access: identity::access("127.0.0.1:1"),
            spec: AllocationSpec::default(),
            memory: vec![of(GrantId(1), Share::of_slabs(1))],
            devices: services.keys().map(device).collect(),
            connections: Vec::new(),
            asked: Instant::now(),
            copies: 1,
            shortage: None,
        };
        let (renewed, returned) = (Mutex::default(), Mutex::default());
        let agent = Arc::new(Agent { services, renewed, returned });
        let served = agent.clone();
        let tls = identity::door("node1");
        runtime.spawn(serve_agent(listener, tls, served, std::future::pending()));
        (agent, loan, runtime)
    }

    fn returned(&self) -> Vec<u64> {
        lock_set(&self.returned).iter().map(|grant| grant.0).collect()
    }
}

fn serving(grant: u64) -> ServiceState {
    let (grant, service) = (GrantId(grant), "echo".into());
    ServiceState::Serving(ServiceAccess { grant, service, secret: [1; 32], endpoints: Vec::new() })
}

fn ended() -> ServiceState {
    ServiceState::Ended("its service did not start: no".into())
}

#[test]
fn claim_keeps_rest_without_service() {
    let (agent, mut loan, _runtime) = Agent::start(&[ended(), serving(3)]);
    let (tell, told) = mpsc::channel();
    let tell = move |news| drop(tell.send(news));
    let claimed = (loan.take_grants(), loan.asked);
    let held = Held::keep(&loan.access, claimed, OnLoss::KeepRest, tell).unwrap();
    let has_service: Vec<_> = held.services().iter().map(Option::is_some).collect();
    assert_eq!((has_service, agent.returned()), (vec![false, false, true], vec![]));
    let news = told.recv().unwrap();
    assert_eq!((news.what.as_str(), news.event), ("2", HeldEvent::Lost(Fate::Revoked)));
    assert_eq!(news.why.as_deref(), Some("its service did not start: no"));
    assert!(held.lost().is_some() && !held.is_all_lost());
    drop(held);
    assert_eq!(agent.returned(), [1, 3]);
}

#[test]
fn failed_device_releases_loan() {
    for each in [true, false] {
        let (agent, mut loan, _runtime) = Agent::start(&[serving(2), ended(), serving(4)]);
        let error = match each {
            true => Held::each_device_of(&mut loan).unwrap_err(),
            false => Held::devices_of(&mut loan, |_| {}).unwrap_err(),
        };
        assert_eq!(error.to_string(), "3 of node1: its service did not start: no");
        drop(loan);
        assert_eq!(agent.returned(), [1, 2, 3, 4]);
    }
    let (agent, loan, _runtime) = Agent::start(&[ended(), serving(3)]);
    Held::loan(loan, |_| {}).unwrap_err();
    assert_eq!(agent.returned(), [1, 2, 3]);
}

#[test]
fn starting_service_delays_no_renewal() {
    let (agent, mut loan, _runtime) = Agent::start(&[ServiceState::Starting, serving(3)]);
    let taken = std::thread::spawn(move || {
        let devices = Held::each_device_of(&mut loan).unwrap();
        (devices, loan)
    });
    let limit = Duration::from_secs(60);
    wait_until("all are renewed", limit, || lock_set(&agent.renewed).len() == 3);
    agent.services[&GrantId(2)].send_replace(serving(2));
    let (mut devices, loan) = taken.join().unwrap();
    assert!(devices.iter().all(|device| device.services()[0].is_some()));
    assert_eq!((loan.memory.len(), loan.devices.len()), (1, 0));
    drop(devices.pop());
    assert_eq!(agent.returned(), [3]);
    let device = devices.pop().unwrap();
    agent.services[&GrantId(2)].send_replace(ended());
    wait_until("its service is watched", limit, || device.lost().is_some());
}
