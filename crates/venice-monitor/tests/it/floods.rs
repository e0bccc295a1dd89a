//! Floods of requests by one user.

use crate::ANY_PORT;
use crate::kit::{Agent, Monitor, StartingMonitor, bounded, config, keep, request};
use tokio::task::JoinSet;
use venice_control::client::{Access, EnrolmentClient, MonitorClient};
use venice_control::identity::KeyPem;
use venice_control::{AllocationRequest, Asked, Caller, ControlError, Queueing, RackError, User};
use venice_monitor::MonitorConfig;
use venice_testkit::identity::login_of;

/// Slabs of the only node.
const SLABS: u32 = 4;

/// A Monitor Node with one node, whose memory is all granted.
struct Rack {
    monitor: Monitor,
    _agent: Agent,
    _kept: JoinSet<()>,
    _dir: tempfile::TempDir,
}

impl Rack {
    async fn start(change: impl FnOnce(MonitorConfig) -> MonitorConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = change(config(dir.path(), ANY_PORT));
        let monitor = StartingMonitor::of(config).ready().await;
        let agent = Agent::start("node1", &monitor.addr, SLABS).await;
        let grants = monitor.client().await.allocate(request(1, SLABS.into(), &[])).await.unwrap();
        Self { monitor, _agent: agent, _kept: keep(&grants), _dir: dir }
    }

    async fn client(&self, caller: Caller) -> MonitorClient {
        let access = Access::new(&self.monitor.addr, login_of(&caller));
        MonitorClient::connect(&access).await.unwrap()
    }
}

fn user(name: &str, is_admin: bool) -> Caller {
    let (node, name) = ("node1".to_owned(), name.to_owned());
    Caller::User(User { node, uid: 7, name, is_admin })
}

fn waiting(client_id: u128) -> AllocationRequest {
    let queueing = Queueing { wait_ms: 3_600_000, ..Queueing::default() };
    AllocationRequest { queueing, ..request(client_id, 1, &[]) }
}

/// Sends requests that wait, all at once. Returns the number that wait, and the refusals.
async fn flood(client: &MonitorClient, ids: std::ops::Range<u128>) -> (usize, Vec<String>) {
    let mut asking = JoinSet::new();
    for id in ids {
        let mut client = client.clone();
        asking.spawn(async move { client.ask(waiting(id)).await });
    }
    let (mut waits, mut refused) = (0, Vec::new());
    for asked in bounded(asking.join_all()).await {
        match asked {
            Ok(Asked::Waits(_)) => waits += 1,
            Err(ControlError::Rack(RackError::TooMany(why))) => refused.push(why),
            other => panic!("{other:?}"),
        }
    }
    (waits, refused)
}

#[tokio::test]
async fn waiting_requests_are_bounded() {
    let rack = Rack::start(|config| MonitorConfig { user_waiting: 8, ..config }).await;
    let ada = rack.client(user("ada", false)).await;
    let (waits, refused) = flood(&ada, 100..120).await;
    assert_eq!((waits, refused.len()), (8, 12));
    assert!(refused[0].contains("ada@node1") && refused[0].contains("cancel"), "{refused:?}");
    let bob = rack.client(user("bob", false)).await;
    assert_eq!(flood(&bob, 200..203).await, (3, Vec::new()), "another user");
    let root = rack.client(user("root", true)).await;
    assert_eq!(flood(&root, 300..320).await, (20, Vec::new()), "an administrator");
    rack.monitor.stop().await;
}

#[tokio::test]
async fn queue_is_bounded_in_all() {
    let rack = Rack::start(|config| MonitorConfig { waiting: 5, ..config }).await;
    let ada = rack.client(user("ada", false)).await;
    assert_eq!(flood(&ada, 100..103).await.0, 3);
    let bob = rack.client(user("bob", false)).await;
    let (waits, refused) = flood(&bob, 200..205).await;
    assert_eq!((waits, refused.len()), (2, 3));
    assert!(refused[0].contains("try again later"), "{refused:?}");
    rack.monitor.stop().await;
}

#[tokio::test]
async fn calls_in_flight_are_bounded() {
    let rack = Rack::start(|config| MonitorConfig { user_calls: 2, ..config }).await;
    let ada = rack.client(user("ada", false)).await;
    // A request that waits is answered after a while: the calls behind it meet the bound.
    let mut ids = 100..;
    while flood(&ada, ids.start..ids.start + 20).await.1.is_empty() {
        ids.start += 20;
    }
    let mut root = rack.client(user("root", true)).await;
    assert!(root.nodes().await.is_ok());
    rack.monitor.stop().await;
}

/// The node reports from threads of its own: the flood must not hold it up, here or on a busy machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn flooded_queue_keeps_nodes_up() {
    const FLOOD: u128 = 2000;
    let bounds = |config| MonitorConfig {
        missed_heartbeats: 30,
        user_waiting: usize::MAX,
        waiting: usize::MAX,
        user_calls: usize::MAX,
        ..config
    };
    let rack = Rack::start(bounds).await;
    let ada = rack.client(user("ada", false)).await;
    let mut root = rack.client(user("root", true)).await;
    let (flooded, watched) = (flood(&ada, 1000..1000 + FLOOD), async {
        for _ in 0..20 {
            let nodes = root.nodes().await.unwrap();
            assert_eq!(nodes[0].state, "up");
        }
    });
    let ((waits, refused), ()) = tokio::join!(flooded, watched);
    assert_eq!((waits as u128, refused), (FLOOD, Vec::new()));
    // A request whose caller does not ask again leaves the queue after a while.
    assert!((1..=FLOOD).contains(&(root.queue().await.unwrap().len() as u128)));
    assert_eq!(root.grants().await.unwrap()[0].state, "committed");
    rack.monitor.stop().await;
}

#[tokio::test]
async fn control_characters_are_refused() {
    let rack = Rack::start(|config| config).await;
    let mut ada = rack.client(user("ada", false)).await;
    let (escape, long) = ("\u{1b}[2Jx".to_owned(), "x".repeat(65));
    for text in [&escape, &long] {
        let of_recipient = AllocationRequest { recipient: text.clone(), ..request(9, 1, &[]) };
        let of_purpose = AllocationRequest { purpose: text.clone(), ..request(9, 1, &[]) };
        for request in [of_recipient, of_purpose] {
            let said = ada.allocate(request).await.unwrap_err().to_string();
            assert!(said.contains("64 bytes without control characters"), "{said}");
        }
    }
    let access = Access::new(&rack.monitor.addr, login_of(&Caller::Node("node1".to_owned())));
    let mut agent = EnrolmentClient::connect(&access).await.unwrap();
    for name in [escape, long, "a\nb".to_owned()] {
        let request = KeyPem::generate().unwrap().request().unwrap();
        let said = agent.certify_user((7, name), request).await.unwrap_err().to_string();
        assert!(said.contains("control characters"), "{said}");
    }
    rack.monitor.stop().await;
}
