//! Everything that can be set. The comments name the source of each default; `chosen` marks those for
//! which there is none.

use serde::{Deserialize, Serialize};
use venice_experiment::BadConfig;
use venice_fabric::topology::{MAX_RADIX, Topology};
use venice_rack::placement::Policy;
use venice_simkernel::units::{BitRate, Bytes, Picos, Share};

/// The configuration of a rack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Config {
    /// Seed of all random draws.
    pub seed: u64,
    /// Nodes.
    pub nodes: u32,
    /// Virtual time before anything is recorded. Requests begin in it.
    pub warm_up: Picos,
    /// Virtual time that is recorded.
    pub duration: Picos,
    /// The network between the nodes.
    pub fabric: Fabric,
    /// The Monitor Node.
    pub monitor: Monitor,
    /// The programs on the nodes that take part in the control plane.
    pub hosts: Hosts,
    /// Programs that borrow.
    pub recipients: Recipients,
    /// Accesses to borrowed memory.
    pub reads: Reads,
    /// Nodes that die.
    pub deaths: Deaths,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 1,
            nodes: 100,
            warm_up: Picos(3 * Picos::SECOND),
            duration: Picos(7 * Picos::SECOND),
            fabric: Fabric::default(),
            monitor: Monitor::default(),
            hosts: Hosts::default(),
            recipients: Recipients::default(),
            reads: Reads::default(),
            deaths: Deaths::default(),
        }
    }
}

/// The shape of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Every node is linked to the next in each direction.
    Mesh,
    /// A mesh whose ends are joined.
    Torus,
    /// Every node is linked to one external router; all donors are equally far.
    Router,
}

/// The network between the nodes, after section 5.1.1 of the Venice paper: a switch at each node, links
/// between neighbours. Packets wait at each link in the order of their arrival, without bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Fabric {
    /// Its shape. Venice paper, table 1: a 3D mesh.
    pub shape: Shape,
    /// Directions of a mesh or torus, 1 to 3. The same.
    pub dimensions: u32,
    /// Rate of each direction of a link. Venice paper, table 1: 5 Gb/s.
    pub rate: BitRate,
    /// From the last bit sent to its arrival at the next node, both interfaces included: a packet is
    /// received whole, checked, and sent on. Venice paper, table 1: 1.4 µs point to point.
    pub latency: Picos,
}

impl Default for Fabric {
    fn default() -> Self {
        Self {
            shape: Shape::Mesh,
            dimensions: 3,
            rate: BitRate(5_000_000_000),
            latency: Picos(1400 * Picos::NANO),
        }
    }
}

impl Fabric {
    /// Returns the topology of so many nodes: of a mesh or torus the one with the shortest sides.
    pub fn topology(&self, nodes: u32) -> Topology {
        let [x, y, z] = sides(nodes, self.dimensions);
        match self.shape {
            Shape::Mesh => Topology::Mesh { x, y, z },
            Shape::Torus => Topology::Torus { x, y, z },
            Shape::Router => Topology::Router { nodes },
        }
    }
}

/// Returns the sides of the box of exactly so many nodes whose sum is least, the longest first.
fn sides(nodes: u32, dimensions: u32) -> [u32; 3] {
    let divisors = |of: u32| (1..=of).filter(move |side| of.is_multiple_of(*side));
    let mut best = [nodes, 1, 1];
    if dimensions < 2 {
        return best;
    }
    for x in divisors(nodes) {
        let rest = nodes / x;
        for y in divisors(rest).filter(|y| dimensions == 3 || rest == *y) {
            let mut sides = [x, y, rest / y];
            sides.sort_unstable_by(|one, other| other.cmp(one));
            if sides.iter().sum::<u32>() < best.iter().sum() {
                best = sides;
            }
        }
    }
    best
}

/// The Monitor Node: its settings as `venice monitor` has them, its processor, and its store. It runs on
/// the node in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Monitor {
    /// Time between two heartbeats of an agent. `venice monitor`: 1 s.
    pub heartbeat_interval: Picos,
    /// Heartbeats in a row that a node may miss before it is down. `venice monitor`: 3.
    pub missed_heartbeats: u32,
    /// Lease of a grant. `venice monitor`: 10 s.
    pub lease: Picos,
    /// Time for one answer of a donor. `venice monitor`: 2 s.
    pub donor_timeout: Picos,
    /// Results of calls to donors that are handled before their changes are written. `venice monitor`:
    /// 64.
    pub results_at_once: u32,
    /// Order of donors. `venice monitor`: nearest.
    pub placement: Policy,
    /// Time of its processor.
    pub cost: Cost,
    /// Time of a durable write, without its processor. docs/results/control-plane.md: 0.2 to 0.5 ms
    /// after a rest.
    pub write: Picos,
}

