//! The relay's thread.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use venice_fabric::switch::{InjectError, Switch};
use venice_fabric::{GrantedMemory, Target};
use venice_wire::{
    Endpoint, MAX_FRAME_BYTES, MAX_PACKET_BYTES, MAX_PACKET_PAYLOAD_BYTES, NodeId,
    PACKET_HEADER_BYTES, Packet, PacketAddr, PacketRepr, SwitchPort, set_packet_source,
};

use super::delay::Delays;
use super::endpoints::Endpoints;
use super::far_ends::FarEnds;
use super::neighbours::Neighbours;
use super::{RelayConfig, RelayStats, Shared};
use crate::PortError;
use crate::udp::UdpSocket;
use crate::udp::alarm::Alarm;
use crate::udp::incoming::Incoming;
use crate::udp::outgoing::Outgoing;
use crate::udp::raw_address::RawAddress;
use crate::udp::serving::{Serving, serve};
use crate::udp::wait_set::WaitSet;

/// Interval of reports to the owner, in nanoseconds.
const STATS_NS: u64 = 100_000_000;
/// Longest wait for an emulated delivery that is spent awake, in nanoseconds: a sleep would end
/// late.
const AWAKE_NS: u64 = 60_000;

/// Datagrams longer than the path MTU are fragmented by IP; see `senders`.
const NO_LIMIT: usize = usize::MAX;

pub(super) struct RelayThread<M> {
    socket: UdpSocket,
    shared: Arc<Shared>,
    memory: M,
    node: NodeId,
    switch: Switch,
    target: Target,
    far_ends: FarEnds,
    endpoints: Endpoints,
    delays: Option<Delays>,
    /// Neighbours of `generation`.
    neighbours: Neighbours,
    generation: u64,
    incoming: Incoming,
    outgoing: Outgoing,
    /// A packet on its way in: a program's, or an answer of the target.
    scratch: Box<[u8]>,
    /// A datagram for this node, while it is opened.
    opening: Box<[u8]>,
    /// Length of an answer in `scratch` that the switch has no room for yet.
    waiting: Option<usize>,
    alarm: Alarm,
    wait_set: WaitSet,
    stats: RelayStats,
    reported_ns: u64,
    /// True while recipients are being notified of the end of a grant.
    is_notifying: bool,
}

impl<M: GrantedMemory> RelayThread<M> {
    pub(super) fn new(
        socket: UdpSocket,
        shared: Arc<Shared>,
        config: RelayConfig,
        memory: M,
    ) -> Result<Self, PortError> {
        let RelayConfig { mut switch, mut target, link, keys } = config;
        // The seal covers more than the frames' checksum.
        target.link.checksum &= keys.is_none();
        switch.link.checksum &= keys.is_none();
        let ports = switch.topology.ports(switch.position);
        let alarm = Alarm::new()?;
        Ok(Self {
            wait_set: WaitSet::new(&[alarm.as_fd(), shared.orders.as_fd()])?,
            outgoing: Outgoing::new(socket.offloads().segmentation),
            incoming: Incoming::new(),
            socket,
            shared,
            memory,
            node: target.node,
            neighbours: Neighbours::new(&switch, keys.clone()),
            switch: Switch::new(switch),
            far_ends: FarEnds::new(keys, target.max_links),
            target: Target::new(target),
            endpoints: Endpoints::new(),
            delays: link.map(|model| Delays::new(model, ports)),
            generation: 0,
            scratch: vec![0; MAX_PACKET_BYTES].into(),
            opening: vec![0; MAX_PACKET_PAYLOAD_BYTES].into(),
            waiting: None,
            alarm,
            stats: RelayStats::default(),
            reported_ns: 0,
            is_notifying: false,
        })
    }

    pub(super) fn run(self) {
        serve(self);
    }

