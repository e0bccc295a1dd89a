//! Arguments of `venice sim rack`, and the scenario they make.

use std::num::NonZeroU64;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use venice_sim::rack::Sabotage;
use venice_sim::scenario::{Bounds, Fault, FaultKind, MAX_NODES, Scenario, Topology};
use venice_simkernel::units::{Nanos, Share};

use super::usage;

/// `venice sim rack`
#[derive(Args, Debug)]
pub struct RackArgs {
    /// Nodes of the rack [default: 8, or as drawn with --random]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=MAX_NODES as i64))]
    nodes: Option<u16>,
    /// Topology: all-to-all, router, mesh:XxYxZ, torus:XxYxZ
    #[arg(long, value_name = "SHAPE")]
    topology: Option<String>,
    /// Compute each packet's whole route at its source (relaying topologies only)
    #[arg(long)]
    source_routes: bool,
    /// Seed of all random numbers [default: 0, or the scenario's]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Run this many seeds, one after the other
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
    /// Draw nodes, links, work and faults from the seed; other flags keep precedence
    #[arg(long, conflicts_with = "scenario")]
    random: bool,
    /// Run this scenario (TOML); other flags change it
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Accesses of each node
    #[arg(long, value_name = "N")]
    accesses: Option<u32>,
    /// Duration in virtual seconds; sets the number of accesses
    #[arg(long, value_name = "SECONDS", conflicts_with = "accesses")]
    seconds: Option<f64>,
    /// Latency of every link, for example 1.4us
    #[arg(long, value_name = "TIME")]
    latency: Option<Nanos>,
    /// Bandwidth of every link, for example 5Gbps
    #[arg(long, value_name = "RATE", value_parser = bandwidth)]
    bandwidth: Option<NonZeroU64>,
    /// Share of frames lost
    #[arg(long, value_name = "SHARE")]
    loss: Option<Share>,
    /// Share of frames duplicated
    #[arg(long, value_name = "SHARE")]
    duplicate: Option<Share>,
    /// Share of frames with a flipped bit
    #[arg(long, value_name = "SHARE")]
    corrupt: Option<Share>,
    /// Share of frames delayed by up to --jitter
    #[arg(long, value_name = "SHARE")]
    reorder: Option<Share>,
    /// Largest delay of a reordered frame
    #[arg(long, value_name = "TIME")]
    jitter: Option<Nanos>,
    /// Share of frames that repeat an old frame
    #[arg(long, value_name = "SHARE")]
    stale: Option<Share>,
    /// Cut the link between two nodes at a time, for a duration: A-B@FROM+FOR
    #[arg(long, value_name = "A-B@FROM+FOR", value_parser = cut)]
    cut: Vec<Fault>,
    /// Cut a node off from all others
    #[arg(long, value_name = "NODE@FROM+FOR", value_parser = isolate)]
    isolate: Vec<Fault>,
    /// Let a node lose all its state, and restart after a duration
    #[arg(long, value_name = "NODE@FROM+FOR", value_parser = crash)]
    crash: Vec<Fault>,
    /// Stop a node as SIGSTOP does, for a duration
    #[arg(long, value_name = "NODE@FROM+FOR", value_parser = freeze)]
    freeze: Vec<Fault>,
    /// Let a donor end all its grants, and lend nothing for a duration
    #[arg(long, value_name = "NODE@FROM+FOR", value_parser = revoke)]
    revoke: Vec<Fault>,
    /// Write the frames on the links to this file (pcapng, for Wireshark)
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    pub pcap: Option<PathBuf>,
    /// Capture only the link between these two nodes
    #[arg(long, value_name = "A-B", requires = "pcap", value_parser = link)]
    pub link: Option<(u16, u16)>,
    /// Write the scenario to this file; if it fails, the smallest one that still fails
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Continue after a seed that fails
    #[arg(long, requires = "seeds")]
    pub keep_going: bool,
    /// Inject a bug to test the checkers: drop-write, flip-bit, repeat-write, ...
    #[arg(long, value_name = "WHAT")]
    pub sabotage: Option<Sabotage>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

impl RackArgs {
    /// Returns the scenario to run first.
    pub fn scenario(&self) -> anyhow::Result<Scenario> {
        self.scenario_of(self.seed.unwrap_or(0))
    }

    /// Returns the scenario of a seed.
    pub fn scenario_of(&self, seed: u64) -> anyhow::Result<Scenario> {
        let mut scenario = match &self.scenario {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read {}", path.display()))
                    .map_err(|error| usage(format!("{error:#}")))?;
                Scenario::from_toml(&text)
                    .map_err(|error| usage(format!("{}: {error}", path.display())))?
            }
            None if self.random => {
                let mut bounds = Bounds::default();
                if let Some(nodes) = self.nodes {
                    (bounds.min_nodes, bounds.max_nodes) = (nodes, nodes);
                }
                Scenario::random(seed, &bounds)
            }
            None => Scenario::default(),
        };
        if self.scenario.is_none() || self.seed.is_some() || self.seeds > 1 {
            scenario.seed = seed;
        }
        self.apply(&mut scenario)?;
        scenario.check().map_err(usage)?;
        if let Some((a, b)) = self.link {
            let switches = scenario.wiring().map_err(usage)?.switches();
            if a == b || u32::from(a.max(b)) >= switches {
                let last = switches - 1;
                return Err(usage(format!("--link {a}-{b}: expected two nodes of 0 to {last}")));
            }
        }
        Ok(scenario)
    }