impl Default for Monitor {
    fn default() -> Self {
        Self {
            heartbeat_interval: Picos(Picos::SECOND),
            missed_heartbeats: 3,
            lease: Picos(10 * Picos::SECOND),
            donor_timeout: Picos(2 * Picos::SECOND),
            results_at_once: 64,
            placement: Policy::Nearest,
            cost: Cost::default(),
            write: Picos(300 * Picos::MICRO),
        }
    }
}

/// Time of the Monitor Node's one processor. The logic's own was measured by the test `logic_costs`,
/// release build, other builds running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Cost {
    /// To receive a call and answer it, or to call and receive the answer: TLS, HTTP/2, gRPC.
    /// docs/results/control-plane.md: 35 to 40 µs a heartbeat, logic included.
    pub call: Picos,
    /// The logic for a report, its links included. Measured.
    pub report: Picos,
    /// The logic for each node of a list that the answer to a report carries. Measured.
    pub listed: Picos,
    /// The logic for a request or a release. Measured.
    pub request: Picos,
    /// The logic for a request, more for each node of the rack. Measured.
    pub request_node: Picos,
    /// The logic for the result of a call to a donor. Measured.
    pub result: Picos,
    /// The regular look for silent nodes, for each node. Measured.
    pub look_node: Picos,
    /// To make a write: what is left of the 0.2 ms that a grant takes in all
    /// (docs/results/control-plane.md), which has two.
    pub write: Picos,
}

impl Default for Cost {
    fn default() -> Self {
        Self {
            call: Picos(33 * Picos::MICRO),
            report: Picos(4 * Picos::MICRO),
            listed: Picos(180 * Picos::NANO),
            request: Picos(15 * Picos::MICRO),
            request_node: Picos(140 * Picos::NANO),
            result: Picos(6 * Picos::MICRO),
            look_node: Picos(80 * Picos::NANO),
            write: Picos(50 * Picos::MICRO),
        }
    }
}

/// The nodes as members of the control plane. Each lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Hosts {
    /// Memory that each lends, in slabs of 16 MiB: 64 are the 1 GiB of the paper's nodes (table 1), and
    /// those of `venice bench monitor`.
    pub slabs: u32,
    /// Time of a message in the stacks and schedulers of both its ends, besides the fabric and the
    /// Monitor Node's processor. Chosen so that ten nodes have the medians of
    /// docs/results/control-plane.md: 0.67 ms until the donor hears, 1.34 until memory is granted.
    pub message: Picos,
    /// Bytes of a message. Chosen: a heartbeat with TLS and HTTP/2.
    pub message_bytes: Bytes,
    /// More bytes for each node in the list of an answer. Chosen.
    pub listed_bytes: Bytes,
    /// Time to wipe a slab. Chosen: 16 MiB at 10 GB/s.
    pub wipe: Picos,
    /// Time for which slabs stay set aside. `venice agent`: 10 s.
    pub prepare_timeout: Picos,
}

impl Default for Hosts {
    fn default() -> Self {
        Self {
            slabs: 64,
            message: Picos(300 * Picos::MICRO),
            message_bytes: Bytes(512),
            listed_bytes: Bytes(48),
            wipe: Picos(1700 * Picos::MICRO),
            prepare_timeout: Picos(10 * Picos::SECOND),
        }
    }
}

/// Programs that borrow: one at a time on each recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Recipients {
    /// The share of the nodes that borrow, spread evenly. Chosen.
    pub share: Share,
    /// Mean time between the requests of a recipient: it holds memory and rests after that, each for
    /// exponential times. Chosen.
    pub every: Picos,
    /// Mean time for which it holds memory. Chosen.
    pub hold: Picos,
    /// The time within which all have made their first request; 0: the mean time between two.
    pub first: Picos,
    /// Slabs that it asks for. Chosen: 256 MiB.
    pub slabs: u32,
    /// Time between two renewals. `venice run`: a quarter of the lease, at most 1 s.
    pub renew: Picos,
}

