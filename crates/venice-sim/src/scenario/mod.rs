//! Scenarios as data: the rack, its links, the programs' workload and the faults.
//!
//! A scenario is a TOML file or is drawn from a seed ([`Scenario::random`]). It has no settings
//! that only the simulator has.

mod access;
mod draw;
mod fault;
pub(crate) mod text;

use serde::{Deserialize, Serialize};

pub use self::access::{Access, Kind};
pub use self::draw::Bounds;
pub use self::fault::{Fault, FaultKind};
pub use venice_fabric::{LinkModel, Topology};
use venice_simkernel::units::{Nanos, Share};

/// Largest number of nodes of a simulated rack.
pub const MAX_NODES: u16 = 1024;

/// One run of a rack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// Seed of all random numbers of the run.
    #[serde(with = "seed_text")]
    pub seed: u64,
    /// Nodes of the rack; each lends and borrows.
    pub nodes: u16,
    /// Topology: `all-to-all`, `router`, `mesh:2x2x2`, `torus:4x4`.
    pub topology: String,
    /// Model of every link, in each direction.
    pub link: LinkModel,
    /// Bytes that may queue for a wire; more are lost.
    pub queue_bytes: u32,
    /// Permanent impairment of every link.
    pub impairment: Impairment,
    /// Settings of the fabric.
    pub protocol: Protocol,
    /// Workload of the programs.
    pub workload: Workload,
    /// Faults.
    #[serde(rename = "fault")]
    pub faults: Vec<Fault>,
}

/// Impairment of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Impairment {
    /// Share of frames lost.
    pub loss: Share,
    /// Share of frames duplicated.
    pub duplicate: Share,
    /// Share of frames with a flipped bit.
    pub corrupt: Share,
    /// Share of frames delayed, and so reordered, by up to [`Impairment::jitter`].
    pub reorder: Share,
    /// Largest such delay.
    pub jitter: Nanos,
    /// Share of frames that repeat an old frame of the same link, from any time before.
    pub stale: Share,
}

/// Settings of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Protocol {
    /// Outstanding frames in each direction of a link.
    pub window: u16,
    /// Largest delay of an acknowledgement.
    pub ack_delay: Nanos,
    /// Shortest replay time-out.
    pub replay_min: Nanos,
    /// Longest replay time-out.
    pub replay_max: Nanos,
    /// Time without frames before a ping.
    pub keepalive: Nanos,
    /// Time without frames before a link is down.
    pub silence: Nanos,
    /// Single accesses a node may have outstanding.
    pub crma_depth: u16,
    /// Packets that each virtual channel of a switch's port can buffer.
    pub hop_packets: u16,
    /// True if packets get their whole route at the source.
    pub source_routes: bool,
}

/// Workload of the program on every node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// Accesses of each node.
    pub accesses: u32,
    /// Largest number of outstanding accesses of a node.
    pub depth: u16,
    /// Number of donors of each node.
    pub donors: u16,
    /// Bytes borrowed from each.
    pub region_bytes: u32,
    /// Words of eight bytes behind each region, for atomics.
    pub counters: u16,
    /// Longest single access.
    pub max_access_bytes: u16,
    /// Longest bulk transfer.
    pub max_bulk_bytes: u32,
    /// Mean time between two accesses of a node; 0 is without pause.
    pub think: Nanos,
    /// Weights of the kinds of access.
    pub mix: Mix,
}

/// Weights of the kinds of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mix {
    /// Single reads.
    pub read: u32,
    /// Single writes.
    pub write: u32,
    /// Bulk reads.
    pub bulk_read: u32,
    /// Bulk writes.
    pub bulk_write: u32,
    /// Messages over QPairs.
    pub message: u32,
    /// Atomics that add.
    pub fetch_add: u32,
    /// Atomics that compare and swap.
    pub compare_swap: u32,
    /// Posted writes.
    pub post: u32,
    /// Fences behind posted writes.
    pub fence: u32,
    /// Windows given back and requested again.
    pub unmap: u32,
    /// Byte streams over QPairs of their own.
    pub stream: u32,
}

