//! The recipient's end: an `Initiator` joined to a socket, driven by the calling thread.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use venice_fabric::{Initiator, InitiatorConfig, PeerIndex};
use venice_wire::{
    Endpoint, MAX_FRAME_BYTES, NodeId, PACKET_HEADER_BYTES, PacketAddr, PacketRepr,
    SEALED_HEADER_BYTES,
};

use super::UdpSocket;
use super::alarm::Alarm;
use super::incoming::Incoming;
use super::offload::datagram_limit;
use super::outgoing::{Outgoing, TRAIN_FRAMES};
use super::peers::{Peer, Seal, hand_on, sender_of};
use super::raw_address::RawAddress;
use super::spin::Spin;
use super::wait_set::WaitSet;
use super::xdp::{Xdp, XdpCounts, XdpInterface};
use crate::process::Process;
use crate::seal::{SealCounters, SealCounts, SealedAs};
use crate::spin_policy::Next;
use crate::{PortError, monotonic_ns};

/// Most batches taken in one [`UdpDriver::pump`], which bounds the call under any load.
const BATCHES_PER_PUMP: usize = 4;
/// Most frames to one peer in a row while others wait: a train costs little more than one datagram.
const FRAMES_PER_RUN: usize = TRAIN_FRAMES;

/// An [`Initiator`] with its socket.
///
/// Start accesses on [`UdpDriver::initiator`], then [`UdpDriver::pump`] and poll completions;
/// [`UdpDriver::wait`] sleeps until there is something to pump. After construction and adding the
/// peers nothing allocates.
///
/// A driver either seals all it sends and drops unsealed datagrams ([`UdpDriver::sealed`]), or the
/// reverse ([`UdpDriver::new`]); it never changes from one to the other. In a forked child the copy
/// is unusable ([`PortError::Forked`]): it would continue at its parent's counters, seal two
/// datagrams with one nonce and receive its parent's datagrams.
pub struct UdpDriver {
    socket: UdpSocket,
    initiator: Initiator,
    is_sealed: bool,
    /// Peers by peer index.
    peers: Vec<Peer>,
    /// Peers that may have something to do; those that are gone are removed in time.
    awake: Vec<PeerIndex>,
    /// Index in `awake` of the peer that sends first next.
    next_to_send: usize,
    /// True if all peers are reached through a relay: frames travel in packets.
    is_via: bool,
    incoming: Incoming,
    outgoing: Outgoing,
    alarm: Alarm,
    wait_set: WaitSet,
    counters: SealCounters,
    /// Policy of polling before a sleep, if enabled.
    spin: Option<Spin>,
    /// True if [`UdpDriver::wait`] has received a batch that is not processed yet.
    is_batch_waiting: bool,
    /// True if something may have come in since the last look.
    may_have_input: bool,
    xdp: Option<Xdp>,
    process: Process,
}

impl UdpDriver {
    /// Makes an initiator on a socket of its own, without protection; see
    /// [`super::unspecified_like`] for `local`.
    ///
    /// # Errors
    /// Fails if the socket cannot be made.
    pub fn new(local: SocketAddr, config: InitiatorConfig) -> Result<Self, PortError> {
        Self::make(UdpSocket::bind(local)?, config, false)
    }

    /// Makes an initiator on a socket of its own that seals every datagram. The seal covers more
    /// than the frames' checksum, which is left out.
    ///
    /// # Errors
    /// Fails if the socket cannot be made.
    pub fn sealed(local: SocketAddr, mut config: InitiatorConfig) -> Result<Self, PortError> {
        config.link.checksum = false;
        Self::make(UdpSocket::bind(local)?, config, true)
    }

    /// Makes a driver with one peer, sealed if there is a key.
    ///
    /// # Errors
    /// Fails if the socket cannot be made.
    pub fn towards(
        local: SocketAddr,
        config: InitiatorConfig,
        donor: NodeId,
        address: SocketAddr,
        named: Option<SealedAs>,
    ) -> Result<(Self, PeerIndex), PortError> {
        Self::towards_by(UdpSocket::bind(local)?, config, donor, address, named)
    }

    /// Makes a driver with one peer on a socket, sealed if there is a key.
    ///
    /// # Errors
    /// Fails if the system refuses what the driver needs beside the socket.
    pub fn towards_by(
        socket: UdpSocket,
        mut config: InitiatorConfig,
        donor: NodeId,
        address: SocketAddr,
        named: Option<SealedAs>,
    ) -> Result<(Self, PeerIndex), PortError> {
        let now_ns = monotonic_ns();
        config.link.checksum &= named.is_none();
        let mut driver = Self::make(socket, config, named.is_some())?;
        let peer = match named {
            None => driver.add_peer(now_ns, donor, address)?,
            Some(named) => driver.add_sealed_peer(now_ns, donor, address, named)?,
        };
        Ok((driver, peer))
    }

