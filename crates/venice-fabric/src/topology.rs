//! The wiring of a rack's nodes: shapes, coordinates, ports, neighbours.
//!
//! A topology is arithmetic, not a table: any size costs the same. It defines the neighbours;
//! [`crate::routing`] defines the routes.

use std::fmt;

use venice_wire::SwitchPort;

/// The position of a switch in a [`Topology`]: `0..switches()`. In a mesh and a torus the x
/// coordinate counts fastest. The positions below `nodes()` are nodes of the rack; a
/// [`Topology::Router`] has one more, the external router's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u32);

/// The wiring of the nodes (Venice paper, section 5.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Topology {
    /// A direct link between every two nodes.
    AllToAll {
        /// Nodes.
        nodes: u32,
    },
    /// A line, grid or cube: each node is linked to the next in each direction.
    Mesh {
        /// Nodes along each direction.
        x: u32,
        /// See `x`.
        y: u32,
        /// See `x`.
        z: u32,
    },
    /// A mesh whose ends are joined. A ring of two is a line: it has one link, not two.
    Torus {
        /// Nodes along each direction.
        x: u32,
        /// See `x`.
        y: u32,
        /// See `x`.
        z: u32,
    },
    /// Every node is linked to one external router of high radix.
    Router {
        /// Nodes, the router not counted.
        nodes: u32,
    },
}

/// The reason a text names no topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The text is not a known topology.
    #[error(
        "unknown topology {0:?}: write all-to-all, router, mesh:XxYxZ or torus:XxYxZ, \
         for example mesh:2x2x2"
    )]
    Unknown(String),
    /// The shape and the number of nodes disagree.
    #[error("{topology} has {has} nodes, not {nodes}")]
    OtherSize {
        /// The topology.
        topology: Topology,
        /// Its number of nodes.
        has: u64,
        /// The required number of nodes.
        nodes: u32,
    },
    /// The nodes exceed the limit: ports are numbered by 16 bits, and so are the nodes that one
    /// switch links directly.
    #[error("too many nodes for {kind}: {nodes}, at most {MAX_RADIX}")]
    TooWide {
        /// The name of the topology.
        kind: &'static str,
        /// Nodes requested.
        nodes: u32,
    },
    /// The size is invalid: a topology has at least one node, and a 3D one at most 2³¹.
    #[error("invalid size of {0:?}: it has no nodes, or too many")]
    BadSize(String),
}

/// The most direct links of one switch.
pub const MAX_RADIX: u32 = u16::MAX as u32 - 1;

/// Ports of a mesh or torus: twice the dimension, plus one for the way down.
const DIRECTIONS: u16 = 6;

/// One direct link: a port here, the neighbour, and the neighbour's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopologyLink {
    /// The first end, at the lower position.
    pub from: Position,
    /// Its port.
    pub from_port: SwitchPort,
    /// The other end.
    pub to: Position,
    /// Its port.
    pub to_port: SwitchPort,
}

impl Topology {
    /// Returns the topology that `text` names for `nodes` nodes: `all-to-all`, `router`,
    /// `mesh:2x2x2` (also `mesh:4x4`, `mesh:8`), `torus:4x4x4`. [`Topology`]'s `Display` writes the
    /// same.
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn for_nodes(text: &str, nodes: u32) -> Result<Self, TopologyError> {
        let topology = match text {
            "all-to-all" => Self::AllToAll { nodes },
            "router" => Self::Router { nodes },
            _ => Self::shaped(text)?,
        };
        match topology {
            _ if nodes == 0 => Err(TopologyError::BadSize(text.to_string())),
            Self::AllToAll { .. } if nodes > MAX_RADIX => {
                Err(TopologyError::TooWide { kind: "all-to-all", nodes })
            }
            Self::Router { .. } if nodes > MAX_RADIX => {
                Err(TopologyError::TooWide { kind: "router", nodes })
            }
            _ if topology.nodes() != nodes => {
                let has = u64::from(topology.nodes());
                Err(TopologyError::OtherSize { topology, has, nodes })
            }
            _ => Ok(topology),
        }
    }