/// An invalid scenario, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadScenario(pub String);

impl Scenario {
    /// Parses a scenario from TOML.
    ///
    /// # Errors
    /// With the mistake in the text.
    pub fn from_toml(text: &str) -> Result<Self, BadScenario> {
        text::from_toml(text, Self::check)
    }

    /// Writes the scenario as TOML, which [`Scenario::from_toml`] reads back.
    pub fn to_toml(&self) -> String {
        text::to_toml(self)
    }

    /// Checks the scenario.
    ///
    /// # Errors
    /// With the first invalid value.
    pub fn check(&self) -> Result<(), BadScenario> {
        let bad = |why: String| Err(BadScenario(why));
        if !(2..=MAX_NODES).contains(&self.nodes) {
            return bad(format!("a rack has 2 to {MAX_NODES} nodes, not {}", self.nodes));
        }
        self.wiring()?;
        let Workload { donors, region_bytes, max_access_bytes, .. } = self.workload;
        if donors == 0 || donors >= self.nodes {
            let most = self.nodes - 1;
            return bad(format!("each node borrows from 1 to {most} others, not from {donors}"));
        }
        if !(64..=16 << 20).contains(&region_bytes) {
            return bad(format!("a region is 64 bytes to 16 MiB, not {region_bytes} bytes"));
        }
        if !(1..=4096).contains(&max_access_bytes) {
            return bad(format!("a single access is 1 to 4096 bytes, not {max_access_bytes}"));
        }
        if self.workload.depth == 0 {
            return bad("a node must be allowed at least one access at a time".into());
        }
        let mix = self.workload.mix;
        if mix.weights().iter().all(|&(_, weight)| weight == 0) {
            return bad("all weights of the mix are 0: at least one must be positive".into());
        }
        if mix.fetch_add + mix.compare_swap > 0 && self.workload.counters == 0 {
            return bad("atomics need counters above 0".into());
        }
        if mix.bulk_read + mix.bulk_write > 0 && self.workload.max_bulk_bytes == 0 {
            return bad("bulk transfers need max_bulk_bytes above 0".into());
        }
        if self.protocol.keepalive.0 == 0 || self.protocol.silence.0 == 0 {
            return bad("keepalive and silence must be longer than 0".into());
        }
        self.faults.iter().try_for_each(|fault| fault.check(self.nodes))
    }

    /// Parses the topology.
    ///
    /// # Errors
    /// When the topology is unknown, or of another size.
    pub fn wiring(&self) -> Result<Topology, BadScenario> {
        Topology::for_nodes(&self.topology, self.nodes.into())
            .map_err(|error| BadScenario(error.to_string()))
    }

    /// Parses a fault such as `3@1ms+20ms`: from 1 ms on for 20 ms, at node 3; `0-3@...` at the
    /// link between two.
    ///
    /// # Errors
    /// With the mistake in the text.
    pub fn fault_at(
        text: &str,
        kind: impl Fn(u16, Option<u16>) -> Option<FaultKind>,
    ) -> Result<Fault, BadScenario> {
        let parse = || {
            let (place, at, lasts) = text::place_and_times(text)?;
            let (first, second) = match place.split_once('-') {
                Some((first, second)) => (first, Some(second.parse().ok()?)),
                None => (place, None),
            };
            let kind = kind(first.parse().ok()?, second)?;
            Some(Fault { at, lasts, kind })
        };
        let example = "NODE@FROM+FOR, for example 3@1ms+20ms; for a cut A-B@FROM+FOR";
        parse().ok_or_else(|| text::no_fault(text, example))
    }

    /// True without faults of links or nodes.
    pub fn is_harmless(&self) -> bool {
        self.faults.is_empty() && self.impairment == Impairment::default()
    }

    /// Returns the largest delay of a frame.
    pub fn longest_jitter_ns(&self) -> u64 {
        let storm = |fault: &Fault| match fault.kind {
            FaultKind::Storm { impairment } => impairment.jitter.0,
            _ => 0,
        };
        let storms = self.faults.iter().map(storm).max().unwrap_or(0);
        storms.max(self.impairment.jitter.0)
    }

