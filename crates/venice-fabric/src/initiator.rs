//! The recipient's end: accesses in, completions out, over any number of donors.

use venice_wire::{Frame, GrantId, GrantKey, MAX_FRAME_BYTES, MAX_PAYLOAD_BYTES, NodeId};

use crate::{
    AccessError, Completion, DownReason, FabricError, InitiatorConfig, LinkStats, PeerState,
    RdmaCompletion, RdmaRejected,
    crma::Crma,
    datalink::{Caller, LinkNumbers},
    peer::{Channels, Peer, Request},
    ramt::{Mapping, Ramt},
    rdma::{Chunk, Direction, Rdma},
};

/// One donor of an [`Initiator`]. A number is never used again for another donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerIndex(pub u32);

/// The recipient's end of the fabric.
///
/// Accesses to one donor are carried out in the order given, CRMA among themselves and RDMA chunks
/// among themselves. Every access that was taken completes, if need be with an error once the donor
/// is found to be down.
///
/// The caller brings the time and moves the frames: after any other call, send what
/// [`Initiator::poll_transmit`] has, take what [`Initiator::poll_completion`] and
/// [`Initiator::poll_rdma_completion`] have, and call [`Initiator::handle_timeout`] when
/// [`Initiator::poll_timeout`] says. Times are nanoseconds of any clock that does not run backwards.
#[derive(Debug)]
pub struct Initiator {
    config: InitiatorConfig,
    numbers: LinkNumbers,
    ramt: Ramt,
    peers: Vec<Peer>,
    channels: Channels,
    /// The peer asked first for something to send: each in turn.
    next_to_send: usize,
}

impl Initiator {
    /// An initiator without peers or windows. All its buffers are allocated here and in
    /// [`Initiator::add_peer`].
    pub fn new(config: InitiatorConfig) -> Self {
        Self {
            numbers: LinkNumbers::new(config.link_seed),
            ramt: Ramt::new(),
            peers: Vec::new(),
            channels: Channels {
                crma: Crma::new(config.crma_depth),
                rdma: Rdma::new(config.rdma_depth),
            },
            next_to_send: 0,
            config,
        }
    }

    /// Adds a donor and starts the handshake with it.
    pub fn add_peer(&mut self, donor: NodeId, now_ns: u64) -> PeerIndex {
        // Each peer draws from a stream of its own, so that none depends on what others do.
        let draw = (self.numbers.draw().0, self.numbers.draw().0);
        let numbers = LinkNumbers::new(u64::from(draw.0) << 32 | u64::from(draw.1));
        let InitiatorConfig { node, link_seed, link, .. } = &self.config;
        let caller = Caller::new(link, *node, donor, *link_seed, numbers, now_ns);
        self.peers.push(Peer::new(caller));
        PeerIndex(self.peers.len() as u32 - 1)
    }

    /// Closes the link to a donor, tells it so, and completes what is outstanding there with
    /// [`DownReason::Closed`].
    pub fn close_peer(&mut self, peer: PeerIndex) {
        if let PeerState::Down { .. } = self.peer_state(peer) {
            return;
        }
        self.peers[peer.0 as usize].go_down(DownReason::Closed, &mut self.channels);
        self.issue_chunks();
    }

    /// How a donor is.
    ///
    /// # Panics
    /// If the index is not of this initiator.
    pub fn peer_state(&self, peer: PeerIndex) -> PeerState {
        self.peers[peer.0 as usize].caller().state()
    }

    /// What the link to a donor has seen.
    ///
    /// # Panics
    /// If the index is not of this initiator.
    pub fn peer_stats(&self, peer: PeerIndex) -> LinkStats {
        self.peers[peer.0 as usize].caller().link.stats()
    }

    /// Requests sent or queued to a donor and not answered yet, chunks of bulk transfers included.
    ///
    /// # Panics
    /// If the index is not of this initiator.
    pub fn outstanding(&self, peer: PeerIndex) -> usize {
        self.peers[peer.0 as usize].outstanding()
    }

