//! Far memory of several donors, over any port of the rack.

use anyhow::Result;
use venice_fabric::{
    AccessError, FabricError, Initiator, InitiatorConfig, PeerIndex, PeerState, Revocation,
};
use venice_ports::channels::{ChannelError, Channels, FrameDriver, ShmChannels};
use venice_ports::ring::{RingDriver, connect_ring};
use venice_ports::udp::{UdpDriver, unspecified_like};
use venice_ports::{PortError, monotonic_ns, random_u64};
use venice_sim::checkers::Change;
use venice_sim::scenario::{Access, Kind};
use venice_wire::{GrantId, GrantKey, NodeId, SLAB_BYTES};

use crate::racks::plan::{Plan, Port, Service};

/// The channels, and the path to each donor.
pub(super) struct Far {
    plan: Plan,
    node: u16,
    channels: Channels,
    ways: Vec<Way>,
}

#[derive(Debug)]
struct Way {
    donor: u16,
    peer: Option<PeerIndex>,
    grant: GrantId,
    is_mapped: bool,
    /// Number of links to the donor so far.
    lane: u32,
}

/// A completed access.
pub(super) struct Over {
    pub token: u64,
    pub result: Result<(), AccessError>,
    pub data: Vec<u8>,
}

impl Far {
    pub fn new(plan: &Plan, node: u16) -> Result<Self> {
        let config = InitiatorConfig {
            link: plan.link(node),
            crma_depth: plan.scenario.protocol.crma_depth,
            rdma_depth: 8,
            ..InitiatorConfig::new(NodeId(node.into()), random_u64()?)
        };
        let donors = plan.scenario.donors_of(node);
        let channels = match plan.port {
            Port::Shm => ShmChannels::new(None)?.into(),
            Port::Ring => RingDriver::new(config)?.into(),
            Port::Udp | Port::Xdp => {
                let near = unspecified_like(Plan::donor_address(node, Service::Memory));
                match plan.is_sealed() {
                    true => UdpDriver::sealed(near, config)?.into(),
                    false => UdpDriver::new(near, config)?.into(),
                }
            }
        };
        let way = |donor| Way { donor, peer: None, grant: GrantId(0), is_mapped: false, lane: 0 };
        let ways = donors.into_iter().map(way).collect();
        Ok(Self { plan: plan.clone(), node, channels, ways })
    }

    pub fn is_mapped(&self, session: usize) -> bool {
        self.ways[session].is_mapped
    }

    /// Returns the number of links to a donor so far.
    pub fn lane(&self, session: usize) -> u32 {
        self.ways[session].lane
    }

    /// Maps a grant, over a new link if there is none.
    pub fn connect(&mut self, session: usize, grant: GrantId, key: GrantKey) -> Result<()> {
        let donor = self.ways[session].donor;
        let (id, addr) = (NodeId(donor.into()), window_addr(session));
        if let Channels::Shm(shm) = &mut self.channels {
            let socket = self.plan.socket(donor, Service::Memory);
            shm.map_grant(addr, id, &socket, grant, key, SLAB_BYTES)?;
            self.ways[session].lane += 1;
        } else {
            let peer = match self.ways[session].peer {
                Some(peer) => peer,
                None => {
                    let peer = self.add_peer(donor)?;
                    self.ways[session].lane += 1;
                    *self.ways[session].peer.insert(peer)
                }
            };
            let len_bytes = self.plan.scenario.workload.window_bytes().into();
            self.initiator().map_window(addr, len_bytes, peer, 0, grant, key)?;
        }
        (self.ways[session].grant, self.ways[session].is_mapped) = (grant, true);
        Ok(())
    }

    fn add_peer(&mut self, donor: u16) -> Result<PeerIndex> {
        let (now_ns, id) = (monotonic_ns(), NodeId(donor.into()));
        Ok(match &mut self.channels {
            Channels::Ring(ring) => {
                let port = connect_ring(&self.plan.socket(donor, Service::Memory))?;
                ring.driver().add_peer(now_ns, id, port)?
            }
            Channels::Udp(udp) if self.plan.relays().is_some() => {
                let (home, named) =
                    (Plan::relay_address(self.node), self.plan.seal(self.node, donor));
                udp.driver().add_peer_via(now_ns, id, home, named)?
            }
            Channels::Udp(udp) => {
                let address = self.plan.forwarder_address(self.node, donor, Service::Memory);
                match self.plan.seal(self.node, donor) {
                    Some(named) => udp.driver().add_sealed_peer(now_ns, id, address, named)?,
                    None => udp.driver().add_peer(now_ns, id, address)?,
                }
            }
            Channels::Shm(_) | Channels::Verbs(_) => unreachable!("mapped, not linked"),
        })
    }