    fn apply(&self, scenario: &mut Scenario) -> anyhow::Result<()> {
        if let Some(nodes) = self.nodes {
            scenario.nodes = nodes;
            scenario.workload.donors = scenario.workload.donors.min(nodes - 1);
        }
        if let Some(topology) = &self.topology {
            scenario.topology.clone_from(topology);
            if let (None, Ok(shape)) = (self.nodes, Topology::shaped(topology)) {
                scenario.nodes = u16::try_from(shape.nodes()).map_err(|_| {
                    usage(format!(
                        "{topology} has {} nodes: expected {MAX_NODES} or fewer",
                        shape.nodes()
                    ))
                })?;
                scenario.workload.donors = scenario.workload.donors.min(scenario.nodes - 1);
            }
        } else if self.nodes.is_some() && scenario.wiring().is_err() {
            scenario.topology = "all-to-all".into();
        }
        if self.source_routes {
            let has_relays = scenario.wiring().is_ok_and(|topology| topology.has_relays());
            // A network with switches draws its topology first.
            if !has_relays && !self.random {
                return Err(usage(
                    "--source-routes needs a --topology whose nodes relay, for example mesh:4",
                ));
            }
            scenario.protocol.source_routes = has_relays;
        }
        if let Some(accesses) = self.accesses {
            scenario.workload.accesses = accesses;
        }
        if let Some(seconds) = self.seconds {
            scenario.workload.accesses = accesses_in(seconds, scenario.workload.think)?;
        }
        if let Some(latency) = self.latency {
            scenario.link.latency_ns = latency.0;
        }
        if let Some(bandwidth) = self.bandwidth {
            scenario.link.bandwidth_bps = Some(bandwidth);
        }
        let impairment = &mut scenario.impairment;
        for (share, given) in [
            (&mut impairment.loss, self.loss),
            (&mut impairment.duplicate, self.duplicate),
            (&mut impairment.corrupt, self.corrupt),
            (&mut impairment.reorder, self.reorder),
            (&mut impairment.stale, self.stale),
        ] {
            *share = given.unwrap_or(*share);
        }
        match (self.jitter, self.reorder) {
            (Some(jitter), _) => impairment.jitter = jitter,
            // The default delay is a few round trips.
            (None, Some(_)) if impairment.jitter.0 == 0 => {
                impairment.jitter = Nanos(10 * scenario.link.latency_ns);
            }
            _ => {}
        }
        for faults in [&self.cut, &self.isolate, &self.crash, &self.freeze, &self.revoke] {
            scenario.faults.extend_from_slice(faults);
        }
        Ok(())
    }
}

fn accesses_in(seconds: f64, think: Nanos) -> anyhow::Result<u32> {
    let accesses = seconds * 1e9 / think.0.max(1) as f64;
    if !(1.0..=1e8).contains(&accesses) {
        let each = think.to_string();
        return Err(usage(format!(
            "--seconds {seconds}: at one access each {each} that makes {accesses:.0} accesses of \
             each node; 1 to 100000000 can be run"
        )));
    }
    Ok(accesses as u32)
}

fn bandwidth(text: &str) -> Result<NonZeroU64, String> {
    venice_fabric::parse_bandwidth(text).map_err(|error| error.to_string())
}

fn link(text: &str) -> Result<(u16, u16), String> {
    let ends = text.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    ends.ok_or_else(|| "write two nodes, for example 0-1".to_string())
}

fn cut(text: &str) -> Result<Fault, String> {
    fault(text, |from, to| Some(FaultKind::Cut { from, to: to?, both: true }))
}

fn isolate(text: &str) -> Result<Fault, String> {
    fault(text, |node, to| to.is_none().then_some(FaultKind::Isolate { node }))
}

fn crash(text: &str) -> Result<Fault, String> {
    let kind = |node| FaultKind::Crash { node, same_keys: false };
    fault(text, |node, to| to.is_none().then_some(kind(node)))
}

fn freeze(text: &str) -> Result<Fault, String> {
    fault(text, |node, to| to.is_none().then_some(FaultKind::Freeze { node }))
}

fn revoke(text: &str) -> Result<Fault, String> {
    fault(text, |node, to| to.is_none().then_some(FaultKind::Revoke { node, abrupt: false }))
}

fn fault(
    text: &str,
    kind: impl Fn(u16, Option<u16>) -> Option<FaultKind>,
) -> Result<Fault, String> {
    Scenario::fault_at(text, kind).map_err(|error| error.to_string())
}