impl Default for Recipients {
    fn default() -> Self {
        Self {
            share: Share(500_000),
            every: Picos(20 * Picos::SECOND),
            hold: Picos(10 * Picos::SECOND),
            first: Picos(0),
            slabs: 16,
            renew: Picos(Picos::SECOND),
        }
    }
}

/// The donors that reads go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Donors {
    /// The Monitor Node's choice, in turn.
    #[default]
    Granted,
    /// One of all nodes for each grant, drawn at random.
    Random,
    /// One for each grant, as far away as `reads.hops` says, drawn at random.
    Distant,
}

/// Reads of lines of borrowed memory (CRMA), by every node that holds a grant when they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Reads {
    /// Mean time between two reads of a node, exponential; 0: none.
    pub every: Picos,
    /// The time for which they begin, from the end of the warm-up on.
    pub during: Picos,
    /// The donors.
    pub donors: Donors,
    /// Distance of the donors, where they are `distant`.
    pub hops: u32,
    /// Bytes of a request on a link: a header. The product's frames: 64.
    pub request: Bytes,
    /// Bytes of an answer: a header and a line of 64 bytes.
    pub answer: Bytes,
    /// Time of the donor's memory. Chosen.
    pub memory: Picos,
}

impl Default for Reads {
    fn default() -> Self {
        Self {
            every: Picos(0),
            during: Picos(200 * Picos::MICRO),
            donors: Donors::Granted,
            hops: 1,
            request: Bytes(64),
            answer: Bytes(128),
            memory: Picos(100 * Picos::NANO),
        }
    }
}

/// Nodes whose programs die at once, without a word. Their switches go on: a mesh keeps its paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Deaths {
    /// Nodes that die, drawn at random.
    pub count: u32,
    /// The time of the first, from the end of the warm-up on.
    pub first: Picos,
    /// Time between two of them.
    pub every: Picos,
}

/// The most nodes.
const MOST_NODES: u32 = 50_000;
/// The longest time of a part of a message's or packet's way.
const LONGEST: Picos = Picos(Picos::SECOND);
/// The longest time of a setting, a cycle, or a run.
const LONGEST_RUN: Picos = Picos(3600 * Picos::SECOND);
const MOST_BYTES: Bytes = Bytes(1 << 20);

/// Requires a number to be within bounds.
fn bound<T: PartialOrd + std::fmt::Display>(
    key: &str,
    value: T,
    low: T,
    high: T,
) -> Result<(), BadConfig> {
    if (&low..=&high).contains(&&value) {
        return Ok(());
    }
    Err(BadConfig::new(key, format!("{value}: must be {low} to {high}")))
}

impl Config {
    /// Checks all bounds.
    ///
    /// # Errors
    /// With the key that is out of its bounds.
    pub fn check(&self) -> Result<(), BadConfig> {
        bound("nodes", self.nodes, 2, MOST_NODES.min(MAX_RADIX))?;
        bound("warm-up", self.warm_up, Picos(0), LONGEST_RUN)?;
        bound("duration", self.duration, Picos(Picos::MICRO), LONGEST_RUN)?;
        let Fabric { dimensions, rate, latency, .. } = self.fabric;
        bound("fabric.dimensions", dimensions, 1, 3)?;
        bound("fabric.rate", rate, BitRate(1_000_000), BitRate(1_000_000_000_000))?;
        bound("fabric.latency", latency, Picos(0), LONGEST)?;
        self.monitor.check()?;
        let Hosts { slabs, message, message_bytes, listed_bytes, wipe, prepare_timeout } =
            self.hosts;
        bound("hosts.slabs", slabs, 1, 1 << 20)?;
        bound("hosts.message", message, Picos(0), LONGEST)?;
        bound("hosts.message-bytes", message_bytes, Bytes(1), MOST_BYTES)?;
        bound("hosts.listed-bytes", listed_bytes, Bytes(0), Bytes(4096))?;
        bound("hosts.wipe", wipe, Picos(0), LONGEST)?;
        bound("hosts.prepare-timeout", prepare_timeout, Picos(Picos::MICRO), LONGEST_RUN)?;
        let Recipients { share: _, every, hold, first, slabs, renew } = self.recipients;
        bound("recipients.every", every, Picos(Picos::MICRO), LONGEST_RUN)?;
        bound("recipients.hold", hold, Picos(Picos::MICRO), every)?;
        bound("recipients.first", first, Picos(0), LONGEST_RUN)?;
        bound("recipients.slabs", slabs, 1, 1 << 20)?;
        bound("recipients.renew", renew, Picos(1000 * Picos::MICRO), self.monitor.lease)?;
        self.check_reads()?;
        bound("deaths.count", self.deaths.count, 0, self.nodes - 1)?;
        bound("deaths.first", self.deaths.first, Picos(0), LONGEST_RUN)?;
        bound("deaths.every", self.deaths.every, Picos(0), LONGEST_RUN)
    }