    /// Takes one batch and sends everything that can go; returns true if something came in.
    fn take_batch(&mut self, now_ns: u64) -> rustix::io::Result<bool> {
        self.shared.orders.clear_wake();
        self.learn_neighbours();
        if self.shared.orders.apply(now_ns, &mut self.target) {
            self.is_notifying = true;
            self.far_ends.end_links_of_forgotten(&mut self.target);
        }
        if self.switch.poll_timeout() <= now_ns {
            self.switch.handle_timeout(now_ns);
        }
        if self.target.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.target.handle_timeout(now_ns);
        }
        let received = self.incoming.receive(self.socket.as_fd())?;
        if received > 0 {
            self.wait_set.note_batch(self.socket.as_fd());
        }
        self.sort_in(now_ns);
        // Answers of the target are packets for the switch, which may deliver them on this node.
        loop {
            self.deliver(now_ns)?;
            let has_answered = self.answer(now_ns);
            let has_sent = self.transmit(now_ns)?;
            if !has_answered && !has_sent {
                break;
            }
        }
        if self.is_notifying {
            self.is_notifying = self.shared.orders.update_pending(&self.target);
        }
        if now_ns.saturating_sub(self.reported_ns) >= STATS_NS {
            self.report(now_ns);
        }
        Ok(received > 0)
    }

    fn learn_neighbours(&mut self) {
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation == self.generation {
            return;
        }
        self.generation = generation;
        self.neighbours
            .learn(&self.shared.neighbours.lock().expect("no thread panics under this lock"));
    }

    /// Passes neighbours' datagrams to their links, and programs' packets into the network.
    fn sort_in(&mut self, now_ns: u64) {
        let Self { incoming, switch, endpoints, neighbours, shared, stats, node, .. } = self;
        incoming.for_each(|from, datagram| {
            let Some(from) = from.decode() else { return };
            let taken = neighbours.take(now_ns, from, datagram, |port, hop| {
                switch.handle_datagram(now_ns, port, hop);
            });
            match taken {
                Ok(true) => {}
                Ok(false) if Packet::parse(datagram).is_ok() => {
                    let endpoint = endpoints.touch(now_ns, from);
                    set_packet_source(datagram, PacketAddr { node: *node, endpoint });
                    // A packet without room or route is lost; the link above replays it.
                    stats.dropped += u64::from(switch.inject(now_ns, datagram).is_err());
                }
                Ok(false) => stats.dropped += 1,
                Err(dropped) => shared.counters.count(dropped),
            }
        });
    }

    /// Delivers packets for this node: accesses to its memory, and answers to its programs.
    fn deliver(&mut self, now_ns: u64) -> rustix::io::Result<()> {
        while let Some(packet) = self.switch.poll_local(now_ns) {
            let endpoint = packet.destination().endpoint;
            if endpoint == Endpoint::AGENT {
                let payload = &mut self.opening[..packet.payload().len()];
                payload.copy_from_slice(packet.payload());
                let Self { target, memory, .. } = self;
                let taken = self.far_ends.take(now_ns, packet.source(), payload, |from, frame| {
                    target.handle_frame(now_ns, from, frame, memory);
                });
                if let Err(dropped) = taken {
                    self.shared.counters.count(dropped);
                }
                continue;
            }
            let Some(address) = self.endpoints.address(endpoint) else {
                self.stats.dropped += 1;
                continue;
            };
            if self.outgoing.is_full() {
                self.outgoing.send(self.socket.as_fd())?;
            }
            let bytes = packet.as_bytes();
            self.outgoing.plain_buffer()[..bytes.len()].copy_from_slice(bytes);
            self.outgoing.push(&RawAddress::encode(address), bytes.len(), NO_LIMIT);
        }
        Ok(())
    }

    /// Passes the target's answers into the network; returns true if there were any.
    fn answer(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        loop {
            let len = match self.waiting.take() {
                Some(len) => len,
                None => match self.next_answer(now_ns) {
                    Some(len) => len,
                    None => return any,
                },
            };
            match self.switch.inject(now_ns, &self.scratch[..len]) {
                Ok(()) => any = true,
                Err(InjectError::WouldBlock) => {
                    self.waiting = Some(len);
                    return any;
                }
                // The requester is gone: its link detects that.
                Err(_) => self.stats.dropped += 1,
            }
        }
    }

    fn next_answer(&mut self, now_ns: u64) -> Option<usize> {
        loop {
            let payload = &mut self.scratch[PACKET_HEADER_BYTES..];
            let frame_at = self.far_ends.frame_at();
            let frame = &mut payload[frame_at..frame_at + MAX_FRAME_BYTES];
            let (to, frame_len) = self.target.poll_transmit(now_ns, frame)?;
            let Some((to, len)) = self.far_ends.wrap(to, frame_len, payload) else { continue };
            let source = PacketAddr { node: self.node, endpoint: Endpoint::AGENT };
            let repr = PacketRepr::new(source, to);
            repr.emit_header(len, &mut self.scratch).expect("the frame fits into a packet");
            return Some(PACKET_HEADER_BYTES + len);
        }
    }

    /// Sends the switch's packets to its neighbours; returns true if there were any.
    fn transmit(&mut self, now_ns: u64) -> rustix::io::Result<bool> {
        let mut any = false;
        loop {
            while !self.outgoing.is_full() {
                let buffer = self.neighbours.buffer(&mut self.outgoing);
                let Some((port, len)) = self.switch.poll_transmit(now_ns, buffer) else { break };
                any = true;
                if let Some(delays) = &mut self.delays {
                    self.stats.dropped += u64::from(!delays.delay(now_ns, port, &buffer[..len]));
                } else {
                    self.neighbours.push(&mut self.outgoing, port, len);
                }
            }
            let more = self.outgoing.is_full();
            if !self.outgoing.is_empty() {
                self.outgoing.send(self.socket.as_fd())?;
            }
            if !more {
                break;
            }
        }
        self.release_delayed(now_ns)?;
        Ok(any)
    }

    /// Sends datagrams that the emulated links deliver now.
    fn release_delayed(&mut self, now_ns: u64) -> rustix::io::Result<()> {
        let Some(delays) = &mut self.delays else { return Ok(()) };
        while let Some((port, datagram)) = delays.take_due(now_ns) {
            if self.outgoing.is_full() {
                self.outgoing.send(self.socket.as_fd())?;
            }
            self.neighbours.buffer(&mut self.outgoing)[..datagram.len()].copy_from_slice(datagram);
            self.neighbours.push(&mut self.outgoing, port, datagram.len());
        }
        if !self.outgoing.is_empty() {
            self.outgoing.send(self.socket.as_fd())?;
        }
        Ok(())
    }

    fn wait(&mut self, now_ns: u64) {
        let held_ns = self.delays.as_ref().and_then(Delays::poll_timeout);
        if held_ns.is_some_and(|at_ns| at_ns <= now_ns + AWAKE_NS) {
            rustix::thread::sched_yield();
            return;
        }
        let timers = [Some(self.switch.poll_timeout()), self.target.poll_timeout(), held_ns];
        self.alarm.set(now_ns, timers.into_iter().flatten().min());
        if self.wait_set.sleep(self.socket.as_fd()).is_err() {
            // The kernel is short of memory for a moment.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn report(&mut self, now_ns: u64) {
        self.reported_ns = now_ns;
        self.stats.switch = self.switch.stats();
        self.stats.endpoints = self.endpoints.len();
        let ports = self.switch.topology().ports(self.switch.position());
        let ports = (0..ports).map(SwitchPort);
        self.stats.hops.clear();
        let hops = ports.filter_map(|port| Some((port, self.switch.hop_stats(port)?)));
        self.stats.hops.extend(hops);
        self.shared.stats.lock().expect("no thread panics under this lock").clone_from(&self.stats);
        self.far_ends.publish(&self.shared.traffic);
    }
}

impl<M: GrantedMemory> Serving for RelayThread<M> {
    fn is_over(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire)
    }

    fn pump(&mut self, now_ns: u64) -> rustix::io::Result<bool> {
        self.take_batch(now_ns)
    }

    fn has_more(&self) -> bool {
        self.incoming.is_full()
    }

    fn sleep(&mut self, now_ns: u64) {
        self.wait(now_ns);
    }
}
