//! A node: its program with an initiator, its agent with a target, and the memory it lends.

use std::collections::VecDeque;

use venice_fabric::{
    Initiator, InitiatorConfig, LinkConfig, PeerAddr, PeerIndex, PeerState, Target, TargetConfig,
    Topology,
};
use venice_wire::MAX_FRAME_BYTES;

use super::client::Client;
use super::memory::{Lent, Watched};
use super::relay::Relay;
use super::sabotage::Saboteur;
use super::talk::SERVICE;
use super::talks::Talks;
use crate::checkers::Oracle;
use crate::network::{Datagram, End, node_id};
use crate::report::LinkTotals;
use crate::scenario::{Protocol, Scenario};
use venice_simkernel::random::Stream;

/// Frames queued for a frozen node; more are lost, as in a socket's buffer.
const MAX_WAITING: usize = 256;

pub(super) struct Node {
    pub number: u16,
    /// Number of crashes and restarts.
    pub life_number: u32,
    pub is_dead: bool,
    /// Number of faults that keep it dead.
    pub crashes: u32,
    /// Number of faults that freeze it.
    pub freezes: u32,
    /// Number of faults that keep it from lending.
    pub revokes: u32,
    /// Offset of its clock, in nanoseconds.
    pub clock_ahead_ns: u64,
    pub timer_ns: Option<u64>,
    pub wants: bool,
    pub initiator: Initiator,
    pub target: Target,
    pub lent: Lent,
    pub client: Client,
    /// QPairs of the program and of the agent.
    pub talks: [Talks; 2],
    /// Its switch, if frames are relayed.
    pub relay: Option<Relay>,
    /// The donor behind each peer, and the latest peer of each donor.
    peers: Vec<u16>,
    topology: Topology,
    protocol: Protocol,
    waiting: VecDeque<Datagram>,
    /// Counts of the links of earlier lives.
    past: LinkTotals,
    rng: Stream,
    /// Buffer for outgoing frames.
    buf: Box<[u8]>,
}

impl Node {
    pub fn new(scenario: &Scenario, topology: Topology, number: u16) -> Self {
        let root = scenario.node_stream(number);
        let mut rng = root.split("life", &[]);
        let donors = scenario.donors_of(number);
        let mut client = Client::new(scenario.workload, &donors, root.split("client", &[]));
        if donors.is_empty() {
            client.accesses_left = 0;
        }
        let (initiator, target) = fresh(&scenario.protocol, number, &mut rng);
        let relay = new_relay(topology, number, &scenario.protocol, &mut rng);
        Self {
            topology,
            relay,
            talks: Default::default(),
            number,
            life_number: 0,
            is_dead: false,
            crashes: 0,
            freezes: 0,
            revokes: 0,
            clock_ahead_ns: root.split("clock", &[]).below(1 << 40),
            timer_ns: None,
            wants: false,
            initiator,
            target,
            lent: Lent::default(),
            client,
            peers: Vec::new(),
            protocol: scenario.protocol,
            waiting: VecDeque::new(),
            past: LinkTotals::default(),
            rng,
            buf: vec![0; MAX_FRAME_BYTES].into(),
        }
    }

    /// True if it runs.
    pub fn is_awake(&self) -> bool {
        !self.is_dead && self.freezes == 0
    }

    /// True if its program has done all its work and has all its memory.
    pub fn is_content(&self) -> bool {
        self.is_awake()
            && self.client.is_done()
            && self.client.sessions.iter().all(|session| session.is_mapped)
            && self.waiting.is_empty()
    }

    /// Describes its pending work, for a violation.
    pub fn tell(&self) -> String {
        let client = &self.client;
        let mapped = client.sessions.iter().filter(|session| session.is_mapped).count();
        format!(
            "node {}: {} accesses to go, idle: {}, {mapped} of {} windows mapped",
            self.number,
            client.accesses_left,
            client.is_idle(),
            client.sessions.len()
        )
    }

