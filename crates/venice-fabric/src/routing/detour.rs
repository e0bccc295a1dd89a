//! Routes around links that are known to be down.

use std::collections::VecDeque;

use venice_wire::{MAX_ROUTE_HOPS, SourceRoute, SwitchPort};

use super::VirtualChannel;
use crate::topology::{Position, Topology};

/// The known states of all links. A link counts as up if both of its ends report so; an end without
/// a report counts as up.
#[derive(Clone, Debug)]
pub struct LinkStates {
    /// By position and port: this end reports the link as down.
    down: Vec<bool>,
    /// Index of the first port of each position.
    first: Vec<usize>,
    down_ends: usize,
}

/// No route over links that are up exists between two nodes, or none that avoids the risk of
/// deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no route from position {} to position {}: links on every path are down", from.0, to.0)]
pub struct NoRoute {
    /// The start.
    pub from: Position,
    /// The destination.
    pub to: Position,
}

impl LinkStates {
    /// Returns the states with all links up.
    pub fn all_up(topology: &Topology) -> Self {
        let mut first = Vec::with_capacity(topology.switches() as usize + 1);
        first.push(0);
        for at in 0..topology.switches() {
            let ports = usize::from(topology.ports(Position(at)));
            first.push(first[at as usize] + ports);
        }
        let ends = *first.last().expect("it has a first entry");
        Self { down: vec![false; ends], first, down_ends: 0 }
    }

    /// Records the report of one end about its link; returns whether it changed. An end that does
    /// not exist changes nothing.
    pub fn set(&mut self, at: Position, port: SwitchPort, is_up: bool) -> bool {
        let Some(end) = self.end(at, port) else { return false };
        let changed = self.down[end] == is_up;
        self.down[end] = !is_up;
        match (changed, is_up) {
            (true, true) => self.down_ends -= 1,
            (true, false) => self.down_ends += 1,
            (false, _) => {}
        }
        changed
    }

    /// True if no link is known to be down.
    pub fn are_all_up(&self) -> bool {
        self.down_ends == 0
    }

    /// True if the link behind `port` of `at` is up by the report of both its ends.
    pub fn is_up(&self, topology: &Topology, at: Position, port: SwitchPort) -> bool {
        let here = self.end(at, port).is_some_and(|end| !self.down[end]);
        here && topology
            .neighbour(at, port)
            .is_some_and(|(to, entry)| self.end(to, entry).is_some_and(|end| !self.down[end]))
    }

    /// True if this end alone reports its link as up, or has made no report.
    pub(crate) fn says_up(&self, at: Position, port: SwitchPort) -> bool {
        self.end(at, port).is_some_and(|end| !self.down[end])
    }

    fn end(&self, at: Position, port: SwitchPort) -> Option<usize> {
        let start = *self.first.get(at.0 as usize)?;
        let end = start + usize::from(port.0);
        (end < *self.first.get(at.0 as usize + 1)?).then_some(end)
    }
}

/// A node of the search: a packet that came to a switch from a neighbour on a channel.
#[derive(Clone, Copy)]
struct Step {
    at: Position,
    came: Option<(Position, VirtualChannel)>,
    before: usize,
    port: SwitchPort,
    hops: usize,
}

impl Topology {
    /// True if the route in dimension order uses only links that are up.
    pub fn is_direct_route_up(&self, from: Position, to: Position, links: &LinkStates) -> bool {
        let mut at = from;
        links.are_all_up()
            || std::iter::from_fn(|| {
                let hop = self.next_hop(at, to)?;
                let is_up = links.is_up(self, at, hop.port);
                at = self.neighbour(at, hop.port).expect("a route follows links").0;
                Some(is_up)
            })
            .all(|is_up| is_up)
    }

    /// Returns the shortest source route from `from` to `to` over links that are up, among those
    /// that every switch on it accepts ([`Topology::detour_channel`]). It searches the whole
    /// network and allocates: use it when something is down, not for every packet.
    ///
    /// # Errors
    /// [`NoRoute`] if there is none, or none short enough.
    pub fn route_around(
        &self,
        from: Position,
        to: Position,
        links: &LinkStates,
    ) -> Result<SourceRoute, NoRoute> {
        let none = NoRoute { from, to };
        if from.0.max(to.0) >= self.switches() {
            return Err(none);
        }
        // The channel of the next hop depends on the neighbour and the channel by which a packet
        // came: these, not the switch alone, form a node of the search.
        let mut seen = std::collections::BTreeSet::new();
        let mut steps =
            vec![Step { at: from, came: None, before: 0, port: SwitchPort(0), hops: 0 }];
        let mut queue = VecDeque::from([0]);
        while let Some(index) = queue.pop_front() {
            let step = steps[index];
            if step.at == to {
                return trace(&steps, index).ok_or(none);
            }
            if step.hops == MAX_ROUTE_HOPS {
                continue;
            }
            for port in (0..self.ports(step.at)).map(SwitchPort) {
                let Some((next, _)) = self.neighbour(step.at, port) else { continue };
                if !links.is_up(self, step.at, port) {
                    continue;
                }
                let Some(channel) = self.detour_channel(step.came, step.at, next) else { continue };
                if seen.insert((next, self.ascends(step.at, next), channel)) {
                    queue.push_back(steps.len());
                    let came = Some((step.at, channel));
                    steps.push(Step { at: next, came, before: index, port, hops: step.hops + 1 });
                }
            }
        }
        Err(none)
    }
}

