//! The route of a packet through a topology, and its virtual channels.
//!
//! Two kinds of route exist. Each is free of deadlock, and both together are because they share no
//! virtual channel (docs/decisions/0012):
//! * by the packet's destination, in dimension order ([`Topology::next_hop`]): shortest paths, no
//!   state, channels [`DIRECT`] and [`DIRECT_WRAPPING`];
//! * by the source's route ([`Topology::route_around`]): around links that are down, channels from
//!   [`FIRST_DETOUR`] on, which every switch chooses by [`Topology::detour_channel`].

mod detour;

use venice_wire::{SwitchPort, VIRTUAL_CHANNELS};

use crate::topology::{Position, Topology};

pub use detour::{LinkStates, NoRoute};

/// A virtual channel of a hop link: `0..VIRTUAL_CHANNELS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualChannel(pub u8);

/// The channel of packets routed by destination whose path along the present dimension does not
/// cross the joint of a ring.
pub const DIRECT: VirtualChannel = VirtualChannel(0);
/// The channel of such packets while the joint of the ring lies ahead of them.
pub const DIRECT_WRAPPING: VirtualChannel = VirtualChannel(1);
/// The first channel of packets that follow a source route; they move up to the next one where they
/// turn from descending to ascending.
pub const FIRST_DETOUR: VirtualChannel = VirtualChannel(2);

/// One hop: the port and the virtual channel on which to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The port.
    pub port: SwitchPort,
    /// The channel.
    pub channel: VirtualChannel,
}

impl Topology {
    /// Returns the next hop of a packet at `at` that is routed by its destination `to`: dimension x
    /// first, then y, then z, each the short way around (up where both are equal). `None` when it
    /// has arrived, or one of the two is outside.
    pub fn next_hop(&self, at: Position, to: Position) -> Option<NextHop> {
        if at == to || at.0.max(to.0) >= self.switches() {
            return None;
        }
        let Some(extents) = self.extents() else {
            let port = match self {
                Self::Router { nodes } if at.0 < *nodes => SwitchPort(0),
                _ => self.port_to(at, to)?,
            };
            return Some(NextHop { port, channel: DIRECT });
        };
        let (here, there) = (self.coordinates(at)?, self.coordinates(to)?);
        let dimension = (0..3).find(|&dimension| here[dimension] != there[dimension])?;
        let (here, there) = (here[dimension], there[dimension]);
        let (is_up, wraps) = self.way_along(here, there, extents[dimension]);
        let channel = if wraps { DIRECT_WRAPPING } else { DIRECT };
        Some(NextHop { port: SwitchPort(2 * dimension as u16 + u16::from(!is_up)), channel })
    }

    /// Returns, for a dimension of `extent` nodes from `here` to `there`, whether to go up, and
    /// whether the joint of the ring still lies ahead.
    fn way_along(&self, here: u32, there: u32, extent: u32) -> (bool, bool) {
        let inside_up = there > here;
        if !self.wraps(extent) {
            return (inside_up, false);
        }
        let up = (there + extent - here) % extent;
        let is_up = 2 * up <= extent;
        (is_up, is_up != inside_up)
    }

    /// Returns the hops from `from` to `to`.
    ///
    /// # Panics
    /// Panics if one of them is outside the topology.
    pub fn hops(&self, from: Position, to: Position) -> u32 {
        assert!(from.0.max(to.0) < self.switches(), "both are inside");
        match *self {
            Self::AllToAll { .. } => u32::from(from != to),
            Self::Router { nodes } if from.0 < nodes && to.0 < nodes => 2 * u32::from(from != to),
            Self::Router { .. } => u32::from(from != to),
            Self::Mesh { .. } | Self::Torus { .. } => {
                let extents = self.extents().expect("it has directions");
                let ends = self.coordinates(from).zip(self.coordinates(to)).expect("inside");
                (0..3)
                    .map(|dimension| {
                        let apart = ends.0[dimension].abs_diff(ends.1[dimension]);
                        let extent = extents[dimension];
                        if self.wraps(extent) { apart.min(extent - apart) } else { apart }
                    })
                    .sum()
            }
        }
    }

    /// Returns the longest of all shortest paths, in hops.
    pub fn diameter(&self) -> u32 {
        match *self {
            Self::AllToAll { nodes } => u32::from(nodes > 1),
            Self::Router { nodes } if nodes > 1 => 2,
            Self::Router { .. } => 1,
            Self::Mesh { x, y, z } | Self::Torus { x, y, z } => {
                let across = |extent| if self.wraps(extent) { extent / 2 } else { extent - 1 };
                [x, y, z].into_iter().map(across).sum()
            }
        }
    }

    /// Returns the positions passed by a packet routed by destination, from the one after `from` to
    /// `to`.
    pub fn path(&self, from: Position, to: Position) -> impl Iterator<Item = Position> + '_ {
        std::iter::successors(Some(from), move |at| {
            let hop = self.next_hop(*at, to)?;
            Some(self.neighbour(*at, hop.port).expect("a route follows links").0)
        })
        .skip(1)
    }

    /// True if the hop from `from` to its neighbour `to` ascends. All switches have one fixed
    /// order, whatever is down: an external router first, then the others by position.
    fn ascends(&self, from: Position, to: Position) -> bool {
        let rank = |at: Position| if Some(at) == self.router() { 0 } else { u64::from(at.0) + 1 };
        rank(to) < rank(from)
    }

    /// Returns the virtual channel on which a packet that follows a source route leaves `at` for
    /// its neighbour `to`, when it `came` from that neighbour on that channel (`None`: it starts
    /// here). `None`: it has turned from descending to ascending more often than there are
    /// channels, and must be dropped. This rule prevents deadlock for any route.
    pub fn detour_channel(
        &self,
        came: Option<(Position, VirtualChannel)>,
        at: Position,
        to: Position,
    ) -> Option<VirtualChannel> {
        let Some((from, channel)) = came else { return Some(FIRST_DETOUR) };
        if channel < FIRST_DETOUR {
            return None;
        }
        let turns_up = !self.ascends(from, at) && self.ascends(at, to);
        let channel = VirtualChannel(channel.0 + u8::from(turns_up));
        (usize::from(channel.0) < VIRTUAL_CHANNELS).then_some(channel)
    }
}
