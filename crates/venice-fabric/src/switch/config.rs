//! What a switch is told when it is made.

use venice_wire::NodeId;

use crate::{LinkConfig, Position, Topology};

const MS: u64 = 1_000_000;

/// How a [`super::Switch`] is set up.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// How the network is wired.
    pub topology: Topology,
    /// Where in it this switch stands.
    pub position: Position,
    /// Every switch's node, by position, this one's included: [`Topology::switches`] of them.
    pub nodes: Vec<NodeId>,
    /// 64 random bits: who starts anew draws anew.
    pub incarnation: u64,
    /// How hop links behave: `window` bounds the packets on their way to a neighbour, the
    /// keep-alive is sent by both ends, and `silence_ns` says how soon a dead neighbour is found.
    pub link: LinkConfig,
    /// Packets that each virtual channel of each port buffers: what a neighbour gets as credits.
    pub channel_packets: u16,
    /// Packets of this node that may wait to go out. A program alone may have half of them.
    pub local_packets: u16,
    /// Packets get their whole route where they start, and no switch on the way chooses; else each
    /// switch chooses by the destination, and routes are for ways round links that are down.
    pub source_routes: bool,
}

impl SwitchConfig {
    /// The defaults for the switch at `position` of `topology`; `incarnation` must be random.
    ///
    /// A dead neighbour is found in 0.6 s, well before the end-to-end links above (2 s) give up on
    /// whom they reach through it.
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