    fn check_reads(&self) -> Result<(), BadConfig> {
        let Reads { every, during, donors, hops, request, answer, memory } = self.reads;
        bound("reads.every", every, Picos(0), LONGEST_RUN)?;
        bound("reads.during", during, Picos(0), self.duration)?;
        bound("reads.request", request, Bytes(1), MOST_BYTES)?;
        bound("reads.answer", answer, Bytes(1), MOST_BYTES)?;
        bound("reads.memory", memory, Picos(0), LONGEST)?;
        let farthest = self.fabric.topology(self.nodes).diameter();
        match donors {
            Donors::Granted | Donors::Random => Ok(()),
            Donors::Distant => bound("reads.hops", hops, 1, farthest),
        }
    }

    /// Returns the time at which it ends, in picoseconds.
    pub fn end(&self) -> u64 {
        self.warm_up.0 + self.duration.0
    }
}

impl Monitor {
    fn check(&self) -> Result<(), BadConfig> {
        let Self { heartbeat_interval, missed_heartbeats, lease, donor_timeout, .. } = *self;
        let milli = Picos(1000 * Picos::MICRO);
        bound("monitor.heartbeat-interval", heartbeat_interval, milli, LONGEST_RUN)?;
        bound("monitor.missed-heartbeats", missed_heartbeats, 1, 1000)?;
        bound("monitor.lease", lease, milli, LONGEST_RUN)?;
        bound("monitor.donor-timeout", donor_timeout, milli, LONGEST_RUN)?;
        bound("monitor.results-at-once", self.results_at_once, 1, 1000)?;
        bound("monitor.write", self.write, Picos(0), LONGEST)?;
        let Cost { call, report, listed, request, request_node, result, look_node, write } =
            self.cost;
        for (key, cost) in [
            ("call", call),
            ("report", report),
            ("listed", listed),
            ("request", request),
            ("request-node", request_node),
            ("result", result),
            ("look-node", look_node),
            ("write", write),
        ] {
            bound(&format!("monitor.cost.{key}"), cost, Picos(0), LONGEST)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_compact() {
        for (nodes, dimensions, expected) in [
            (8, 3, [2, 2, 2]),
            (10, 3, [5, 2, 1]),
            (30, 3, [5, 3, 2]),
            (1000, 3, [10, 10, 10]),
            (10_000, 3, [25, 20, 20]),
            (100, 2, [10, 10, 1]),
            (100, 1, [100, 1, 1]),
            (7, 3, [7, 1, 1]),
        ] {
            assert_eq!(sides(nodes, dimensions), expected, "{nodes}");
        }
    }

    #[test]
    fn every_bound_names_its_key() {
        let error = |text: &str| {
            let config: Config = toml::from_str(text).unwrap();
            config.check().unwrap_err().to_string()
        };
        for (text, key) in [
            ("nodes = 1", "nodes"),
            ("duration = '0'", "duration"),
            ("fabric.dimensions = 4", "fabric.dimensions"),
            ("fabric.rate = '1bps'", "fabric.rate"),
            ("monitor.lease = '0'", "monitor.lease"),
            ("monitor.cost.call = '2s'", "monitor.cost.call"),
            ("monitor.cost.look-node = '2s'", "monitor.cost.look-node"),
            ("hosts.slabs = 0", "hosts.slabs"),
            ("hosts.message-bytes = '0'", "hosts.message-bytes"),
            ("recipients.hold = '30s'", "recipients.hold"),
            ("recipients.renew = '11s'", "recipients.renew"),
            ("reads = { donors = 'distant', hops = 100 }", "reads.hops"),
            ("reads.during = '8s'", "reads.during"),
            ("deaths.count = 100", "deaths.count"),
        ] {
            assert!(error(text).starts_with(&format!("{key}: ")), "{}", error(text));
        }
        assert_eq!(Config::default().check(), Ok(()));
    }
}
