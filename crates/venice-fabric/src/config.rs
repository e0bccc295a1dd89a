//! What a user of the fabric can set.

use venice_wire::NodeId;

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
    /// A link that has been silent for this long is forgotten, in nanoseconds.
    pub link_idle_ns: u64,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            window: 64,
            ack_delay_ns: MS / 2,
            replay_min_ns: 2 * MS,
            replay_max_ns: 200 * MS,
            keepalive_ns: 250 * MS,
            silence_ns: 2000 * MS,
        }
    }
}

impl LinkConfig {
    /// The window in force: [`LinkConfig::window`] brought into its bounds.
    pub(crate) fn window_frames(&self) -> u16 {
        self.window.clamp(4, 1024).next_power_of_two()
    }
}

impl InitiatorConfig {
    /// The defaults for `node`; `link_seed` must be random.
    pub fn new(node: NodeId, link_seed: u64) -> Self {
        Self { node, link_seed, link: LinkConfig::default(), crma_depth: 256, rdma_depth: 64 }
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
            link_idle_ns: 60_000 * MS,
        }
    }
}
