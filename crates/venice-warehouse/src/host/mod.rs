//! A server: cores, threads, operating system, sockets and network card.
//!
//! Function and timing are apart: a call takes effect at the end of a step whose length is its cost;
//! what the effect leads to (packets sent, threads woken) is charged to the same core, and delays what
//! comes next on it. The kernel's work comes before threads: a received packet delays the thread that
//! runs on the interrupted core.

pub mod config;
mod core;
pub mod kernel;
mod moved;
mod nic;
pub mod noise;
pub mod profile;
mod run;
mod socket;
mod system;
mod tcp;
pub mod thread;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use venice_simkernel::engine::Outbox;
use venice_simkernel::prefetch::{Ahead, prefetch, prefetch_first};
use venice_simkernel::random::Stream;

use self::core::Core;
use self::nic::Nic;
use self::socket::{Epoll, Kind, Listener, Socket, Udp};
use self::thread::{Call, EpollId, SocketId, State, Thread, ThreadId};
use crate::application::Program;
use crate::capture::LinkEnd;
use crate::journey::{JourneyId, Journeys, Stage};
use crate::packet::{
    Body, Datagram, Ecn, Endpoint, Host as HostId, LISTENING, Packet, PacketId, Packets,
};
use crate::part::{Event, Shared};
use crate::records::{Drop, Records};

/// A server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Host {
    cores: Vec<Core>,
    threads: Vec<Thread>,
    sockets: Vec<Socket>,
    free_sockets: Vec<SocketId>,
    epolls: Vec<Epoll>,
    locks: Vec<Lock>,
    nic: Nic,
    /// Sockets that the last `epoll_wait` returned.
    ready: Vec<SocketId>,
    /// Connections opened, for their first sequence numbers.
    opened: u32,
}

impl Host {
    /// Prefetches what most events use: the host itself, then its first core, thread and socket.
    #[inline]
    pub fn prefetch(&self, ahead: Ahead) {
        match ahead {
            Ahead::Far => prefetch(self, 4),
            Ahead::Near => {
                prefetch_first(&self.cores, 4);
                prefetch_first(&self.threads, 3);
                prefetch_first(&self.sockets, 2);
            }
        }
    }
}

/// A lock, or a barrier.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Lock {
    owner: Option<ThreadId>,
    waiting: VecDeque<ThreadId>,
    parties: u16,
}

/// The surroundings of a host at one instant.
pub(crate) struct Cx<'a, 'b> {
    /// The host.
    pub host: HostId,
    /// The instant.
    pub now: u64,
    /// The time that the effects of this instant have cost so far.
    pub charged: u64,
    /// The core that they are charged to, which decides itself what it does next.
    pub core: Option<u16>,
    /// Packets of this part of the world.
    pub packets: &'a mut Packets,
    /// Requests that are followed.
    pub journeys: &'a mut Journeys,
    /// New events.
    pub out: &'a mut Outbox<'b, Event>,
    /// Measurements.
    pub records: &'a mut Records,
    /// Constants of all hosts.
    pub shared: &'a Shared,
}

impl Cx<'_, '_> {
    /// The instant at which the next effect happens.
    pub fn time(&self) -> u64 {
        self.now + self.charged
    }

    /// Charges instructions to the core.
    fn charge(&mut self, instructions: u32) {
        self.charged += self.shared.time_of(instructions);
    }

    /// Makes an event of this host at a time.
    fn send_at(&mut self, at: u64, event: Event) {
        self.out.send(self.host, at - self.now, event);
    }

    /// Ends a stage of a request, if it is followed, at the instant of the next effect.
    fn end_stage(&mut self, journey: Option<JourneyId>, stage: Stage) {
        if let Some(id) = journey {
            let now = self.time();
            self.journeys.get_mut(id).end(stage, now);
        }
    }

    /// Follows a request no longer.
    fn forget(&mut self, journey: Option<JourneyId>) {
        if let Some(id) = journey {
            self.journeys.remove(id);
        }
    }

    /// Counts a packet that is in no queue as lost.
    fn lose(&mut self, packet: &Packet, cause: Drop) {
        self.forget(packet.journey);
        self.records.drop_packet(cause);
    }
}

/// Builds a server before the world begins.
#[derive(Debug)]
pub struct Setup {
    host: Host,
    random: Stream,
}

impl Setup {
    /// A server without programs. Its threads draw from streams below `random`.
    pub fn new(cores: u16, random: Stream) -> Self {
        let core = |number: u16| Core::new(random.split("noise", &[number.into()]));
        let host = Host {
            cores: (0..cores).map(core).collect(),
            threads: Vec::new(),
            sockets: Vec::new(),
            free_sockets: Vec::new(),
            epolls: Vec::new(),
            locks: Vec::new(),
            nic: Nic::new(random.split("card", &[])),
            ready: Vec::new(),
            opened: 0,
        };
        Self { host, random }
    }

    /// Opens a socket for datagrams. The first has number 0.
    pub fn udp(&mut self) -> SocketId {
        self.host.open_socket(Kind::Udp(Udp::default()))
    }

    /// Opens a socket that takes connections. Its number is that of the first free one.
    pub fn listener(&mut self) -> SocketId {
        self.host.open_socket(Kind::Listener(Listener::default()))
    }

    /// Makes an epoll instance that watches some sockets.
    ///
    /// # Panics
    /// If the host has 64 already.
    pub fn epoll(&mut self, watched: &[SocketId]) -> EpollId {
        let id = self.host.epolls.len() as EpollId;
        assert!(id < 64, "a host has at most 64 epoll instances");
        self.host.epolls.push(Epoll::default());
        for socket in watched {
            self.host.sockets[*socket as usize].watched_by |= 1 << id;
        }
        id
    }

