//! The recipient's end: an `Initiator` joined to a socket, driven by its user's thread.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use venice_fabric::{Initiator, InitiatorConfig, PeerIndex};
use venice_wire::{MAX_FRAME_BYTES, NodeId};

use super::UdpSocket;
use super::alarm::Alarm;
use super::mmsg::Batch;
use crate::PortError;

/// Batches taken in one [`UdpDriver::pump`], so that it comes back under any load.
const BATCHES_PER_PUMP: usize = 4;

/// An [`Initiator`] and its socket.
///
/// Start accesses on [`UdpDriver::initiator`], then [`UdpDriver::pump`] and poll completions;
/// [`UdpDriver::wait`] sleeps until there is something to pump. After construction and
/// [`UdpDriver::add_peer`] nothing allocates.
pub struct UdpDriver {
    socket: UdpSocket,
    initiator: Initiator,
    /// By peer index.
    peers: Vec<SocketAddr>,
    incoming: Batch,
    outgoing: Batch,
    alarm: Alarm,
}

impl UdpDriver {
    /// An initiator on a socket of its own; see [`super::unspecified_like`] for `local`.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn new(local: SocketAddr, config: InitiatorConfig) -> Result<Self, PortError> {
        Ok(Self {
            socket: UdpSocket::bind(local)?,
            initiator: Initiator::new(config),
            peers: Vec::new(),
            incoming: Batch::new(MAX_FRAME_BYTES),
            outgoing: Batch::new(MAX_FRAME_BYTES),
            alarm: Alarm::new()?,
        })
    }

    /// See [`UdpSocket::keep_fd_above`].
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn keep_fd_above(&mut self, lowest: i32) -> Result<(), PortError> {
        self.alarm.keep_fd_above(lowest)?;
        self.socket.keep_fd_above(lowest)
    }

    /// Adds a donor and starts the handshake with it.
    ///
    /// # Errors
    /// When `address` is of another family (IPv4, IPv6) than this driver's socket.
    pub fn add_peer(
        &mut self,
        now_ns: u64,
        donor: NodeId,
        address: SocketAddr,
    ) -> Result<PeerIndex, PortError> {
        if address.is_ipv4() != self.socket.local_addr().is_ipv4() {
            return Err(PortError::UdpAddress { address, source: Errno::AFNOSUPPORT });
        }
        let peer = self.initiator.add_peer(donor, now_ns);
        assert_eq!(peer.0 as usize, self.peers.len(), "peers are numbered in order, never reused");
        self.peers.push(address);
        Ok(peer)
    }

    /// The fabric's end, for starting accesses and polling completions.
    pub fn initiator(&mut self) -> &mut Initiator {
        &mut self.initiator
    }

    /// When [`UdpDriver::pump`] has something to do even if nothing comes in; absolute, in
    /// nanoseconds of [`crate::monotonic_ns`].
    pub fn poll_timeout(&self) -> Option<u64> {
        self.initiator.poll_timeout()
    }

    /// To be polled for input, by those who wait for more than this driver alone.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The socket's own address.
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    /// Moves every frame that can move now, in both directions, and lets the fabric's timers run.
    /// Never waits. Returns whether a datagram came in.
    ///
    /// # Errors
    /// When the socket fails for good (not for an unreachable peer: the link notices that).
    pub fn pump(&mut self, now_ns: u64) -> Result<bool, PortError> {
        if self.initiator.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.initiator.handle_timeout(now_ns);
        }
        self.transmit(now_ns)?;
        let mut any = false;
        for _ in 0..BATCHES_PER_PUMP {
            let received = self
                .incoming
                .receive(self.socket.as_fd())
                .map_err(PortError::at("receiving from a UDP socket"))?;
            if received == 0 {
                break;
            }
            any = true;
            self.deliver(now_ns);
            self.transmit(now_ns)?;
            if !self.incoming.is_full() {
                break;
            }
        }
        Ok(any)
    }

    /// Waits until a datagram comes, one of the fabric's timers is due or `timeout_ns` have
    /// passed, whichever is first; it may come back earlier. Pump afterwards in any case.
    ///
    /// A `timeout_ns` of less than some milliseconds makes every wait expensive, see
    /// [`UdpDriver::timer_fd`].
    ///
    /// # Errors
    /// When the kernel cannot wait.
    pub fn wait(&mut self, now_ns: u64, timeout_ns: u64) -> Result<(), PortError> {
        self.arm(now_ns);
        let timeout = Timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as i64,
            tv_nsec: (timeout_ns % 1_000_000_000) as i64,
        };
        let mut fds =
            [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.alarm, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(source) => Err(PortError::System { step: "waiting for a UDP socket", source }),
        }
    }

    /// For those who wait for more than this driver alone: sets the timer, so that it is enough
    /// to poll [`UdpDriver::fd`] and [`UdpDriver::timer_fd`] for input, without a time-out. To be
    /// called before each such wait; nearly always it does nothing.
    pub fn arm(&mut self, now_ns: u64) {
        self.alarm.set(now_ns, self.initiator.poll_timeout());
    }

    /// Readable when one of the fabric's timers is due (or was, and is no more); see
    /// [`UdpDriver::arm`]. Cheaper than giving [`UdpDriver::poll_timeout`] to `poll`, which would
    /// program the processor's timer twice for every wait.
    pub fn timer_fd(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }

    /// Hands the datagrams received to the links of their senders; strangers' are dropped.
    fn deliver(&mut self, now_ns: u64) {
        for (from, datagram) in self.incoming.datagrams() {
            if let Some(index) = self.peers.iter().rposition(|peer| *peer == from) {
                self.initiator.handle_frame(now_ns, PeerIndex(index as u32), datagram);
            }
        }
    }

    fn transmit(&mut self, now_ns: u64) -> Result<(), PortError> {
        loop {
            while !self.outgoing.is_full() {
                let buffer = self.outgoing.next_buffer();
                let Some((peer, len)) = self.initiator.poll_transmit(now_ns, buffer) else { break };
                self.outgoing.push(self.peers[peer.0 as usize], len);
            }
            let more = self.outgoing.is_full();
            if !self.outgoing.is_empty() {
                self.outgoing
                    .send(self.socket.as_fd())
                    .map_err(PortError::at("sending to a UDP socket"))?;
            }
            if !more {
                return Ok(());
            }
        }
    }
}

impl std::fmt::Debug for UdpDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpDriver")
            .field("socket", &self.socket)
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}