    /// Drops all state; the next life begins with fresh numbers.
    pub fn restart(&mut self) {
        self.life_number += 1;
        self.past = self.link_totals();
        (self.initiator, self.target) = fresh(&self.protocol, self.number, &mut self.rng);
        self.relay = new_relay(self.topology, self.number, &self.protocol, &mut self.rng);
        self.peers.clear();
        self.waiting.clear();
        let sessions = &mut self.client.sessions;
        sessions.iter_mut().for_each(|session| session.is_reconnecting = false);
        (self.timer_ns, self.wants) = (None, false);
    }

    /// Returns the counts of all its links so far.
    pub fn link_totals(&self) -> LinkTotals {
        let peers = (0..self.peers.len() as u32).map(PeerIndex);
        let called = peers.map(|peer| self.initiator.peer_stats(peer));
        let answered = self.target.link_stats().map(|(_, _, stats)| stats);
        called.chain(answered).fold(self.past, |sum, stats| LinkTotals {
            sent: sum.sent + stats.sent,
            replayed: sum.replayed + stats.replayed,
            duplicates: sum.duplicates + stats.duplicates,
            early: sum.early + stats.early,
            naks: sum.naks + stats.naks_sent,
            pings: sum.pings + stats.pings,
        })
    }

    /// Restarts the program alone.
    pub fn restart_recipient(&mut self) {
        (self.initiator, _) = fresh(&self.protocol, self.number, &mut self.rng);
        self.peers.clear();
    }

    /// True if its program has a link that is up with this donor.
    pub fn is_up_with(&self, donor: u16) -> bool {
        let mut sessions = self.client.sessions.iter().filter(|session| session.donor == donor);
        sessions.any(|session| {
            session.peer.is_some_and(|peer| self.initiator.peer_state(peer) == PeerState::Up)
        })
    }

    /// Returns the donor behind a peer.
    pub fn donor_of(&self, peer: PeerIndex) -> u16 {
        self.peers[peer.0 as usize]
    }

    /// Adds a link to a donor.
    pub fn add_peer(&mut self, donor: u16, now_ns: u64) -> PeerIndex {
        let local_ns = now_ns + self.clock_ahead_ns;
        let peer = self.initiator.add_peer(node_id(donor), local_ns);
        self.peers.push(donor);
        peer
    }

    /// Handles a frame; returns true if the node took it.
    pub fn take_in(
        &mut self,
        datagram: Datagram,
        now_ns: u64,
        oracle: &mut Oracle,
        saboteur: &mut Saboteur,
    ) -> bool {
        if self.is_dead {
            return false;
        }
        if self.freezes > 0 {
            if self.waiting.len() < MAX_WAITING {
                self.waiting.push_back(datagram);
            }
            return false;
        }
        self.handle(&datagram, now_ns, oracle, saboteur);
        true
    }

    /// Handles the frames that came while it was frozen.
    pub fn catch_up(&mut self, now_ns: u64, oracle: &mut Oracle, saboteur: &mut Saboteur) {
        while let Some(datagram) = self.waiting.pop_front() {
            self.handle(&datagram, now_ns, oracle, saboteur);
        }
        self.handle_timeout(now_ns);
    }

    fn handle(
        &mut self,
        datagram: &Datagram,
        now_ns: u64,
        oracle: &mut Oracle,
        saboteur: &mut Saboteur,
    ) {
        let local_ns = now_ns + self.clock_ahead_ns;
        match datagram.to_end {
            End::Switch => {
                let relay =
                    self.relay.as_mut().expect("only nodes with a switch get hop datagrams");
                relay.handle(local_ns, datagram);
            }
            End::Donor => {
                let mut memory = Watched { lent: &mut self.lent, oracle, saboteur, now_ns };
                let from = PeerAddr(datagram.from.into());
                self.target.handle_frame(local_ns, from, &datagram.bytes, &mut memory);
            }
            End::Recipient => {
                let latest = self.peers.iter().rposition(|&donor| donor == datagram.from);
                if let Some(peer) = latest {
                    let peer = PeerIndex(peer as u32);
                    self.initiator.handle_frame(local_ns, peer, &datagram.bytes);
                }
            }
        }
    }