    /// Maps `len_bytes` from `window_addr` on to a grant of `peer`, from `remote_addr` on.
    ///
    /// # Errors
    /// [`FabricError::BadLength`], [`FabricError::Overlap`].
    ///
    /// # Panics
    /// If the peer is not of this initiator.
    pub fn map_window(
        &mut self,
        window_addr: u64,
        len_bytes: u64,
        peer: PeerIndex,
        remote_addr: u64,
        grant: GrantId,
        key: GrantKey,
    ) -> Result<(), FabricError> {
        assert!((peer.0 as usize) < self.peers.len(), "{peer:?} is not of this initiator");
        let start = Mapping { peer, remote_addr, room_bytes: len_bytes, grant, key };
        self.ramt.map(window_addr, len_bytes, start)
    }

    /// Takes a window away. Accesses already taken go on; of bulk transfers, chunks not yet issued
    /// fail with [`AccessError::NotMapped`].
    ///
    /// # Errors
    /// [`FabricError::NotMapped`] if no window starts at `window_addr`.
    pub fn unmap_window(&mut self, window_addr: u64) -> Result<(), FabricError> {
        self.ramt.unmap(window_addr)
    }

    /// Asks for `len` bytes, 1 to 4096, that lie in one window. They come with the completion.
    ///
    /// # Errors
    /// Any [`FabricError`] but `Overlap`; the access was not taken.
    pub fn read(
        &mut self,
        _now_ns: u64,
        token: u64,
        window_addr: u64,
        len: u32,
    ) -> Result<(), FabricError> {
        let (mapping, len_bytes) = self.check_access(window_addr, len as usize)?;
        let slot = self.channels.crma.begin(token);
        let request = Request::CrmaRead { slot, len_bytes };
        self.peers[mapping.peer.0 as usize].request(request, mapping, len_bytes, &[]);
        Ok(())
    }

    /// Stores `data`, 1 to 4096 bytes that lie in one window. Once it completes without error the
    /// donor has it.
    ///
    /// # Errors
    /// Any [`FabricError`] but `Overlap`; the access was not taken.
    pub fn write(
        &mut self,
        _now_ns: u64,
        token: u64,
        window_addr: u64,
        data: &[u8],
    ) -> Result<(), FabricError> {
        let (mapping, len_bytes) = self.check_access(window_addr, data.len())?;
        let slot = self.channels.crma.begin(token);
        let request = Request::CrmaWrite { slot };
        self.peers[mapping.peer.0 as usize].request(request, mapping, len_bytes, data);
        Ok(())
    }

    fn check_access(
        &mut self,
        window_addr: u64,
        len: usize,
    ) -> Result<(Mapping, u16), FabricError> {
        let len_bytes = len as u64;
        if len == 0 || len > MAX_PAYLOAD_BYTES {
            return Err(FabricError::BadLength { window_addr, len_bytes });
        }
        let mapping = self
            .ramt
            .translate(window_addr)
            .filter(|mapping| mapping.room_bytes >= len_bytes)
            .ok_or(FabricError::NotMapped { window_addr, len_bytes })?;
        if let PeerState::Down { reason } = self.peer_state(mapping.peer) {
            return Err(FabricError::PeerDown(reason));
        }
        if !self.channels.crma.has_room() || !self.peers[mapping.peer.0 as usize].has_room() {
            return Err(FabricError::WouldBlock);
        }
        Ok((mapping, len as u16))
    }

    /// Fills the whole of `buffer` from `window_addr` on; it comes back with the completion. The
    /// range may span windows, of different donors too.
    ///
    /// # Errors
    /// [`FabricError::BadLength`] or [`FabricError::WouldBlock`], with the buffer. What else goes
    /// wrong is told by the completion.
    pub fn rdma_read(
        &mut self,
        _now_ns: u64,
        token: u64,
        window_addr: u64,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        self.channels.rdma.begin(token, Direction::Read, window_addr, buffer)?;
        self.issue_chunks();
        Ok(())
    }

    /// Stores the whole of `buffer` from `window_addr` on; otherwise like [`Initiator::rdma_read`].
    ///
    /// # Errors
    /// As [`Initiator::rdma_read`].
    pub fn rdma_write(
        &mut self,
        _now_ns: u64,
        token: u64,
        window_addr: u64,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        self.channels.rdma.begin(token, Direction::Write, window_addr, buffer)?;
        self.issue_chunks();
        Ok(())
    }