    fn make(
        socket: UdpSocket,
        config: InitiatorConfig,
        is_sealed: bool,
    ) -> Result<Self, PortError> {
        let alarm = Alarm::new()?;
        let mut incoming = Incoming::new();
        incoming.set_has_frames(!is_sealed);
        Ok(Self {
            wait_set: WaitSet::new(&[alarm.as_fd()])?,
            outgoing: Outgoing::new(socket.offloads().segmentation),
            socket,
            initiator: Initiator::new(config),
            is_sealed,
            peers: Vec::new(),
            awake: Vec::new(),
            next_to_send: 0,
            is_via: false,
            incoming,
            alarm,
            counters: SealCounters::default(),
            spin: None,
            is_batch_waiting: false,
            may_have_input: true,
            xdp: None,
            process: Process::current()?,
        })
    }

    /// Moves the descriptors; see [`UdpSocket::keep_fd_above`].
    ///
    /// # Errors
    /// Fails if there is no descriptor left.
    pub fn keep_fd_above(&mut self, lowest: i32) -> Result<(), PortError> {
        self.alarm.keep_fd_above(lowest)?;
        self.socket.keep_fd_above(lowest)?;
        // An epoll lists its descriptors by their old numbers too.
        self.wait_set = self.watch()?;
        self.wait_set.keep_fd_above(lowest)
    }

    fn watch(&self) -> Result<WaitSet, PortError> {
        let mut fds = vec![self.alarm.as_fd()];
        fds.extend(self.xdp.iter().flat_map(Xdp::fds));
        WaitSet::new(&fds)
    }

    /// Sends single datagrams by AF_XDP from now on where possible, and trains by the socket as
    /// before. Transparent to peers.
    ///
    /// # Errors
    /// Fails if AF_XDP is unavailable at the interface, or there is no descriptor left.
    pub fn use_xdp(&mut self, interface: &XdpInterface) -> Result<(), PortError> {
        self.xdp = None;
        self.xdp = Some(Xdp::open(interface, &self.socket, self.is_sealed)?);
        self.wait_set = self.watch()?;
        Ok(())
    }

    /// Returns the counters of AF_XDP.
    pub fn xdp_counts(&self) -> XdpCounts {
        self.xdp.as_ref().map(Xdp::counts).unwrap_or_default()
    }

