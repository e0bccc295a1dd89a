//! The recipient's end: takes accesses, returns completions, over any number of donors.

mod bulk;
mod mappings;
mod single;

use std::collections::{BTreeSet, VecDeque};

use venice_wire::{Frame, LinkId, MAX_FRAME_BYTES, NodeId};

pub use self::mappings::{MappedWindow, Revocation};

use crate::{
    Completion, DownReason, DropStats, InitiatorConfig, LinkConfig, LinkStats, PeerState,
    QPairConfig, QPairError, QPairId,
    crma::Crma,
    datalink::{Caller, LinkNumbers, earlier},
    peer::{Channels, Peer},
    qpair::QPairs,
    ramt::Ramt,
    rdma::Rdma,
};

/// The most links given up that a Hello names: one kilobyte.
const MAX_REPLACED: usize = 256;

/// One donor of an [`Initiator`]. A number is never reused for another donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerIndex(pub u32);

/// The recipient's end of the fabric.
///
/// **Order.** Single accesses (CRMA: reads, writes, atomics, posted writes) to one donor are
/// carried out in the order given: a read sees every write given before it, posted or not. There is
/// no order between donors, between single accesses and bulk transfers, or among bulk transfers:
/// wait for a completion, or for a fence after posted writes, to establish one.
///
/// Every accepted access completes, with an error if the donor is found to be down. The error of a
/// posted write is reported by the next fence.
///
/// The caller supplies the time and moves the frames. After any other call, send the frames of
/// [`Initiator::poll_transmit`], take the results of [`Initiator::poll_completion`] and
/// [`Initiator::poll_rdma_completion`], and call [`Initiator::handle_timeout`] at the time given by
/// [`Initiator::poll_timeout`]. Times are nanoseconds of any monotonic clock.
#[derive(Debug)]
pub struct Initiator {
    config: InitiatorConfig,
    numbers: LinkNumbers,
    ramt: Ramt,
    /// Grants revoked by donors, not yet polled.
    revoked: VecDeque<Revocation>,
    peers: Vec<Peer>,
    channels: Channels,
    /// Donors to which chunks of bulk transfers may be issued now.
    to_issue: VecDeque<PeerIndex>,
    /// Completions that must be waiting before [`Initiator::poll_event`] returns true.
    armed: Option<usize>,
    /// The latest time passed in.
    latest_ns: u64,
    dropped: DropStats,
    /// The peers that may have work; those that are gone are removed in time.
    awake: Vec<PeerIndex>,
    /// Index of the peer polled first for frames: each in turn.
    next_to_send: usize,
}

impl Initiator {
    /// Returns an initiator without peers or mappings. All its buffers are allocated here and in
    /// [`Initiator::add_peer`].
    pub fn new(config: InitiatorConfig) -> Self {
        Self {
            numbers: LinkNumbers::new(config.link_seed),
            ramt: Ramt::new(config.max_windows),
            revoked: VecDeque::new(),
            peers: Vec::new(),
            channels: Channels {
                crma: Crma::new(config.crma_depth),
                rdma: Rdma::new(config.rdma_depth),
                qpairs: QPairs::new(config.max_qpairs, config.link_seed),
            },
            to_issue: VecDeque::with_capacity(usize::from(config.rdma_depth) + 1),
            armed: None,
            latest_ns: 0,
            dropped: DropStats::default(),
            awake: Vec::new(),
            next_to_send: 0,
            config,
        }
    }

    /// Adds a donor and starts the handshake with it.
    pub fn add_peer(&mut self, donor: NodeId, now_ns: u64) -> PeerIndex {
        let link = self.config.link.clone();
        self.add_peer_over(&link, donor, now_ns)
    }

    /// Like [`Initiator::add_peer`], with its own link settings.
    pub fn add_peer_over(&mut self, link: &LinkConfig, donor: NodeId, now_ns: u64) -> PeerIndex {
        // Each peer draws from its own stream, so none depends on the others.
        let draw = (self.numbers.draw().0, self.numbers.draw().0);
        let numbers = LinkNumbers::new(u64::from(draw.0) << 32 | u64::from(draw.1));
        let InitiatorConfig { node, link_seed, .. } = &self.config;
        let replaced = self.left_open_at(donor);
        let caller = Caller::new(link, *node, donor, *link_seed, numbers, replaced, now_ns);
        self.release_gone();
        let number = self.peers.len() as u32;
        self.peers.push(Peer::new(number, self.config.rdma_depth, caller));
        self.awake.push(PeerIndex(number));
        PeerIndex(number)
    }