    /// Returns a mesh or torus, whose text gives its size.
    ///
    /// # Errors
    /// [`TopologyError::Unknown`], [`TopologyError::BadSize`].
    pub fn shaped(text: &str) -> Result<Self, TopologyError> {
        let unknown = || TopologyError::Unknown(text.to_string());
        let (word, size) = text.split_once(':').ok_or_else(unknown)?;
        let mut extents = [1; 3];
        let parts = size.split('x');
        if !matches!(word, "mesh" | "torus") || parts.clone().count() > extents.len() {
            return Err(unknown());
        }
        for (extent, part) in extents.iter_mut().zip(parts) {
            if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(unknown());
            }
            *extent = part.parse().map_err(|_| TopologyError::BadSize(text.to_string()))?;
        }
        let nodes = extents.iter().try_fold(1u32, |product, n| product.checked_mul(*n));
        let [x, y, z] = extents;
        match nodes {
            Some(1..=0x8000_0000) if word == "mesh" => Ok(Self::Mesh { x, y, z }),
            Some(1..=0x8000_0000) => Ok(Self::Torus { x, y, z }),
            _ => Err(TopologyError::BadSize(text.to_string())),
        }
    }

    /// Returns the topology as one text with its size: `mesh:2x2x2`, `router:8`. Its `FromStr`
    /// reads it back.
    pub fn with_size(&self) -> String {
        match self {
            Self::AllToAll { nodes } | Self::Router { nodes } => format!("{self}:{nodes}"),
            Self::Mesh { .. } | Self::Torus { .. } => self.to_string(),
        }
    }

    /// Returns the number of nodes of the rack.
    pub fn nodes(&self) -> u32 {
        match *self {
            Self::AllToAll { nodes } | Self::Router { nodes } => nodes,
            Self::Mesh { x, y, z } | Self::Torus { x, y, z } => x * y * z,
        }
    }

    /// Returns the number of switches: one at each node, and the external router if there is one.
    pub fn switches(&self) -> u32 {
        self.nodes() + u32::from(self.router().is_some())
    }

    /// Returns the position of the external router, if there is one.
    pub fn router(&self) -> Option<Position> {
        match *self {
            Self::Router { nodes } => Some(Position(nodes)),
            _ => None,
        }
    }

    /// True if packets may have to go through other nodes, or through a router.
    pub fn has_relays(&self) -> bool {
        !matches!(self, Self::AllToAll { .. })
    }

    /// Returns the number of ports of the switch at `at` that lead to other switches; some may have
    /// no neighbour. In a mesh or torus six: +x, −x, +y, −y, +z, −z.
    pub fn ports(&self, at: Position) -> u16 {
        match *self {
            Self::Mesh { .. } | Self::Torus { .. } => DIRECTIONS,
            // Port n leads to node n; a node's own number leads nowhere.
            Self::AllToAll { nodes } => nodes as u16,
            Self::Router { nodes } if at.0 == nodes => nodes as u16,
            Self::Router { .. } => 1,
        }
    }

    /// Returns the port to the node itself, after those to others: the seventh in a mesh or torus.
    pub fn local_port(&self, at: Position) -> SwitchPort {
        SwitchPort(self.ports(at))
    }

    /// Returns the neighbour behind `port`, and the neighbour's port by which a packet arrives
    /// there.
    pub fn neighbour(&self, at: Position, port: SwitchPort) -> Option<(Position, SwitchPort)> {
        if at.0 >= self.switches() || port.0 >= self.ports(at) {
            return None;
        }
        match *self {
            Self::AllToAll { .. } => (u32::from(port.0) != at.0)
                .then_some((Position(u32::from(port.0)), SwitchPort(at.0 as u16))),
            Self::Router { nodes } if at.0 == nodes => {
                Some((Position(u32::from(port.0)), SwitchPort(0)))
            }
            Self::Router { nodes } => Some((Position(nodes), SwitchPort(at.0 as u16))),
            Self::Mesh { .. } | Self::Torus { .. } => {
                let to = self.step(at, usize::from(port.0 / 2), port.0.is_multiple_of(2))?;
                Some((to, SwitchPort(port.0 ^ 1)))
            }
        }
    }

    /// Returns the neighbours of a switch with the ports that lead to them, by port.
    pub fn neighbours(&self, at: Position) -> impl Iterator<Item = (SwitchPort, Position)> {
        let topology = *self;
        let ports = (0..topology.ports(at)).map(SwitchPort);
        ports.filter_map(move |port| Some((port, topology.neighbour(at, port)?.0)))
    }

    /// Returns the port that leads directly from `at` to `to`, if they are neighbours.
    pub fn port_to(&self, at: Position, to: Position) -> Option<SwitchPort> {
        match *self {
            Self::Mesh { .. } | Self::Torus { .. } => {}
            // These have a port for each number, so no search is needed.
            Self::AllToAll { .. } => {
                return (to.0 < self.switches() && to != at).then_some(SwitchPort(to.0 as u16));
            }
            Self::Router { nodes } => {
                let is_up = at.0 < nodes && to.0 == nodes;
                let is_down = at.0 == nodes && to.0 < nodes;
                return if is_up {
                    Some(SwitchPort(0))
                } else {
                    is_down.then_some(SwitchPort(to.0 as u16))
                };
            }
        }
        let mut ports = (0..self.ports(at)).map(SwitchPort);
        ports.find(|port| self.neighbour(at, *port).is_some_and(|(there, _)| there == to))
    }

    /// Returns all direct links, each once.
    pub fn links(&self) -> impl Iterator<Item = TopologyLink> + '_ {
        let ports = (0..self.switches())
            .map(Position)
            .flat_map(|from| (0..self.ports(from)).map(move |port| (from, SwitchPort(port))));
        ports.filter_map(|(from, from_port)| {
            let (to, to_port) = self.neighbour(from, from_port)?;
            (from < to).then_some(TopologyLink { from, from_port, to, to_port })
        })
    }

    /// Returns the coordinates in a mesh or torus; `None` elsewhere and outside.
    pub fn coordinates(&self, at: Position) -> Option<[u32; 3]> {
        let [x, y, _] = self.extents()?;
        (at.0 < self.nodes()).then(|| [at.0 % x, at.0 / x % y, at.0 / x / y])
    }

    /// Returns the position with these coordinates in a mesh or torus.
    pub fn at(&self, coordinates: [u32; 3]) -> Option<Position> {
        let extents = self.extents()?;
        let inside = coordinates.iter().zip(extents).all(|(at, extent)| *at < extent);
        let [x, y, z] = coordinates;
        inside.then(|| Position(x + extents[0] * (y + extents[1] * z)))
    }

    /// Returns a port's name: `+x`, `-z`, `router`, or the number of the node it leads to.
    pub fn port_name(&self, at: Position, port: SwitchPort) -> String {
        match *self {
            _ if port == self.local_port(at) => "local".into(),
            Self::Mesh { .. } | Self::Torus { .. } => {
                let names = ["+x", "-x", "+y", "-y", "+z", "-z"];
                names.get(usize::from(port.0)).map_or_else(|| port.0.to_string(), |&n| n.into())
            }
            Self::Router { nodes } if at.0 < nodes => "router".into(),
            _ => port.0.to_string(),
        }
    }

    /// True if any port with a neighbour satisfies the predicate.
    pub(crate) fn has_neighbour_where(
        &self,
        at: Position,
        mut is_such: impl FnMut(SwitchPort) -> bool,
    ) -> bool {
        let mut ports = (0..self.ports(at)).map(SwitchPort);
        ports.any(|port| is_such(port) && self.neighbour(at, port).is_some())
    }

    /// Returns the nodes along each direction, for topologies that have directions.
    pub(crate) fn extents(&self) -> Option<[u32; 3]> {
        match *self {
            Self::Mesh { x, y, z } | Self::Torus { x, y, z } => Some([x, y, z]),
            Self::AllToAll { .. } | Self::Router { .. } => None,
        }
    }

    /// True if the ends of a dimension of `extent` nodes are joined.
    pub(crate) fn wraps(&self, extent: u32) -> bool {
        matches!(self, Self::Torus { .. }) && extent > 2
    }

    /// Returns the position one step along a dimension.
    fn step(&self, at: Position, dimension: usize, is_up: bool) -> Option<Position> {
        let mut coordinates = self.coordinates(at)?;
        let extent = self.extents()?[dimension];
        let here = coordinates[dimension];
        coordinates[dimension] = match is_up {
            true if here + 1 < extent => here + 1,
            false if here > 0 => here - 1,
            _ if !self.wraps(extent) => return None,
            true => 0,
            false => extent - 1,
        };
        self.at(coordinates)
    }
}

