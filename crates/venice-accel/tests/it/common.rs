//! Service hosts of the test program, and the access of their recipients.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use venice_ports::seal::node_key;
use venice_rack::types::{Endpoint, ServiceAccess};
use venice_service::{
    Endpoint as HostEndpoint, EndpointSpec, HostEvent, HostSpec, HostSupervisor, SealSpec,
    ServiceSecret, SupervisorConfig, boot_id,
};
use venice_wire::{GrantId, KeyName, NodeSecret, PortId};

/// Limit of waits that a sound system ends at once.
pub const LIMIT: Duration = Duration::from_secs(60);
const SECRET: [u8; 32] = [7; 32];

/// Way to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    Shm,
    PlainUdp,
    SealedUdp,
}

pub const PORTS: [Port; 3] = [Port::Shm, Port::PlainUdp, Port::SealedUdp];

/// Supervisor of a test.
pub struct Fixture {
    supervisor: HostSupervisor,
    events: Receiver<HostEvent>,
    _dir: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("venice-accel").tempdir().unwrap();
        let mut config = SupervisorConfig::new(dir.path());
        config.program = PathBuf::from(env!("CARGO_BIN_EXE_venice-accel-torment"));
        let (send, events) = channel();
        let supervisor = HostSupervisor::open(config, move |event| {
            let _ = send.send(event);
        });
        Self { supervisor: supervisor.unwrap(), events, _dir: dir }
    }

    /// Starts a host and waits until it listens; `change` changes its spec.
    pub fn start(
        &self,
        grant: u64,
        service: &str,
        port: Port,
        change: impl FnOnce(&mut HostSpec),
    ) -> ServiceAccess {
        self.try_start(grant, service, port, change).unwrap_or_else(|why| panic!("{why}"))
    }

    pub fn try_start(
        &self,
        grant: u64,
        service: &str,
        port: Port,
        change: impl FnOnce(&mut HostSpec),
    ) -> Result<ServiceAccess, String> {
        let grant = GrantId(grant);
        let key = node_key(&NodeSecret([3; 32]), KeyName::Grant(grant)).0;
        let address = "127.0.0.1:0".parse().unwrap();
        let mut spec = HostSpec::new(service, ServiceSecret::from_bytes(SECRET));
        match port {
            Port::Shm => {}
            Port::PlainUdp => spec.endpoints = vec![EndpointSpec::Udp { address, seal: None }],
            Port::SealedUdp => {
                let seal = Some(SealSpec { grant, key });
                spec.endpoints = vec![EndpointSpec::Udp { address, seal }];
            }
        }
        change(&mut spec);
        self.supervisor.start(grant, spec).unwrap();
        match self.event() {
            HostEvent::Started { endpoints, .. } => {
                let endpoints = endpoints.iter().map(|it| endpoint(it, port, key)).collect();
                Ok(ServiceAccess { grant, service: service.into(), secret: SECRET, endpoints })
            }
            HostEvent::Failed { why, .. } => Err(why),
            other => panic!("not started: {other:?}"),
        }
    }

    pub fn event(&self) -> HostEvent {
        self.events.recv_timeout(LIMIT).expect("an event follows")
    }

    /// Returns the busy time of a host's service in nanoseconds, as it wrote it last.
    pub fn busy_ns(&self, access: &ServiceAccess) -> u64 {
        let sample = self.supervisor.usage(access.grant);
        sample.and_then(|it| it.usage.busy_ns).unwrap_or(0)
    }

    /// Ends a host and waits until it has ended.
    pub fn end(&self, access: &ServiceAccess) {
        self.supervisor.end(access.grant);
        assert_eq!(self.event(), HostEvent::Ended { grant: access.grant });
    }
}

fn endpoint(host: &HostEndpoint, port: Port, key: [u8; 32]) -> Endpoint {
    match host {
        HostEndpoint::Ring(path) => Endpoint {
            extra: boot_id().into_bytes(),
            ..Endpoint::new(PortId::Ring, path.display().to_string())
        },
        HostEndpoint::Udp(address) => {
            let extra = if port == Port::SealedUdp { key.to_vec() } else { Vec::new() };
            Endpoint { extra, ..Endpoint::new(PortId::Udp, address.to_string()) }
        }
    }
}
