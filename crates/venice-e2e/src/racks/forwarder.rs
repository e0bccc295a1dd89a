//! The network between the namespaces: forwards datagrams between programs and donors with the
//! scenario's impairments. The simulator's own network decides about each.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::mpsc::TryRecvError;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use venice_fabric::Position;
use venice_ports::monotonic_ns;
use venice_sim::network::{Datagram, End, Network};
use venice_sim::scenario::FaultKind;

use crate::racks::orders::{Order, Reply, orders, reply};
use crate::racks::plan::{Plan, Service};

/// Longest sleep, since orders come at any time.
const NAP_NS: u64 = 2_000_000;
/// Datagrams read from one socket in a row.
const IN_A_ROW: usize = 64;

/// Forwards until the parent closes the input.
///
/// # Errors
/// When the sockets cannot be made.
pub fn run(plan: Plan) -> Result<()> {
    let orders = orders();
    let mut forwarder = Forwarder::new(plan)?;
    reply(Reply::Ready);
    loop {
        loop {
            match orders.try_recv() {
                Ok(order) => forwarder.obey(order),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
        forwarder.receive()?;
        forwarder.deliver();
        forwarder.sleep();
    }
}

struct Forwarder {
    plan: Plan,
    network: Network,
    sockets: Vec<Socket>,
    /// The socket under which a donor sees a program's socket.
    far: HashMap<(usize, SocketAddr), usize>,
    /// Order: by time, then by arrival.
    under_way: BinaryHeap<Reverse<(u64, u64, usize)>>,
    held: HashMap<u64, Held>,
    serial: u64,
}

struct Socket {
    socket: UdpSocket,
    /// Source of the datagrams that arrive here, and their destination.
    from: u16,
    to: u16,
    side: Side,
}

#[derive(Clone, Copy)]
enum Side {
    /// A donor's service, for programs.
    Near(Service),
    /// A donor's answers, which go to that program by that socket.
    Far { program: SocketAddr, near: usize },
    /// A relay's datagrams for a neighbour, which sees the relay as this socket.
    Hop { back: usize },
}

/// A datagram in flight.
struct Held {
    from: u16,
    to: u16,
    epoch: u32,
    bytes: Vec<u8>,
    destination: SocketAddr,
}

impl Forwarder {
    fn new(plan: Plan) -> Result<Self> {
        let mut sockets = Vec::new();
        for from in 0..plan.scenario.nodes {
            for to in plan.scenario.donors_of(from) {
                for service in Service::ALL {
                    let socket = bind(plan.forwarder_address(from, to, service))?;
                    sockets.push(Socket { socket, from, to, side: Side::Near(service) });
                }
            }
        }
        add_hops(&plan, &mut sockets)?;
        Ok(Self {
            network: Network::new(&plan.scenario, plan.places().into()),
            plan,
            sockets,
            far: HashMap::new(),
            under_way: BinaryHeap::new(),
            held: HashMap::new(),
            serial: 0,
        })
    }

    fn obey(&mut self, order: Order) {
        let (fault, begins) = match order {
            Order::Begin { fault } => (fault, true),
            Order::Over { fault } => (fault, false),
            _ => return,
        };
        match self.plan.scenario.faults[fault].kind {
            FaultKind::Cut { from, to, both } => {
                self.cut(from, to, begins);
                if both {
                    self.cut(to, from, begins);
                }
            }
            FaultKind::Storm { impairment } if begins => {
                self.network.begin_storm(fault, impairment);
            }
            FaultKind::Storm { .. } => self.network.end_storm(fault),
            _ => {}
        }
    }

    fn cut(&mut self, from: u16, to: u16, begins: bool) {
        let link = self.network.link(from, to);
        if begins { link.cut() } else { link.heal() }
    }

    /// Receives datagrams, and decides about each.
    fn receive(&mut self) -> Result<()> {
        let mut buffer = vec![0; 1 << 16];
        // Sockets made in this loop are read the next time.
        for n in 0..self.sockets.len() {
            for _ in 0..IN_A_ROW {
                // A dead donor shows as an error.
                let Ok((len, sender)) = self.sockets[n].socket.recv_from(&mut buffer) else {
                    break;
                };
                let (by, destination) = self.route(n, sender)?;
                self.send(n, by, destination, buffer[..len].to_vec());
            }
        }
        Ok(())
    }

    /// Returns the socket that a datagram leaves by, and its destination.
    fn route(&mut self, n: usize, sender: SocketAddr) -> Result<(usize, SocketAddr)> {
        let Socket { from, to, side, .. } = self.sockets[n];
        let service = match side {
            Side::Near(service) => service,
            Side::Far { program, near } => return Ok((near, program)),
            Side::Hop { back } => return Ok((back, Plan::relay_address(to))),
        };
        let destination = Plan::donor_address(to, service);
        if let Some(&far) = self.far.get(&(n, sender)) {
            return Ok((far, destination));
        }
        let socket = bind((Ipv4Addr::UNSPECIFIED, 0).into())?;
        let side = Side::Far { program: sender, near: n };
        self.sockets.push(Socket { socket, from: to, to: from, side });
        self.far.insert((n, sender), self.sockets.len() - 1);
        Ok((self.sockets.len() - 1, destination))
    }

    fn send(&mut self, n: usize, by: usize, destination: SocketAddr, bytes: Vec<u8>) {
        let Socket { from, to, .. } = self.sockets[n];
        let datagram = Datagram { from, from_end: End::Recipient, to, to_end: End::Donor, bytes };
        let (passage, epoch) = self.network.send(monotonic_ns(), &datagram);
        for arrival in passage.arrivals {
            self.serial += 1;
            self.under_way.push(Reverse((arrival.at_ns, self.serial, by)));
            let bytes = arrival.altered.unwrap_or_else(|| datagram.bytes.clone());
            self.held.insert(self.serial, Held { from, to, epoch, bytes, destination });
        }
    }

    /// Delivers the due datagrams.
    fn deliver(&mut self) {
        let now_ns = monotonic_ns();
        while let Some(&Reverse((at_ns, serial, by))) = self.under_way.peek()
            && at_ns <= now_ns
        {
            self.under_way.pop();
            let held = self.held.remove(&serial).expect("each has its bytes");
            if self.network.arrives(held.from, held.to, held.epoch) {
                // An interface may be down, or a donor dead: the datagram is lost then.
                let _ = self.sockets[by].socket.send_to(&held.bytes, held.destination);
            }
        }
    }

    fn sleep(&self) {
        let due_ns = self.under_way.peek().map_or(u64::MAX, |Reverse((at_ns, ..))| *at_ns);
        let nap_ns = due_ns.saturating_sub(monotonic_ns()).min(NAP_NS);
        let timeout = Timespec { tv_sec: 0, tv_nsec: nap_ns as i64 };
        let fd = |socket| PollFd::from_borrowed_fd(socket, PollFlags::IN);
        let mut fds: Vec<_> =
            self.sockets.iter().map(|it| fd(std::os::fd::AsFd::as_fd(&it.socket))).collect();
        // The sockets are read whatever the result.
        let _ = poll(&mut fds, Some(&timeout));
    }
}

/// Adds two sockets for each link between neighbours.
fn add_hops(plan: &Plan, sockets: &mut Vec<Socket>) -> Result<()> {
    let Some(topology) = plan.relays() else { return Ok(()) };
    for link in topology.links() {
        let (Position(one), Position(other)) = (link.from, link.to);
        let (one, other, first) = (one as u16, other as u16, sockets.len());
        for (from, to, back) in [(one, other, first + 1), (other, one, first)] {
            let socket = bind(plan.hop_address(from, to))?;
            sockets.push(Socket { socket, from, to, side: Side::Hop { back } });
        }
    }
    Ok(())
}

fn bind(address: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(address).with_context(|| format!("cannot bind {address}"))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