impl std::str::FromStr for Topology {
    type Err = TopologyError;

    /// Parses the text written by [`Topology::with_size`].
    fn from_str(text: &str) -> Result<Self, TopologyError> {
        match text.split_once(':') {
            Some((word @ ("all-to-all" | "router"), size)) => {
                let nodes = size.parse().map_err(|_| TopologyError::Unknown(text.to_string()))?;
                Self::for_nodes(word, nodes)
            }
            _ => Self::shaped(text),
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllToAll { .. } => f.write_str("all-to-all"),
            Self::Router { .. } => f.write_str("router"),
            Self::Mesh { x, y, z } => write!(f, "mesh:{x}x{y}x{z}"),
            Self::Torus { x, y, z } => write!(f, "torus:{x}x{y}x{z}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_roundtrip() {
        for (text, nodes) in [
            ("all-to-all", 5),
            ("router", 9),
            ("mesh:2x2x2", 8),
            ("torus:4x4x4", 64),
            ("mesh:1x1x1", 1),
        ] {
            let topology = Topology::for_nodes(text, nodes).unwrap();
            assert_eq!((topology.to_string().as_str(), topology.nodes()), (text, nodes));
            assert_eq!(topology.with_size().parse(), Ok(topology));
        }
        assert_eq!(
            Topology::for_nodes("mesh:4x2", 8).unwrap(),
            Topology::Mesh { x: 4, y: 2, z: 1 }
        );
        assert_eq!(Topology::shaped("torus:7").unwrap(), Topology::Torus { x: 7, y: 1, z: 1 });
    }

    #[test]
    fn parse_error_names_reason() {
        let fails = |text, nodes| Topology::for_nodes(text, nodes).unwrap_err();
        for text in ["", "ring", "mesh", "mesh:", "mesh:2x", "mesh:2x2x2x2", "torus:+2", "star:4"] {
            assert_eq!(fails(text, 8), TopologyError::Unknown(text.into()), "{text}");
        }
        for text in ["mesh:0x2x2", "torus:99999999999", "mesh:65536x65536x2"] {
            assert_eq!(fails(text, 8), TopologyError::BadSize(text.into()), "{text}");
        }
        assert_eq!(fails("all-to-all", 0), TopologyError::BadSize("all-to-all".into()));
        assert_eq!(fails("mesh:2x2x2", 7).to_string(), "mesh:2x2x2 has 8 nodes, not 7");
        assert!(matches!(fails("router", 70_000), TopologyError::TooWide { .. }));
    }

    #[test]
    fn cube_of_two_has_twelve_links() {
        for text in ["mesh:2x2x2", "torus:2x2x2"] {
            assert_eq!(Topology::shaped(text).unwrap().links().count(), 12, "{text}");
        }
        assert_eq!(Topology::shaped("mesh:4x4x4").unwrap().links().count(), 3 * 48);
        assert_eq!(Topology::shaped("torus:4x4x4").unwrap().links().count(), 3 * 64);
        assert_eq!(Topology::Router { nodes: 6 }.links().count(), 6);
        assert_eq!(Topology::AllToAll { nodes: 6 }.links().count(), 15);
    }

    #[test]
    fn link_ends_agree() {
        for topology in [
            Topology::Mesh { x: 3, y: 4, z: 2 },
            Topology::Torus { x: 3, y: 2, z: 5 },
            Topology::Torus { x: 1, y: 1, z: 1 },
            Topology::Router { nodes: 7 },
            Topology::AllToAll { nodes: 7 },
        ] {
            for at in (0..topology.switches()).map(Position) {
                for port in (0..=topology.ports(at)).map(SwitchPort) {
                    let Some((there, entry)) = topology.neighbour(at, port) else { continue };
                    assert_ne!(there, at);
                    assert_eq!(topology.neighbour(there, entry), Some((at, port)), "{topology}");
                    assert_eq!(topology.port_to(at, there), Some(port), "{topology}");
                }
                if let Some(coordinates) = topology.coordinates(at) {
                    assert_eq!(topology.at(coordinates), Some(at));
                }
            }
        }
    }
}
