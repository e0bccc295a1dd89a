//! The settings of the fabric.

use venice_wire::{Integrity, NodeId, UNCHECKED_FLAG};

const MS: u64 = 1_000_000;

/// The settings of a link. The defaults suit a rack: round trips of tens of microseconds, threads
/// that may wait for milliseconds.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Frames that may be unacknowledged in each direction: a power of two, 4 to 1024.
    pub window: u16,
    /// The time an acknowledgement may wait for a frame to carry it, in nanoseconds.
    pub ack_delay_ns: u64,
    /// Bounds of the replay time-out, in nanoseconds.
    pub replay_min_ns: u64,
    /// See [`LinkConfig::replay_min_ns`].
    pub replay_max_ns: u64,
    /// A caller pings after hearing nothing for this time, in nanoseconds, and again at this
    /// interval.
    pub keepalive_ns: u64,
    /// The link is down after this time without a frame, in nanoseconds, if several pings went
    /// unanswered.
    pub silence_ns: u64,
    /// True if frames must carry a checksum. Off for a port that guarantees integrity itself, like
    /// shared memory, or a seal over the whole datagram.
    pub checksum: bool,
    /// True if frames are kept for replay, acknowledged in time, and put in order. Off for a port
    /// that delivers each frame once and in order, or breaks. Both ends must agree.
    pub replay: bool,
}

/// The settings of an [`crate::Initiator`].
#[derive(Clone, Debug)]
pub struct InitiatorConfig {
    /// This node.
    pub node: NodeId,
    /// 64 random bits, drawn anew at each start. All link numbers are derived from them.
    pub link_seed: u64,
    /// The settings of the links.
    pub link: LinkConfig,
    /// CRMA accesses that may be outstanding, over all peers, including completions not yet polled.
    /// Each has a page of buffer.
    pub crma_depth: u16,
    /// RDMA descriptors that may be outstanding, including completions not yet polled.
    pub rdma_depth: u16,
    /// QPairs that may exist at once, over all peers.
    pub max_qpairs: u16,
    /// Mappings that may exist: entries of the RAMT.
    pub max_windows: u32,
}

/// The settings of a [`crate::Target`].
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// This node.
    pub node: NodeId,
    /// 64 random bits, drawn anew at each start. They tell a restarted donor from its earlier
    /// session.
    pub incarnation: u64,
    /// The settings of the links.
    pub link: LinkConfig,
    /// Links kept at once; the one silent for longest is dropped for a new one.
    pub max_links: u16,
    /// Grants one link may use at once: entries of the donor's mapping table. Further ones are
    /// refused with [`crate::Refusal::TableFull`].
    pub max_grants_per_link: u16,
    /// Idle time in nanoseconds after which a link is forgotten.
    pub link_idle_ns: u64,
    /// QPairs that may exist at once, over all links.
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

/// The fewest frames a side can buffer, and so the number that may be queued before the other
/// side's window is known.
pub(crate) const MIN_WINDOW: u16 = 4;

/// Bit of `detail` in a handshake: the sender replays nothing.
const MODE_NO_REPLAY: u16 = 1 << 0;

impl LinkConfig {
    /// Returns the settings for a port that delivers each frame once, whole and in order, or
    /// breaks: no checksum, no replay.
    pub fn reliable() -> Self {
        Self { checksum: false, replay: false, ..Self::default() }
    }

    /// Returns the mechanism that guarantees a frame's integrity.
    pub(crate) fn integrity(&self) -> Integrity {
        if self.checksum { Integrity::Checksum } else { Integrity::Port }
    }

    /// Returns the flags of every frame of the link.
    pub(crate) fn header_flags(&self) -> u8 {
        if self.checksum { 0 } else { UNCHECKED_FLAG }
    }

    /// Returns the modes on which both ends must agree, as they travel in the handshake.
    pub(crate) fn modes(&self) -> u16 {
        if self.replay { 0 } else { MODE_NO_REPLAY }
    }

    /// Returns the window in force: [`LinkConfig::window`] clamped to its bounds.
    pub(crate) fn window_frames(&self) -> u16 {
        self.window.clamp(MIN_WINDOW, 1024).next_power_of_two()
    }
}

impl InitiatorConfig {
    /// Returns the defaults for `node`; `link_seed` must be random.
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
    /// Returns the defaults for `node`; `incarnation` must be random.
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
