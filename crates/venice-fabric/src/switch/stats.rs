//! Counters of a switch, for reports and for the Topology Status Table.

use venice_wire::NodeId;

/// The state of a hop link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HopState {
    /// The neighbour does not answer.
    #[default]
    Down,
    /// The link carries packets.
    Up,
}

/// The counters of one hop link at this end since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopStats {
    /// The node at the other end.
    pub neighbour: NodeId,
    /// Its present state.
    pub state: HopState,
    /// Smoothed round trip in nanoseconds; `None` before the first sample.
    pub round_trip_ns: Option<u64>,
    /// Keep-alives lost, in parts per million, the later ones weighted more.
    pub loss_ppm: u32,
    /// Packets in flight to the neighbour now.
    pub in_flight: u32,
    /// Packets from the neighbour in buffers here now.
    pub buffered: u32,
    /// Packets sent, each counted once.
    pub sent: u64,
    /// Packets sent again.
    pub replayed: u64,
    /// Bytes of packets sent, replays included, hop headers excluded.
    pub sent_bytes: u64,
    /// Packets received, each counted once.
    pub received: u64,
    /// Bytes of them.
    pub received_bytes: u64,
    /// Packets received a second time.
    pub duplicates: u64,
    /// Datagrams that were damaged or invalid.
    pub malformed: u64,
    /// Datagrams of another link or from another node.
    pub strangers: u64,
    /// Packets received without credit and dropped. The other end is broken.
    pub overruns: u64,
    /// Times the link came up.
    pub ups: u64,
    /// Times the link went down.
    pub downs: u64,
    /// Packets in flight when the other end was found to have restarted.
    pub lost_in_restarts: u64,
}

/// The counters of the whole switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchStats {
    /// Packets this node sent.
    pub injected: u64,
    /// Packets forwarded from one neighbour to another.
    pub relayed: u64,
    /// Packets for this node.
    pub delivered: u64,
    /// Packets given a source route where all links of the direct route were up.
    pub source_routed: u64,
    /// Packets given a source route around links that are down.
    pub detoured: u64,
    /// Packets for a node without a route.
    pub unroutable: u64,
    /// Packets that exceeded their hop limit.
    pub hop_limit: u64,
    /// Packets that were invalid.
    pub malformed: u64,
}