/// Returns the ports from the start of the search to the step at `index`.
fn trace(steps: &[Step], mut index: usize) -> Option<SourceRoute> {
    let mut ports = Vec::new();
    while index != 0 {
        ports.push(steps[index].port);
        index = steps[index].before;
    }
    ports.reverse();
    SourceRoute::new(&ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes down every link of one switch, as its neighbours would report it.
    fn without(topology: &Topology, dead: Position) -> LinkStates {
        let mut links = LinkStates::all_up(topology);
        for port in (0..topology.ports(dead)).map(SwitchPort) {
            if let Some((at, entry)) = topology.neighbour(dead, port) {
                assert!(links.set(at, entry, false) && !links.set(at, entry, false));
            }
        }
        links
    }

    fn walk(topology: &Topology, from: Position, route: &SourceRoute) -> Vec<Position> {
        let mut at = from;
        let follow = |port: &SwitchPort| {
            at = topology.neighbour(at, *port).expect("routes follow links").0;
            at
        };
        route.ports().iter().map(follow).collect()
    }

    /// True if any path at all exists.
    fn reachable(topology: &Topology, from: Position, to: Position, links: &LinkStates) -> bool {
        let mut seen = std::collections::BTreeSet::from([from]);
        let mut queue = VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            for port in (0..topology.ports(at)).map(SwitchPort) {
                let next = topology.neighbour(at, port).filter(|_| links.is_up(topology, at, port));
                if let Some((next, _)) = next
                    && seen.insert(next)
                {
                    queue.push_back(next);
                }
            }
        }
        seen.contains(&to)
    }

    #[test]
    fn route_avoids_dead_switch() {
        for text in [
            "mesh:2x2x2",
            "mesh:3x3",
            "mesh:4x3",
            "mesh:3x3x2",
            "torus:3x3",
            "torus:5x4",
            "mesh:5",
            "torus:6",
        ] {
            let topology = Topology::shaped(text).unwrap();
            let all = || (0..topology.nodes()).map(Position);
            for dead in all() {
                let links = without(&topology, dead);
                for (from, to) in all().flat_map(|from| all().map(move |to| (from, to))) {
                    if from == dead || to == dead {
                        continue;
                    }
                    let route = topology.route_around(from, to, &links);
                    assert_eq!(
                        route.is_ok(),
                        reachable(&topology, from, to, &links),
                        "{text}: {from:?} to {to:?} without {dead:?}"
                    );
                    let Ok(route) = route else { continue };
                    let passed = walk(&topology, from, &route);
                    assert!(!passed.contains(&dead));
                    assert_eq!(passed.last().copied().unwrap_or(from), to);
                }
            }
        }
    }

    #[test]
    fn detour_is_shortest_with_links_up() {
        let topology = Topology::Mesh { x: 3, y: 3, z: 3 };
        let links = LinkStates::all_up(&topology);
        for (from, to) in (0..27).flat_map(|from| (0..27).map(move |to| (from, to))) {
            let (from, to) = (Position(from), Position(to));
            let route = topology.route_around(from, to, &links).unwrap();
            assert_eq!(route.ports().len() as u32, topology.hops(from, to));
            assert!(topology.is_direct_route_up(from, to, &links));
        }
    }

    #[test]
    fn detours_in_all_to_all_and_star() {
        let topology = Topology::AllToAll { nodes: 4 };
        let mut links = LinkStates::all_up(&topology);
        links.set(Position(1), SwitchPort(2), false);
        assert!(!topology.is_direct_route_up(Position(2), Position(1), &links));
        let route = topology.route_around(Position(2), Position(1), &links).unwrap();
        assert_eq!(route.ports().len(), 2);

        let topology = Topology::Router { nodes: 4 };
        let mut links = LinkStates::all_up(&topology);
        links.set(Position(4), SwitchPort(3), false);
        let error = topology.route_around(Position(0), Position(3), &links).unwrap_err();
        assert_eq!(error, NoRoute { from: Position(0), to: Position(3) });
        assert!(topology.route_around(Position(0), Position(2), &links).is_ok());
    }
}