    /// Frees the buffers of peers that are gone. It runs here and not when they go, because frames
    /// may be moved where the allocator must not be called.
    fn release_gone(&mut self) {
        let peers = &mut self.peers;
        self.awake.retain(|peer| {
            let peer = &mut peers[peer.0 as usize];
            let is_gone = peer.is_gone();
            if is_gone {
                peer.release();
            }
            !is_gone
        });
    }

    /// True if a donor is down and nothing more will be sent to it.
    ///
    /// # Panics
    /// Panics if the index is not of this initiator.
    pub fn is_peer_gone(&self, peer: PeerIndex) -> bool {
        self.peers[peer.0 as usize].is_gone()
    }

    /// Returns the links given up that a donor may still have open, the latest [`MAX_REPLACED`] of
    /// them. Frames in flight on one of them must not arrive after those of a new link. The new
    /// link may come from another address (a link with its own seal does), so the donor cannot
    /// detect this itself.
    fn left_open_at(&self, donor: NodeId) -> Vec<LinkId> {
        let callers = || self.peers.iter().map(Peer::caller);
        let of_donor = || callers().filter(|caller| caller.link.remote() == donor);
        let ended: BTreeSet<LinkId> =
            of_donor().flat_map(|caller| caller.ended()).copied().collect();
        let mut left: Vec<LinkId> = of_donor().filter_map(Caller::left_open).collect();
        left.retain(|link| !ended.contains(link));
        left.drain(..left.len().saturating_sub(MAX_REPLACED));
        left
    }

    /// Closes the link to a donor, notifies the donor, and completes its outstanding accesses with
    /// [`DownReason::Closed`].
    pub fn close_peer(&mut self, peer: PeerIndex) {
        if let PeerState::Down { .. } = self.peer_state(peer) {
            return;
        }
        self.peers[peer.0 as usize].go_down(DownReason::Closed, &mut self.channels);
        self.went_down(peer);
    }

    /// Marks a donor as down because its port is closed, and completes its outstanding accesses
    /// with [`DownReason::PortClosed`]. For ports that detect the other side's death themselves.
    ///
    /// # Panics
    /// Panics if the index is not of this initiator.
    pub fn handle_port_closed(&mut self, peer: PeerIndex) {
        if let PeerState::Down { .. } = self.peer_state(peer) {
            return;
        }
        self.peers[peer.0 as usize].go_down(DownReason::PortClosed, &mut self.channels);
        self.went_down(peer);
    }

    fn went_down(&mut self, peer: PeerIndex) {
        self.tidy_grants(peer);
        self.issue_chunks_to(self.latest_ns, peer);
    }

    /// Returns the state of a donor.
    ///
    /// # Panics
    /// Panics if the index is not of this initiator.
    pub fn peer_state(&self, peer: PeerIndex) -> PeerState {
        self.peers[peer.0 as usize].caller().state()
    }

    /// Returns the counters of the link to a donor.
    ///
    /// # Panics
    /// Panics if the index is not of this initiator.
    pub fn peer_stats(&self, peer: PeerIndex) -> LinkStats {
        self.peers[peer.0 as usize].caller().link.stats()
    }

    /// Returns the counters of datagrams dropped unread.
    pub fn dropped(&self) -> DropStats {
        self.dropped
    }

    /// Returns the number of requests sent or queued to a donor and not answered yet, chunks of
    /// bulk transfers included.
    ///
    /// # Panics
    /// Panics if the index is not of this initiator.
    pub fn outstanding(&self, peer: PeerIndex) -> usize {
        self.peers[peer.0 as usize].outstanding()
    }

    /// Takes a datagram from a donor. Anything that is not a frame of the link is dropped.
    ///
    /// # Panics
    /// Panics if the peer is not of this initiator.
    pub fn handle_frame(&mut self, now_ns: u64, peer: PeerIndex, frame: &[u8]) {
        let integrity = self.peers[peer.0 as usize].caller().link.integrity();
        // Borrowed in place: if moved, it would be read back before its parts are written.
        let parsed = Frame::parse_with(frame, integrity);
        let frame = match &parsed {
            Ok(frame) => frame,
            Err(error) => return self.dropped.note(*error),
        };
        if frame.destination() != self.config.node {
            self.dropped.not_for_here += 1;
            return;
        }
        self.latest_ns = now_ns;
        self.peers[peer.0 as usize].handle_frame(now_ns, frame, &mut self.channels);
        self.tidy_grants(peer);
        self.issue_chunks_to(now_ns, peer);
    }