    /// Issues chunks as windows allow, the descriptors in turn, until each in a row has to wait.
    fn issue_chunks(&mut self) {
        let mut waiting = 0;
        while waiting < self.channels.rdma.issuing() {
            let Some(chunk) = self.channels.rdma.next_chunk() else { return };
            match self.issue_chunk(chunk) {
                Ok(()) => waiting = 0,
                Err(ChunkHeld::NoRoom) => {
                    waiting += 1;
                    self.channels.rdma.rotate();
                }
                Err(ChunkHeld::Failed(error)) => self.channels.rdma.abandon(error),
            }
        }
    }

    fn issue_chunk(&mut self, chunk: Chunk) -> Result<(), ChunkHeld> {
        let mapping = self
            .ramt
            .translate(chunk.window_addr)
            .ok_or(ChunkHeld::Failed(AccessError::NotMapped))?;
        let peer = &mut self.peers[mapping.peer.0 as usize];
        if let PeerState::Down { reason } = peer.caller().state() {
            return Err(ChunkHeld::Failed(AccessError::PeerDown(reason)));
        }
        if !peer.has_bulk_room() {
            return Err(ChunkHeld::NoRoom);
        }
        let len_bytes = mapping.room_bytes.min(chunk.len_bytes.into()) as u16;
        let chunk = Chunk { len_bytes, ..chunk };
        let Chunk { descriptor, offset, .. } = chunk;
        match chunk.direction {
            Direction::Read => {
                let request = Request::RdmaRead { descriptor, offset, len_bytes };
                peer.request(request, mapping, len_bytes, &[]);
            }
            Direction::Write => {
                let bytes = self.channels.rdma.chunk_bytes(&chunk);
                peer.request(Request::RdmaWrite { descriptor }, mapping, len_bytes, bytes);
            }
        }
        self.channels.rdma.issued(&chunk);
        Ok(())
    }

    /// Takes a datagram that came from a donor. Whatever is not a frame of the link is dropped.
    ///
    /// # Panics
    /// If the peer is not of this initiator.
    pub fn handle_frame(&mut self, now_ns: u64, peer: PeerIndex, frame: &[u8]) {
        let Ok(frame) = Frame::parse(frame) else { return };
        if frame.destination() != self.config.node {
            return;
        }
        self.peers[peer.0 as usize].handle_frame(now_ns, &frame, &mut self.channels);
        self.issue_chunks();
    }

    /// Does what the time asks for: replays, keep-alive, giving up on a silent donor.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        for peer in &mut self.peers {
            peer.handle_timeout(now_ns, &mut self.channels);
        }
        self.issue_chunks();
    }

    /// When to call [`Initiator::handle_timeout`], and then [`Initiator::poll_transmit`], if nothing
    /// happens before. A time in the past means at once.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.peers.iter().filter_map(|peer| peer.caller().poll_timeout()).min()
    }

    /// Writes the next frame to send into `buf`; returns whom it is for and its length in bytes.
    /// Call until it has none.
    ///
    /// # Panics
    /// If `buf` is shorter than [`MAX_FRAME_BYTES`].
    pub fn poll_transmit(&mut self, now_ns: u64, buf: &mut [u8]) -> Option<(PeerIndex, usize)> {
        assert!(buf.len() >= MAX_FRAME_BYTES, "a frame can be {MAX_FRAME_BYTES} bytes");
        let count = self.peers.len();
        for turn in 0..count {
            let at = (self.next_to_send + turn) % count;
            if let Some(len) = self.peers[at].poll_transmit(now_ns, buf) {
                self.next_to_send = at + 1;
                return Some((PeerIndex(at as u32), len));
            }
        }
        None
    }

    /// The next CRMA access that is over. Its data is valid until the next call.
    pub fn poll_completion(&mut self) -> Option<Completion<'_>> {
        self.channels.crma.poll()
    }

    /// The next RDMA descriptor that is over.
    pub fn poll_rdma_completion(&mut self) -> Option<RdmaCompletion> {
        self.channels.rdma.poll()
    }

    /// Whether an RDMA descriptor is outstanding or not yet polled.
    pub fn has_rdma_outstanding(&self) -> bool {
        self.channels.rdma.outstanding() > 0
    }
}

/// Why a chunk was not issued.
enum ChunkHeld {
    /// The window is full: later.
    NoRoom,
    /// Never.
    Failed(AccessError),
}