    /// Unmaps a window: its grant is over, or its donor is down.
    pub fn unmap(&mut self, session: usize) {
        if !std::mem::take(&mut self.ways[session].is_mapped) {
            return;
        }
        let addr = window_addr(session);
        match &mut self.channels {
            Channels::Shm(shm) => shm.unmap(addr).expect("it was mapped"),
            // The fabric removes windows of revoked grants by itself.
            _ => drop(self.initiator().unmap_window(addr)),
        }
    }

    /// Returns the next session whose link is found to be down, with the error. Its window is
    /// unmapped.
    pub fn next_down(&mut self) -> Option<(usize, String)> {
        for session in 0..self.ways.len() {
            let Some(peer) = self.ways[session].peer else { continue };
            if let PeerState::Down { reason } = self.initiator().peer_state(peer) {
                self.ways[session].peer = None;
                self.unmap(session);
                return Some((session, reason.to_string()));
            }
        }
        None
    }

    /// Returns the next session whose donor has revoked its memory.
    pub fn next_revoked(&mut self) -> Option<usize> {
        if let Channels::Shm(_) = self.channels {
            // That port has no such notices.
            return None;
        }
        while let Some(Revocation { peer, grant, .. }) = self.initiator().poll_revoked() {
            let is_it = |way: &Way| way.is_mapped && (way.peer, way.grant) == (Some(peer), grant);
            if let Some(session) = self.ways.iter().position(is_it) {
                return Some(session);
            }
        }
        None
    }

    /// Starts an access; `bytes` are those of a write, `change` that of an atomic.
    pub fn start(
        &mut self,
        token: u64,
        access: &Access,
        bytes: &[u8],
        change: Option<Change>,
    ) -> Result<(), FabricError> {
        let &Access { session, kind, at, len } = access;
        let addr = window_addr(session) + u64::from(at);
        let channels = &mut self.channels;
        match change {
            Some(Change::Add(add)) => return channels.start_fetch_add(token, addr, add),
            Some(Change::Swap { expected, new }) => {
                return channels.start_compare_swap(token, addr, expected, new);
            }
            None => {}
        }
        match kind {
            Kind::Read => channels.start_read(token, addr, len),
            Kind::Write => channels.start_write(token, addr, bytes),
            Kind::BulkRead => channels
                .start_rdma_read(token, addr, vec![0; len as usize])
                .map_err(|rejected| rejected.error),
            Kind::BulkWrite => channels
                .start_rdma_write(token, addr, bytes.to_vec())
                .map_err(|rejected| rejected.error),
            kind => unreachable!("{kind:?} is not an access"),
        }
    }

    /// Posts a write. Waits while too many are outstanding.
    pub fn post(&mut self, access: &Access, bytes: &[u8]) -> Result<(), ChannelError> {
        let addr = window_addr(access.session) + u64::from(access.at);
        self.channels.post(addr, bytes)
    }

    /// Waits until all posted writes are executed.
    pub fn fence(&mut self) -> Result<(), ChannelError> {
        self.channels.fence()
    }

    /// Returns the next completed access.
    pub fn poll(&mut self) -> Result<Option<Over>, PortError> {
        if let Some(done) = self.channels.poll()? {
            let (token, result, data) = (done.token, done.result, done.data.to_vec());
            return Ok(Some(Over { token, result, data }));
        }
        let done = self.channels.poll_rdma()?;
        Ok(done.map(|done| Over { token: done.token, result: done.result, data: done.buffer }))
    }

    /// Sleeps until input may have come.
    pub fn wait(&mut self, timeout_ns: u64) -> Result<(), PortError> {
        if let Channels::Shm(_) = self.channels {
            // This port gives no notice.
            std::thread::sleep(std::time::Duration::from_nanos(timeout_ns));
            return Ok(());
        }
        self.channels.wait(timeout_ns)
    }

    fn initiator(&mut self) -> &mut Initiator {
        match &mut self.channels {
            Channels::Ring(ring) => FrameDriver::initiator(ring.driver()),
            Channels::Udp(udp) => FrameDriver::initiator(udp.driver()),
            Channels::Shm(_) | Channels::Verbs(_) => unreachable!("no frames go there"),
        }
    }
}

/// Returns the address of a session's window.
fn window_addr(session: usize) -> u64 {
    (session as u64 + 1) * SLAB_BYTES
}