    pub fn handle_timeout(&mut self, now_ns: u64) {
        let local_ns = now_ns + self.clock_ahead_ns;
        self.initiator.handle_timeout(local_ns);
        self.target.handle_timeout(local_ns);
        if let Some(relay) = &mut self.relay {
            relay.switch.handle_timeout(local_ns);
        }
    }

    /// Returns the time of its next timer, in the rack's time.
    pub fn poll_timeout(&self) -> Option<u64> {
        let ends = [self.initiator.poll_timeout(), self.target.poll_timeout()];
        let local_ns = match &self.relay {
            None => ends.into_iter().flatten().min()?,
            // Their frames wait for the switch, which reports room.
            Some(relay) if !relay.has_room() => relay.switch.poll_timeout(),
            Some(relay) => ends.into_iter().flatten().fold(relay.switch.poll_timeout(), u64::min),
        };
        Some(local_ns.saturating_sub(self.clock_ahead_ns))
    }

    /// Handles the next frame from the switch for this node. Returns true if there was one.
    pub fn take_local(
        &mut self,
        now_ns: u64,
        oracle: &mut Oracle,
        saboteur: &mut Saboteur,
    ) -> bool {
        let local_ns = now_ns + self.clock_ahead_ns;
        let Some(frame) = self.relay.as_mut().and_then(|relay| relay.poll_local(local_ns)) else {
            return false;
        };
        self.handle(&frame, now_ns, oracle, saboteur);
        true
    }

    /// Returns the next frame to send.
    pub fn poll_transmit(&mut self, now_ns: u64) -> Option<Datagram> {
        let local_ns = now_ns + self.clock_ahead_ns;
        let buf = &mut self.buf[..];
        let (to, from_end, to_end, len) =
            if let Some((peer, len)) = self.initiator.poll_transmit(local_ns, buf) {
                (self.peers[peer.0 as usize], End::Recipient, End::Donor, len)
            } else {
                let (to, len) = self.target.poll_transmit(local_ns, buf)?;
                (to.0 as u16, End::Donor, End::Recipient, len)
            };
        let bytes = self.buf[..len].to_vec();
        Some(Datagram { from: self.number, from_end, to, to_end, bytes })
    }
}

fn fresh(protocol: &Protocol, number: u16, rng: &mut Stream) -> (Initiator, Target) {
    let link = LinkConfig {
        // The ends of a link may have different numbers of buffers.
        window: protocol.window << (number % 2),
        ack_delay_ns: protocol.ack_delay.0,
        replay_min_ns: protocol.replay_min.0,
        replay_max_ns: protocol.replay_max.0,
        keepalive_ns: protocol.keepalive.0,
        silence_ns: protocol.silence.0,
        ..LinkConfig::default()
    };
    let id = node_id(number);
    let initiator = Initiator::new(InitiatorConfig {
        link: link.clone(),
        crma_depth: protocol.crma_depth,
        rdma_depth: 8,
        max_qpairs: 16,
        ..InitiatorConfig::new(id, rng.draw())
    });
    let config = TargetConfig { link, max_qpairs: 64, ..TargetConfig::new(id, rng.draw()) };
    let mut target = Target::new(config);
    target.qpairs_mut().listen(SERVICE, 64).expect("the service is free");
    (initiator, target)
}

fn new_relay(
    topology: Topology,
    number: u16,
    protocol: &Protocol,
    rng: &mut Stream,
) -> Option<Relay> {
    topology.has_relays().then(|| Relay::new(topology, number, protocol, rng.draw()))
}
