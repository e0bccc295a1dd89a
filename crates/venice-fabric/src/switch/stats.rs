//! What a switch counts, for people and for the Topology Status Table.

use venice_wire::NodeId;

/// How a hop link is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HopState {
    /// Nobody answers, or nobody has yet.
    #[default]
    Down,
    /// Packets go.
    Up,
}

/// One hop link, as this end has seen it since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopStats {
    /// The node at the other end.
    pub neighbour: NodeId,
    /// How it is now.
    pub state: HopState,
    /// Smoothed round trip in nanoseconds; `None` before the first sample.
    pub round_trip_ns: Option<u64>,
    /// Keep-alives lost, of a million, the later ones counting more.
    pub loss_ppm: u32,
    /// Packets on their way to the neighbour now.
    pub in_flight: u32,
    /// Packets from it that wait in buffers here now.
    pub buffered: u32,
    /// Packets sent, each counted once.
    pub sent: u64,
    /// Packets sent again.
    pub replayed: u64,
    /// Bytes of packets sent, replays included, hop headers not.
    pub sent_bytes: u64,
    /// Packets received, each counted once.
    pub received: u64,
    /// Bytes of them.
    pub received_bytes: u64,
    /// Packets that came a second time.
    pub duplicates: u64,
    /// Datagrams that were damaged or made no sense.
    pub malformed: u64,
    /// Datagrams of another link or from another node.
    pub strangers: u64,
    /// Packets that came without credit and were dropped. The other end is broken.
    pub overruns: u64,
    /// Times the link came up, and went down.
    pub ups: u64,
    /// See `ups`.
    pub downs: u64,
    /// Packets on their way when the other end was found to be a new one.
    pub lost_in_restarts: u64,
}

/// The switch as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchStats {
    /// Packets this node put in.
    pub injected: u64,
    /// Packets passed on from one neighbour to another.
    pub relayed: u64,
    /// Packets for this node.
    pub delivered: u64,
    /// Packets given a source route where all links of the direct way were up.
    pub source_routed: u64,
    /// Packets given a source route round links that are down.
    pub detoured: u64,
    /// Packets for a node that no way leads to.
    pub unroutable: u64,
    /// Packets that had passed more switches than they may.
    pub hop_limit: u64,
    /// Packets that made no sense.
    pub malformed: u64,
}
