//! The donor of a node: memory for programs over the rack's port, and QPairs.

mod memory;
mod talk;

use std::sync::{Arc, Mutex};

use anyhow::Result;
use venice_fabric::TargetConfig;
use venice_ports::random_u64;
use venice_ports::ring::{RingConfig, RingListener, RingServer};
use venice_ports::shm::ShmServer;
use venice_ports::udp::{Relay, UdpServer, UdpService, UdpSocket, Xdp, XdpInterface, XdpMode};
use venice_sim::rack::Sabotage;
use venice_wire::{GrantId, GrantKey, NodeId};

use self::memory::{Lent, Watched};
use crate::racks::notes::{Notebook, Role, Source, What};
use crate::racks::orders::{Order, Reply, orders, reply};
use crate::racks::plan::{Plan, Port, Service};
use crate::racks::relay;
use venice_testkit::network::INTERFACE;

/// The server of accesses; it works until dropped.
enum Server {
    Shm(ShmServer),
    Ring { _server: RingServer },
    Udp { _server: UdpServer },
    Relayed(Relay),
}

/// Lends until the parent closes the input.
///
/// # Errors
/// When the port cannot be opened.
pub fn run(plan: Plan, node: u16, life: u32, sabotage: Option<Sabotage>) -> Result<()> {
    let source = Source { role: Role::Donor, node, life };
    let notebook = Arc::new(Notebook::create(&plan.folder, source)?);
    let lent = Lent::new(&plan, sabotage, Arc::clone(&notebook));
    let lent = Watched(Arc::new(Mutex::new(lent)));
    let server = serve(&plan, node, lent.clone())?;
    talk::listen(&plan, node, Arc::clone(&notebook))?;
    reply(Reply::Ready);
    for order in orders() {
        match order {
            Order::Lend { grant, key, region } => {
                lent.lock().lend(GrantId(grant), GrantKey(key), region)?;
                reply(Reply::Lent { grant });
            }
            Order::End { grant } => {
                lent.lock().end(GrantId(grant));
                match &server {
                    Server::Shm(server) => server.revoke(GrantId(grant)),
                    Server::Relayed(relay) => relay.revoke(GrantId(grant)),
                    Server::Ring { .. } | Server::Udp { .. } => {}
                }
            }
            Order::Report => {
                lent.lock().report()?;
                if let Server::Relayed(relay) = &server {
                    notebook.note(What::Overruns { packets: relay::overruns(relay) });
                }
                reply(Reply::Reported);
            }
            Order::Connect { .. } | Order::Probe | Order::Begin { .. } | Order::Over { .. } => {}
        }
    }
    Ok(())
}

fn serve(plan: &Plan, node: u16, lent: Watched) -> Result<Server> {
    if let Some(topology) = plan.relays() {
        return Ok(Server::Relayed(relay::start(plan, topology, node, lent)?));
    }
    let config = TargetConfig {
        link: plan.link(node),
        ..TargetConfig::new(NodeId(node.into()), random_u64()?)
    };
    let path = plan.socket(node, Service::Memory);
    Ok(match plan.port {
        Port::Shm => Server::Shm(ShmServer::start(&path, lent)?),
        Port::Ring => {
            let listener = RingListener::bind(&path, RingConfig::default())?;
            Server::Ring { _server: RingServer::start(listener, config, lent)? }
        }
        Port::Udp | Port::Xdp => {
            let socket = UdpSocket::bind(Plan::donor_address(node, Service::Memory))?;
            let keys = plan.keys(node);
            let open = |interface| Xdp::open(&interface, &socket, plan.is_sealed());
            let interface = XdpInterface { name: INTERFACE.into(), mode: XdpMode::Generic };
            let xdp = (plan.port == Port::Xdp).then(|| open(interface)).transpose()?;
            let service = UdpService { sockets: vec![socket], target: config, keys, xdp };
            Server::Udp { _server: UdpServer::serve(service, || lent.clone())? }
        }
    })
}