    /// Returns the end of the last fault.
    pub fn calm_ns(&self) -> u64 {
        self.faults.iter().map(Fault::end_ns).max().unwrap_or(0)
    }
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            seed: 0,
            nodes: 8,
            topology: "all-to-all".into(),
            link: LinkModel::PAPER,
            queue_bytes: 1 << 20,
            impairment: Impairment::default(),
            protocol: Protocol::default(),
            workload: Workload::default(),
            faults: Vec::new(),
        }
    }
}

impl Default for Protocol {
    fn default() -> Self {
        let link = venice_fabric::LinkConfig::default();
        Self {
            // Recorded seeds depend on this value.
            window: 64,
            ack_delay: Nanos(link.ack_delay_ns),
            replay_min: Nanos(link.replay_min_ns),
            replay_max: Nanos(link.replay_max_ns),
            keepalive: Nanos(link.keepalive_ns),
            silence: Nanos(link.silence_ns),
            crma_depth: 64,
            hop_packets: 32,
            source_routes: false,
        }
    }
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            accesses: 200,
            depth: 16,
            donors: 2,
            region_bytes: 16 << 10,
            counters: 4,
            max_access_bytes: 4096,
            max_bulk_bytes: 16 << 10,
            think: Nanos(20_000),
            mix: Mix::default(),
        }
    }
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            read: 4,
            write: 4,
            bulk_read: 1,
            bulk_write: 1,
            message: 2,
            fetch_add: 1,
            compare_swap: 1,
            post: 2,
            fence: 1,
            unmap: 0,
            stream: 0,
        }
    }
}

/// Seeds as numbers, or as text above 2⁶³, which TOML's numbers do not reach.
pub(crate) mod seed_text {
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Seed {
        Number(u64),
        Text(String),
    }

    pub(crate) fn serialize<S: Serializer>(seed: &u64, to: S) -> Result<S::Ok, S::Error> {
        match i64::try_from(*seed) {
            Ok(number) => to.serialize_i64(number),
            Err(_) => to.serialize_str(&seed.to_string()),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        match Seed::deserialize(from)? {
            Seed::Number(number) => Ok(number),
            Seed::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_round_trips() {
        for seed in 0..200 {
            let scenario = Scenario::random(seed, &Bounds::default());
            assert_eq!(Scenario::from_toml(&scenario.to_toml()), Ok(scenario));
        }
        let scenario = Scenario { seed: u64::MAX, ..Scenario::default() };
        assert_eq!(Scenario::from_toml(&scenario.to_toml()), Ok(scenario));
    }

    #[test]
    fn missing_fields_take_defaults() {
        let text = "seed = 7\n[impairment]\nloss = \"1%\"\n[[fault]]\nat = \"1ms\"\nfor = \"2ms\"\n\
                    kind = \"crash\"\nnode = 3\n";
        let scenario = Scenario::from_toml(text).unwrap();
        assert_eq!(scenario.link, LinkModel::PAPER);
        assert_eq!(scenario.impairment.loss, Share(10_000));
        assert_eq!(scenario.calm_ns(), 3_000_000);
    }

    #[test]
    fn invalid_scenarios_are_refused() {
        for text in [
            "nodes = 1",
            "nodes = 4\n[workload]\ndonors = 4",
            "[workload]\nmax_access_bytes = 5000",
            "[workload.mix]\nread = 0\nwrite = 0\nbulk_read = 0\nbulk_write = 0\nmessage = 0\n\
             fetch_add = 0\ncompare_swap = 0\npost = 0\nfence = 0",
            "link = \"latency=soon\"",
            "[impairment]\nspeed = 7",
            "[[fault]]\nat = \"1ms\"\nfor = \"1ms\"\nkind = \"crash\"\nnode = 8",
            "[[fault]]\nat = \"1ms\"\nfor = \"1ms\"\nkind = \"cut\"\nfrom = 1\nto = 1",
        ] {
            assert!(Scenario::from_toml(text).is_err(), "{text}");
        }
    }
}
