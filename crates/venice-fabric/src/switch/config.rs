//! The settings of a switch.

use venice_wire::NodeId;

use crate::{LinkConfig, Position, Topology};

const MS: u64 = 1_000_000;

/// The settings of a [`super::Switch`].
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// The topology of the network.
    pub topology: Topology,
    /// The position of this switch in it.
    pub position: Position,
    /// The node of each switch, by position, this one's included: [`Topology::switches`] of them.
    pub nodes: Vec<NodeId>,
    /// 64 random bits, drawn anew at each start.
    pub incarnation: u64,
    /// The settings of hop links: `window` bounds the packets in flight to a neighbour, both ends
    /// send the keep-alive, and `silence_ns` bounds the time until a dead neighbour is detected.
    pub link: LinkConfig,
    /// Packets that each virtual channel of each port buffers: a neighbour's credits.
    pub channel_packets: u16,
    /// Packets of this node that may wait to be sent. One program may have half of them.
    pub local_packets: u16,
    /// True if packets get their whole route at the source, and no switch on it chooses. Otherwise
    /// each switch chooses by the destination, and source routes only lead around links that are
    /// down.
    pub source_routes: bool,
}

impl SwitchConfig {
    /// Returns the defaults for the switch at `position` of `topology`; `incarnation` must be
    /// random.
    ///
    /// A dead neighbour is detected in 0.6 s, well before the end-to-end links above (2 s) give up
    /// on nodes reached through it.
    pub fn new(
        topology: Topology,
        position: Position,
        nodes: Vec<NodeId>,
        incarnation: u64,
    ) -> Self {
        let link = LinkConfig {
            ack_delay_ns: MS / 5,
            replay_max_ns: 50 * MS,
            keepalive_ns: 100 * MS,
            silence_ns: 600 * MS,
            ..LinkConfig::default()
        };
        Self {
            topology,
            position,
            nodes,
            incarnation,
            link,
            channel_packets: 32,
            local_packets: 512,
            source_routes: false,
        }
    }
}