    /// Performs the actions due at `now_ns`: replays, keep-alive, giving up on a silent donor.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        for n in 0..self.awake.len() {
            let peer = self.awake[n];
            self.peers[peer.0 as usize].handle_timeout(now_ns, &mut self.channels);
            self.tidy_grants(peer);
            self.issue_chunks_to(now_ns, peer);
        }
        self.channels.qpairs.handle_timeout(now_ns);
    }

    /// Returns the time at which to call [`Initiator::handle_timeout`], and then
    /// [`Initiator::poll_transmit`], if nothing happens before. A time in the past means at once.
    pub fn poll_timeout(&self) -> Option<u64> {
        let of_qpairs = self.channels.qpairs.poll_timeout();
        self.awake().fold(of_qpairs, |at_ns, peer| earlier(at_ns, peer.caller().poll_timeout()))
    }

    /// Writes the next frame to send into `buf`; returns its destination and its length in bytes.
    /// Call until it returns `None`.
    ///
    /// # Panics
    /// Panics if `buf` is shorter than [`MAX_FRAME_BYTES`].
    pub fn poll_transmit(&mut self, now_ns: u64, buf: &mut [u8]) -> Option<(PeerIndex, usize)> {
        assert!(buf.len() >= MAX_FRAME_BYTES, "a frame can be {MAX_FRAME_BYTES} bytes");
        let count = self.awake.len();
        for turn in 0..count {
            let at = (self.next_to_send + turn) % count;
            let peer = self.awake[at];
            let sent = self.peers[peer.0 as usize].poll_transmit(now_ns, &mut self.channels, buf);
            if let Some(len) = sent {
                self.next_to_send = at + 1;
                return Some((peer, len));
            }
        }
        None
    }

    fn awake(&self) -> impl Iterator<Item = &Peer> {
        self.awake.iter().map(|peer| &self.peers[peer.0 as usize])
    }

    /// Writes the next frame to send to `peer` into `buf`; returns its length in bytes. For ports
    /// that have a buffer for each peer.
    ///
    /// # Panics
    /// Panics if `buf` is shorter than [`MAX_FRAME_BYTES`], or the index is not of this initiator.
    pub fn poll_transmit_to(
        &mut self,
        now_ns: u64,
        peer: PeerIndex,
        buf: &mut [u8],
    ) -> Option<usize> {
        assert!(buf.len() >= MAX_FRAME_BYTES, "a frame can be {MAX_FRAME_BYTES} bytes");
        self.peers[peer.0 as usize].poll_transmit(now_ns, &mut self.channels, buf)
    }

    /// Returns the next completed CRMA access. Its data is valid until the next call.
    pub fn poll_completion(&mut self) -> Option<Completion<'_>> {
        self.channels.crma.poll()
    }

    /// Requests an event once `completions` completed single accesses and bulk transfers wait to be
    /// polled; for ports that wake a sleeper once and not for each of them. The event may never
    /// come: no more than the outstanding accesses can complete.
    pub fn arm_event(&mut self, completions: usize) {
        self.armed = Some(completions.max(1));
    }

    /// True if the event requested by [`Initiator::arm_event`] has occurred. Returns true once per
    /// request.
    pub fn poll_event(&mut self) -> bool {
        let ready = self.channels.crma.done() + self.channels.rdma.done();
        self.armed.take_if(|wanted| *wanted <= ready).is_some()
    }

    /// Requests a QPair with a service of a donor. A [`crate::QPairEvent::Connected`] or
    /// [`crate::QPairEvent::Closed`] follows.
    ///
    /// # Errors
    /// [`QPairError::NoLink`] if the donor is down, [`QPairError::TooMany`].
    ///
    /// # Panics
    /// Panics if the peer is not of this initiator.
    pub fn qpair_connect(
        &mut self,
        _now_ns: u64,
        peer: PeerIndex,
        service: u32,
        config: QPairConfig,
    ) -> Result<QPairId, QPairError> {
        let caller = self.peers[peer.0 as usize].caller();
        if let PeerState::Down { .. } = caller.state() {
            return Err(QPairError::NoLink);
        }
        self.channels.qpairs.connect(peer.0, &caller.link, service, config)
    }

    /// True if all frames queued so far have arrived (over a reliable port: have been sent), so
    /// that nothing is lost when this end goes away.
    pub fn is_settled(&self) -> bool {
        self.awake().all(|peer| peer.caller().link.is_settled())
    }

    /// Returns the QPairs of this initiator, for all other QPair operations.
    pub fn qpairs(&self) -> &QPairs {
        &self.channels.qpairs
    }

    /// See [`Initiator::qpairs`].
    pub fn qpairs_mut(&mut self) -> &mut QPairs {
        &mut self.channels.qpairs
    }

    /// Returns the donor at the other end of a QPair; `None` if the handle is unknown.
    pub fn qpair_peer(&self, qpair: QPairId) -> Option<PeerIndex> {
        self.channels.qpairs.link_of(qpair).map(PeerIndex)
    }
}
