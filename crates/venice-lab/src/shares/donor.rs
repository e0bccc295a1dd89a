//! The donor: a udp port of one thread, like an agent's, and a grant for each program.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use venice_fabric::TargetConfig;
use venice_memory::donor::{SharedGrants, Slab};
use venice_ports::random_u64;
use venice_ports::seal::{SealKeys, SealedAs, node_key};
use venice_ports::udp::{UdpServer, UdpService, UdpSocket};
use venice_wire::{GrantId, GrantKey, KeyName, NodeId, NodeSecret, SLAB_BYTES};

use crate::wire::Wire;

pub(super) const NODE: NodeId = NodeId(1);
pub(super) const KEY: GrantKey = GrantKey(0x5eed);
/// Bytes that each program has borrowed.
pub(super) const LENT_BYTES: u64 = SLAB_BYTES;
/// Largest number of programs in a case.
const PROGRAMS: u64 = 4;
/// The secret is a constant: the benchmark measures the cost of sealing only.
const SECRET: NodeSecret = NodeSecret([7; 32]);

/// The donor, until dropped.
pub(super) struct Donor {
    server: UdpServer,
}

impl Donor {
    /// Starts it at the far end of the wire, if there is one.
    pub(super) fn start(wire: Option<&Wire>) -> Result<Self> {
        let grants = SharedGrants::default();
        for grant in 1..=PROGRAMS {
            let slab = Slab::unlocked().context("no memory to lend")?;
            grants.lock().insert(GrantId(grant), KEY, vec![slab]);
        }
        let address = wire.map_or(Ipv4Addr::LOCALHOST, |wire| wire.far);
        let namespace = wire.map(Wire::namespace_file).transpose()?;
        // Threads inherit the namespace of their parent, so another thread enters the far end's.
        let starting = std::thread::spawn(move || -> Result<UdpServer> {
            if let Some(file) = namespace {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .context("cannot enter the network namespace")?;
            }
            let service = UdpService {
                sockets: vec![UdpSocket::bind((address, 0).into())?],
                target: TargetConfig::new(NODE, random_u64().context("no random numbers")?),
                keys: Some(Arc::new(SECRET) as Arc<dyn SealKeys + Send + Sync>),
                xdp: None,
            };
            Ok(UdpServer::serve(service, || grants.clone())?)
        });
        let started = starting.join();
        let server = started.unwrap_or_else(|_| bail!("the donor's thread panicked"))?;
        Ok(Self { server })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Returns the grant of a program, by its number in the case.
    pub(super) fn grant(&self, number: usize) -> u64 {
        number as u64 + 1
    }
}

/// Returns the key context of a grant's datagrams.
pub(super) fn sealed_as(grant: GrantId) -> SealedAs {
    let name = KeyName::Grant(grant);
    SealedAs { name, key: node_key(&SECRET, name) }
}