    /// Returns every descriptor of this driver except those of [`UdpDriver::use_xdp`], for callers
    /// that must protect them from other code.
    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.socket.as_fd(), self.alarm.as_fd(), self.wait_set.as_fd()]
    }

    /// Sets whether [`UdpDriver::wait`] may poll for datagrams before it sleeps. It does so while
    /// they come densely and no other thread wants the processor. Initially off.
    pub fn set_busy_poll(&mut self, is_on: bool) {
        self.spin = is_on.then(Spin::default);
    }

    /// Adds a donor to a driver without protection and starts the handshake with it.
    ///
    /// # Errors
    /// Fails if `address` is of another family (IPv4, IPv6) than this driver's socket, or the
    /// driver seals.
    pub fn add_peer(
        &mut self,
        now_ns: u64,
        donor: NodeId,
        address: SocketAddr,
    ) -> Result<PeerIndex, PortError> {
        self.add(now_ns, donor, address, None)
    }

    /// Adds a donor that is reached through the network of relays, by way of the relay socket of a
    /// `home` node; with a key of that donor if the driver seals. Only the donor can open the seal:
    /// the relays in between cannot.
    ///
    /// # Errors
    /// Same as [`UdpDriver::add_peer`] and [`UdpDriver::add_sealed_peer`].
    ///
    /// # Panics
    /// Panics if the driver has peers that it reaches directly.
    pub fn add_peer_via(
        &mut self,
        now_ns: u64,
        donor: NodeId,
        home: SocketAddr,
        named: Option<SealedAs>,
    ) -> Result<PeerIndex, PortError> {
        assert!(
            self.is_via || self.peers.is_empty(),
            "one driver has either direct or relayed peers"
        );
        self.is_via = true;
        self.incoming.set_has_frames(false);
        match named {
            None => self.add_peer(now_ns, donor, home),
            Some(named) => self.add_sealed_peer(now_ns, donor, home, named),
        }
    }

    /// Adds a donor to a driver that seals and starts the handshake with it, under a key of that
    /// donor.
    ///
    /// # Errors
    /// Fails if `address` is of another family (IPv4, IPv6) than this driver's socket, or the
    /// driver does not seal.
    pub fn add_sealed_peer(
        &mut self,
        now_ns: u64,
        donor: NodeId,
        address: SocketAddr,
        named: SealedAs,
    ) -> Result<PeerIndex, PortError> {
        self.add(now_ns, donor, address, Some(Seal::new(named)?))
    }

    fn add(
        &mut self,
        now_ns: u64,
        donor: NodeId,
        address: SocketAddr,
        seal: Option<Seal>,
    ) -> Result<PeerIndex, PortError> {
        if address.is_ipv4() != self.socket.local_addr().is_ipv4() {
            return Err(PortError::UdpAddress { address, source: Errno::AFNOSUPPORT });
        }
        if seal.is_some() != self.is_sealed {
            return Err(PortError::Protection { is_sealed: self.is_sealed });
        }
        let peer = self.initiator.add_peer(donor, now_ns);
        assert_eq!(peer.0 as usize, self.peers.len(), "peers are numbered in order, never reused");
        let (to, limit) = (RawAddress::encode(address), datagram_limit(address));
        self.release_gone();
        self.peers.push(Peer { address, to, limit, node: donor, seal });
        self.awake.push(peer);
        Ok(peer)
    }

    /// Frees the state of peers that are gone.
    fn release_gone(&mut self) {
        let Self { initiator, peers, awake, .. } = self;
        awake.retain(|&peer| {
            let is_gone = initiator.is_peer_gone(peer);
            if is_gone {
                peers[peer.0 as usize].seal = None;
            }
            !is_gone
        });
    }

    /// Returns the fabric's end, for starting accesses and polling completions.
    pub fn initiator(&mut self) -> &mut Initiator {
        &mut self.initiator
    }

    /// Returns the time at which [`UdpDriver::pump`] has something to do even if nothing comes in;
    /// absolute, in nanoseconds of [`crate::monotonic_ns`].
    pub fn poll_timeout(&self) -> Option<u64> {
        self.initiator.poll_timeout()
    }

    /// Returns the descriptor to poll for input, for callers that wait for more than this driver.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the further descriptors to poll if AF_XDP is used.
    pub fn xdp_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.xdp.iter().flat_map(Xdp::fds)
    }

    /// Returns the socket's own address.
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    /// Returns the numbers of dropped datagrams, by reason.
    pub fn dropped(&self) -> SealCounts {
        self.counters.counts()
    }

    /// Moves every frame that can move now, in both directions, and runs the fabric's timers. Never
    /// waits. Returns whether a datagram came in.
    ///
    /// Right after a transmission to peers that were silent before, it does not poll for answers,
    /// which cannot have arrived yet: the next call does.
    ///
    /// # Errors
    /// Fails if the socket has failed for good (not for an unreachable peer: its link detects
    /// that); [`PortError::Forked`] in a forked child.
    pub fn pump(&mut self, now_ns: u64) -> Result<bool, PortError> {
        self.process.check()?;
        if self.initiator.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.initiator.handle_timeout(now_ns);
        }
        let has_sent = self.transmit(now_ns)?;
        let may_have_input = std::mem::replace(&mut self.may_have_input, has_sent);
        if has_sent && !may_have_input && !self.is_batch_waiting {
            return Ok(false);
        }
        self.may_have_input = false;
        let mut any = false;
        for _ in 0..BATCHES_PER_PUMP {
            if !self.take_batch(now_ns)? {
                break;
            }
            any = true;
            let is_full = self.incoming.is_full();
            self.transmit(now_ns)?;
            if !is_full {
                break;
            }
        }
        Ok(any)
    }

    /// Processes a batch of received datagrams, if there is one.
    fn take_batch(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let any = self.deliver_by_xdp(now_ns);
        let is_socket_due = self.xdp.as_mut().is_none_or(|xdp| xdp.is_socket_due(now_ns));
        let is_waiting = std::mem::take(&mut self.is_batch_waiting);
        if is_waiting || is_socket_due && self.receive()? > 0 {
            self.deliver(now_ns);
            return Ok(true);
        }
        Ok(any)
    }

    /// Waits until a datagram comes, one of the fabric's timers is due or `timeout_ns` have passed,
    /// whichever is first; it may return earlier. Pump afterwards in any case.
    ///
    /// A `timeout_ns` of less than some milliseconds makes every wait expensive: it sets a timer.
    ///
    /// # Errors
    /// Fails if the kernel cannot wait; [`PortError::Forked`] in a forked child.
    pub fn wait(&mut self, now_ns: u64, timeout_ns: u64) -> Result<(), PortError> {
        self.process.check()?;
        if self.is_batch_waiting || self.poll_before_sleep(now_ns, timeout_ns)? {
            return Ok(());
        }
        self.may_have_input = true;
        let until_ns = now_ns.saturating_add(timeout_ns);
        let due_ns = self.poll_timeout().map_or(until_ns, |due_ns| due_ns.min(until_ns));
        self.alarm.set(now_ns, Some(due_ns));
        self.xdp.iter_mut().for_each(Xdp::force_socket_look);
        let slept = self.wait_set.sleep(self.socket.as_fd());
        slept.map_err(PortError::at("waiting for a UDP socket"))
    }

    /// Moves frames; if none came in, waits for some like [`UdpDriver::wait`] and moves those. It
    /// is for callers that are idle until something comes: a sleep after a successful first look
    /// could last long, because nothing else may come. Returns whether a datagram came in.
    ///
    /// # Errors
    /// Same as [`UdpDriver::pump`] and [`UdpDriver::wait`].
    pub fn turn(&mut self, timeout_ns: u64) -> Result<bool, PortError> {
        let now_ns = monotonic_ns();
        if self.pump(now_ns)? {
            return Ok(true);
        }
        self.wait(now_ns, timeout_ns)?;
        self.pump(monotonic_ns())
    }

    /// Polls for a datagram while that pays; returns true if a batch has come, or a timer is due.
    fn poll_before_sleep(&mut self, now_ns: u64, timeout_ns: u64) -> Result<bool, PortError> {
        let Some(mut spin) = self.spin.take() else { return Ok(false) };
        let until_ns =
            self.poll_timeout().unwrap_or(u64::MAX).min(now_ns.saturating_add(timeout_ns));
        let mut time_ns = monotonic_ns();
        spin.begin(time_ns);
        let found = loop {
            if time_ns >= until_ns {
                break true;
            }
            match spin.nothing(time_ns) {
                Next::Sleep => break false,
                Next::Yield => rustix::thread::sched_yield(),
                Next::Look => {}
            }
            if self.xdp.as_ref().is_some_and(|xdp| !xdp.is_empty()) {
                self.may_have_input = true;
                break true;
            }
            if self.xdp.as_mut().is_none_or(|xdp| xdp.is_socket_due(time_ns)) && self.receive()? > 0
            {
                self.is_batch_waiting = true;
                break true;
            }
            time_ns = monotonic_ns();
        };
        self.spin = Some(spin);
        Ok(found)
    }

    /// Sets the timer, for callers that wait for more than this driver: they then poll
    /// [`UdpDriver::fd`] and [`UdpDriver::timer_fd`] for input, without a time-out. Call it before
    /// each such wait; nearly always it does nothing.
    pub fn arm(&mut self, now_ns: u64) {
        self.may_have_input = true;
        self.xdp.iter_mut().for_each(Xdp::force_socket_look);
        self.alarm.set(now_ns, self.initiator.poll_timeout());
    }

    /// Returns a descriptor that is readable when one of the fabric's timers is due, or was due and
    /// has moved; see [`UdpDriver::arm`]. Cheaper than a time-out of [`UdpDriver::poll_timeout`] in
    /// `poll`, which would program the processor's timer twice for every wait.
    pub fn timer_fd(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }

    fn receive(&mut self) -> Result<usize, PortError> {
        let received = self.incoming.receive(self.socket.as_fd());
        let received = received.map_err(PortError::at("receiving from a UDP socket"))?;
        if received > 0 {
            self.wait_set.note_batch(self.socket.as_fd());
        }
        Ok(received)
    }

    /// Passes received datagrams to the links of their senders; drops those of strangers.
    fn deliver(&mut self, now_ns: u64) {
        if let Some(xdp) = &mut self.xdp
            && self.incoming.is_stream()
        {
            xdp.note_stream(now_ns);
        }
        if let Some(spin) = &mut self.spin {
            spin.busy(now_ns);
        }
        let Self { incoming, initiator, peers, awake, counters, is_via, .. } = self;
        incoming.for_each(|from, datagram| {
            let Some((peer, datagram)) = sender_of(from, datagram, peers, awake, *is_via) else {
                return;
            };
            hand_on(now_ns, peer, datagram, peers, initiator, counters);
        });
    }

    /// Passes datagrams received by AF_XDP to the links of their senders; returns whether there
    /// were any.
    fn deliver_by_xdp(&mut self, now_ns: u64) -> bool {
        let Self { xdp: Some(xdp), initiator, peers, awake, counters, is_via, spin, .. } = self
        else {
            return false;
        };
        let any = xdp.take(now_ns, |from, datagram| {
            let sender = sender_of(from, datagram, peers, awake, *is_via);
            sender.is_some_and(|(peer, datagram)| {
                hand_on(now_ns, peer, datagram, peers, initiator, counters)
            })
        });
        if any && let Some(spin) = spin {
            spin.busy(now_ns);
        }
        any
    }

    /// Sends everything that can go; returns whether there was anything.
    fn transmit(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let mut any = false;
        loop {
            while !self.outgoing.is_full() && self.transmit_run(now_ns) {}
            if self.outgoing.is_empty() {
                return Ok(any);
            }
            any = true;
            let more = self.outgoing.is_full();
            if let Some(xdp) = &mut self.xdp {
                xdp.send(now_ns, &mut self.outgoing, |_| None);
            }
            let sent = self.outgoing.send(self.socket.as_fd());
            sent.map_err(PortError::at("sending to a UDP socket"))?;
            if !more {
                return Ok(any);
            }
        }
    }

    /// Sends a run of frames to the next peer that has any, which lets them travel together;
    /// returns false if no peer has any.
    fn transmit_run(&mut self, now_ns: u64) -> bool {
        for _ in 0..self.awake.len() {
            // The list may have become shorter since the last call.
            let at = self.next_to_send % self.awake.len();
            let peer = self.awake[at];
            self.next_to_send = at + 1;
            let mut frames = 0;
            while frames < FRAMES_PER_RUN
                && !self.outgoing.is_full()
                && self.transmit_one(now_ns, peer)
            {
                frames += 1;
            }
            if frames > 0 {
                return true;
            }
        }
        false
    }

    fn transmit_one(&mut self, now_ns: u64, peer: PeerIndex) -> bool {
        if self.is_via {
            return self.transmit_one_via(now_ns, peer);
        }
        let Self { initiator, outgoing, peers, is_sealed, .. } = self;
        let buffer = if *is_sealed { outgoing.sealed_buffer() } else { outgoing.plain_buffer() };
        let Some(len) = initiator.poll_transmit_to(now_ns, peer, buffer) else { return false };
        let Peer { to, limit, seal, .. } = &mut peers[peer.0 as usize];
        match seal {
            None => outgoing.push(to, len, *limit),
            Some(seal) => outgoing.push_sealed(to, len, *limit, &mut seal.sealer),
        }
        true
    }

    /// Places the frame behind the room for the headers, which are written once its destination is
    /// known.
    fn transmit_one_via(&mut self, now_ns: u64, peer: PeerIndex) -> bool {
        let Self { initiator, outgoing, peers, is_sealed, .. } = self;
        let buffer = outgoing.plain_buffer();
        let frame_at = PACKET_HEADER_BYTES + if *is_sealed { SEALED_HEADER_BYTES } else { 0 };
        let frame = &mut buffer[frame_at..frame_at + MAX_FRAME_BYTES];
        let sent = initiator.poll_transmit_to(now_ns, peer, frame);
        let Some(frame_len) = sent else { return false };
        let Peer { to, limit, node, seal, .. } = &mut peers[peer.0 as usize];
        let payload_len = match seal {
            None => frame_len,
            Some(seal) => {
                let sealed = seal.sealer.seal(&mut buffer[PACKET_HEADER_BYTES..], frame_len);
                let Ok(len) = sealed else { return true };
                len
            }
        };
        let destination = PacketAddr { node: *node, endpoint: Endpoint::AGENT };
        // The relay fills in the sender.
        let packet = PacketRepr::new(PacketAddr::default(), destination);
        packet.emit_header(payload_len, buffer).expect("the frame fits into a packet");
        outgoing.push(to, PACKET_HEADER_BYTES + payload_len, *limit);
        true
    }
}

impl std::fmt::Debug for UdpDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpDriver")
            .field("socket", &self.socket)
            .field("is_sealed", &self.is_sealed)
            .finish_non_exhaustive()
    }
}