    /// Makes a lock, or a barrier of so many parties.
    pub fn lock(&mut self, parties: u16) -> thread::LockId {
        self.host.locks.push(Lock { parties, ..Lock::default() });
        self.host.locks.len() as thread::LockId - 1
    }

    /// Starts a program in a thread of its own.
    pub fn thread(&mut self, program: Program) {
        let number = self.host.threads.len();
        let core = (number % self.host.cores.len()) as u16;
        self.host.threads.push(Thread {
            program,
            random: self.random.split("thread", &[number as u64]),
            call: Call::Continue,
            state: State::Asleep,
            core,
            wakes_at: 0,
            has_met: false,
            opening: None,
            written: 0,
            journey: None,
        });
    }

    /// Returns the server. Its first event is [`Event::Start`].
    pub fn build(self) -> Host {
        self.host
    }
}

impl Host {
    /// Handles an event.
    pub(crate) fn handle(&mut self, event: Event, cx: &mut Cx<'_, '_>) {
        match event {
            Event::Start => self.start(cx),
            Event::Arrive { packet, .. } => self.arrive(packet, cx),
            Event::Interrupt { number } => self.interrupt(number, cx),
            Event::KernelDone { core } => self.kernel_done(core, cx),
            Event::StepDone { core, number } => self.step_done(core, number, cx),
            Event::ThreadTimer { thread } => self.thread_timer(thread, cx),
            Event::SocketTimer { socket } => self.socket_timer_due(socket, cx),
            Event::Output { .. } => unreachable!("an event of switches"),
        }
    }

    /// Starts all threads.
    fn start(&mut self, cx: &mut Cx<'_, '_>) {
        for number in 0..self.threads.len() {
            let thread = &mut self.threads[number];
            thread.state = State::Ready { left: 0 };
            self.cores[usize::from(thread.core)].queue.push_back(number as ThreadId);
        }
        for core in 0..self.cores.len() as u16 {
            self.run_next(core, cx);
        }
    }

    /// A packet is in the memory of the host.
    fn arrive(&mut self, packet: PacketId, cx: &mut Cx<'_, '_>) {
        cx.end_stage(cx.packets.get(packet).journey, Stage::Wire);
        let config = &cx.shared.server.nic;
        if !self.nic.receive(packet, config) {
            let packet = cx.packets.remove(packet);
            return cx.lose(&packet, Drop::ReceiveRing);
        }
        if let Some(at) = self.nic.next_interrupt(cx.now, config) {
            let number = self.nic.interrupt;
            cx.send_at(at, Event::Interrupt { number });
        }
    }

    fn interrupt(&mut self, number: u32, cx: &mut Cx<'_, '_>) {
        if self.nic.is_polled || number != self.nic.interrupt {
            return;
        }
        self.nic.begin_poll(cx.now);
        let core = cx.shared.server.nic.interrupt_core;
        if self.cores[usize::from(core)].kernel.is_none() {
            self.begin_kernel_work(core, cx);
        }
    }

    /// Passes a packet from the ring to its socket.
    fn deliver(&mut self, packet: PacketId, cx: &mut Cx<'_, '_>) {
        let packet = cx.packets.remove(packet);
        cx.end_stage(packet.journey, Stage::Receive);
        let socket = packet.to.port & !LISTENING;
        match (&packet.body, self.sockets.get_mut(socket as usize).map(|socket| &mut socket.kind)) {
            (Body::Udp(datagram), Some(Kind::Udp(udp))) => {
                let buffers = &cx.shared.server.kernel.values.sockets;
                if !udp.push(packet.from, *datagram, packet.journey, buffers) {
                    return cx.lose(&packet, Drop::SocketBuffer);
                }
                cx.records.deliver_packet();
                self.wake_readers(socket, cx);
            }
            (Body::Tcp(segment), Some(_)) => self.deliver_segment(&packet, segment, cx),
            (Body::Udp(_) | Body::Tcp(_), _) => cx.lose(&packet, Drop::NoSocket),
        }
    }

    /// Gives a packet to the network card.
    fn transmit(&mut self, packet: Packet, cx: &mut Cx<'_, '_>) {
        let shared = cx.shared;
        let at = cx.time() + shared.server.nic.dma_latency.0;
        let link = shared.topology.host_link(cx.host);
        cx.records.make_packet();
        match self.nic.send(at, packet.bytes, link.rate, &shared.server.nic) {
            None => {
                cx.records.note(LinkEnd::Host(cx.host), at, &packet, Some(Drop::SendQueue));
                cx.lose(&packet, Drop::SendQueue);
            }
            Some(begins) => {
                if let Some(id) = packet.journey {
                    cx.journeys.get_mut(id).end(Stage::SendQueue, begins);
                }
                cx.records.note(LinkEnd::Host(cx.host), begins, &packet, None);
                let packet = cx.packets.insert(packet);
                shared.leave_host(cx.host, packet, begins - cx.now, cx.packets, cx.out);
            }
        }
    }

    /// Sends a datagram.
    fn send_datagram(
        &mut self,
        socket: SocketId,
        to: Endpoint,
        datagram: Datagram,
        journey: Option<JourneyId>,
        cx: &mut Cx<'_, '_>,
    ) {
        let from = Endpoint { host: cx.host, port: socket };
        let packet = Packet::new(from, to, Ecn::NotCapable, Body::Udp(datagram));
        let packet = Packet { journey, ..packet };
        self.transmit(packet, cx);
    }
}
