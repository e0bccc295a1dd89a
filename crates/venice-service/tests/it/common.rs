//! A supervisor with the test program as its host program, in a directory of its own.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use venice_ports::qpair::QPairAddress;
use venice_service::{
    Confinement, Endpoint, HostEvent, HostSpec, HostSupervisor, ServiceClient, ServiceSecret,
    SupervisorConfig,
};
use venice_wire::GrantId;

/// Limit of waits that a sound system ends at once.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Secret of all hosts.
pub const SECRET: ServiceSecret = ServiceSecret::from_bytes([7; 32]);
/// Grant of the host of most tests.
pub const GRANT: GrantId = GrantId(0x2a);

/// Path of the test program.
pub fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_venice-service-torment"))
}

/// True without root; says that the test is skipped.
pub fn skips_without_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("SKIPPED: {test}: no root");
    }
    !is_root
}

/// Supervisor of a test.
pub struct Fixture {
    pub supervisor: HostSupervisor,
    events: Receiver<HostEvent>,
    pub dir: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut SupervisorConfig)) -> Self {
        let dir = tempfile::Builder::new().prefix("venice-hosts").tempdir().unwrap();
        let mut config = SupervisorConfig::new(dir.path());
        config.program = program();
        change(&mut config);
        let (send, events) = channel();
        let on_event = move |event| {
            let _ = send.send(event);
        };
        let supervisor = HostSupervisor::open(config, on_event).unwrap();
        Self { supervisor, events, dir }
    }

    /// Waits for the next event.
    pub fn event(&self) -> HostEvent {
        self.events.recv_timeout(LIMIT).expect("an event follows")
    }

    /// Starts a host and waits until it listens.
    pub fn started(&self, spec: HostSpec) -> (Vec<Endpoint>, Confinement) {
        self.supervisor.start(GRANT, spec).unwrap();
        match self.event() {
            HostEvent::Started { grant, endpoints, confinement } => {
                assert_eq!(grant, GRANT);
                (endpoints, confinement)
            }
            other => panic!("not started: {other:?}"),
        }
    }

    /// Starts a host of `torment`, changed by `change`; returns a connection to it.
    pub fn torment(&self, change: impl FnOnce(&mut HostSpec)) -> ServiceClient {
        let mut spec = HostSpec::new("torment", SECRET);
        change(&mut spec);
        let (endpoints, _) = self.started(spec);
        connect(&endpoints[0], "torment")
    }

    /// Ends the host and waits until it has ended.
    pub fn end(&self) {
        self.supervisor.end(GRANT);
        assert_eq!(self.event(), HostEvent::Ended { grant: GRANT });
        assert_eq!(self.left(), Vec::<PathBuf>::new());
    }

    /// Waits for the report of a death; returns its reason.
    pub fn death(&self) -> String {
        match self.event() {
            HostEvent::Died { why, .. } => why,
            other => panic!("not dead: {other:?}"),
        }
    }

    /// Returns the directories of hosts that are left.
    pub fn left(&self) -> Vec<PathBuf> {
        let hosts = std::fs::read_dir(self.dir.path().join("hosts")).unwrap();
        hosts.map(|entry| entry.unwrap().path()).collect()
    }
}

/// Returns the address of a recipient without a seal.
pub fn address(endpoint: &Endpoint) -> QPairAddress {
    match endpoint {
        Endpoint::Ring(path) => QPairAddress::ring(path),
        Endpoint::Udp(address) => QPairAddress::plain_udp(*address),
    }
}

pub fn connect(endpoint: &Endpoint, service: &str) -> ServiceClient {
    ServiceClient::connect(&address(endpoint), service, SECRET, Some(LIMIT)).unwrap()
}
