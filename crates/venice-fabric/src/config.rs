//! What a user of the fabric can set.

use venice_wire::{Integrity, NodeId, UNCHECKED_FLAG};

const MS: u64 = 1_000_000;

/// How a link behaves. The defaults suit a rack: round trips of tens of microseconds, threads that
/// may be kept waiting for milliseconds.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Frames that may be unacknowledged in each direction: a power of two, 4 to 1024.
    pub window: u16,
    /// How long an acknowledgement may wait for a frame to travel on, in nanoseconds.
    pub ack_delay_ns: u64,
    /// Bounds of the replay time-out, in nanoseconds.
    pub replay_min_ns: u64,
    /// See [`LinkConfig::replay_min_ns`].
    pub replay_max_ns: u64,
    /// A caller pings when it has heard nothing for this long, and again every so often.
    pub keepalive_ns: u64,
    /// After this long without a sign of life the link is down, if several pings went unanswered.
    pub silence_ns: u64,
    /// Whether frames carry a checksum, and must. Off for a port that answers for the bytes
    /// itself, as shared memory does, or a seal over the whole datagram.
    pub checksum: bool,
    /// Whether frames are kept for replay, acknowledged in time, and put in order. Off for a port
    /// that delivers each frame once and in order, or breaks. Both ends must agree.
    pub replay: bool,
}

/// How an [`crate::Initiator`] behaves.
#[derive(Clone, Debug)]
pub struct InitiatorConfig {
    /// This node.
    pub node: NodeId,
    /// 64 random bits: who starts anew draws anew. All link numbers are derived from it.
    pub link_seed: u64,
    /// How the links behave.
    pub link: LinkConfig,
    /// CRMA accesses that may be outstanding, over all peers, those not yet polled included. Each
    /// has a page of buffer.
    pub crma_depth: u16,
    /// RDMA descriptors that may be outstanding, those not yet polled included.
    pub rdma_depth: u16,
    /// QPairs there may be at once, over all peers.
    pub max_qpairs: u16,
    /// Windows that may be mapped: entries of the RAMT.
    pub max_windows: u32,
}

/// How a [`crate::Target`] behaves.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// This node.
    pub node: NodeId,
    /// 64 random bits: who starts anew draws anew. It tells a restarted donor from its old self.
    pub incarnation: u64,
    /// How the links behave.
    pub link: LinkConfig,
    /// Links kept at once; the one that has been silent longest makes room.
    pub max_links: u16,
    /// Grants one link may use at once: entries of the donor's mapping table. What is over is
    /// refused with [`crate::Refusal::TableFull`].
    pub max_grants_per_link: u16,
    /// A link that has been silent for this long is forgotten, in nanoseconds.
    pub link_idle_ns: u64,
    /// QPairs there may be at once, over all links.
    pub max_qpairs: u16,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            window: 128,
            ack_delay_ns: MS / 2,
            replay_min_ns: 2 * MS,
            replay_max_ns: 200 * MS,
            keepalive_ns: 250 * MS,
            silence_ns: 2000 * MS,
            checksum: true,
            replay: true,
        }
    }
}

/// The fewest frames a side can buffer, and so what may be queued before the other side has told.
pub(crate) const MIN_WINDOW: u16 = 4;

/// Bit of `detail` in a handshake: the sender replays nothing.
const MODE_NO_REPLAY: u16 = 1 << 0;

impl LinkConfig {
    /// For a port that delivers each frame once, whole and in order, or breaks: no checksum, no
    /// replay.
    pub fn reliable() -> Self {
        Self { checksum: false, replay: false, ..Self::default() }
    }

    /// What stands for it that a frame came whole.
    pub(crate) fn integrity(&self) -> Integrity {
        if self.checksum { Integrity::Checksum } else { Integrity::Port }
    }

    /// The flags of every frame of the link.
    pub(crate) fn header_flags(&self) -> u8 {
        if self.checksum { 0 } else { UNCHECKED_FLAG }
    }

    /// What the other end must agree to, as it travels in the handshake.
    pub(crate) fn modes(&self) -> u16 {
        if self.replay { 0 } else { MODE_NO_REPLAY }
    }

    /// The window in force: [`LinkConfig::window`] brought into its bounds.
    pub(crate) fn window_frames(&self) -> u16 {
        self.window.clamp(MIN_WINDOW, 1024).next_power_of_two()
    }
}

impl InitiatorConfig {
    /// The defaults for `node`; `link_seed` must be random.
    pub fn new(node: NodeId, link_seed: u64) -> Self {
        Self {
            node,
            link_seed,
            link: LinkConfig::default(),
            crma_depth: 256,
            rdma_depth: 64,
            max_qpairs: 1024,
            max_windows: 1 << 16,
        }
    }
}

impl TargetConfig {
    /// The defaults for `node`; `incarnation` must be random.
    pub fn new(node: NodeId, incarnation: u64) -> Self {
        Self {
            node,
            incarnation,
            link: LinkConfig::default(),
            max_links: 256,
            max_grants_per_link: 256,
            link_idle_ns: 60_000 * MS,
            max_qpairs: 1024,
        }
    }
}
