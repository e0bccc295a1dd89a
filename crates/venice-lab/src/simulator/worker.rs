//! One measurement, in a process of its own: its memory is that of one world.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use venice_experiment::{Simulation, World};
use venice_measure::resident;
use venice_sim::network::Datagram;
use venice_sim::rack::{self, Options, Tap};
use venice_simkernel::queue::Queue;
use venice_simkernel::random::Stream;
use venice_warehouse::config::Config;
use venice_warehouse::warehouse::Warehouse;

use super::case::{self, QueueKind, Workload};
use crate::cpu_time;

/// Bytes of a flit: 128 bits, as wide as the links of common networks on chips.
pub(super) const FLIT_BYTES: usize = 16;
/// Events of a microsecond in the queue alone, as in a warehouse of 2 000 nodes.
const EVENTS_PER_US: u64 = 50;
const PS_PER_US: u64 = 1_000_000;

/// One measurement (started by `venice bench sim`).
#[derive(Debug, Clone, Args)]
pub struct WorkerArgs {
    /// The workload, as JSON.
    #[arg(long, value_name = "JSON")]
    pub workload: String,

    /// Threads.
    #[arg(long, value_name = "N")]
    pub threads: usize,

    /// File for the figures.
    #[arg(long, value_name = "FILE")]
    pub json: PathBuf,
}

/// Figures of one run. Set-up is in `setup_s` and in the memory alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// Simulated nodes.
    pub nodes: u32,
    /// Events handled.
    pub events: u64,
    /// Switches that packets have passed, summed over all packets; in a mesh, links that frames have.
    pub packet_hops: u64,
    /// The same in flits of 16 bytes, of a mesh.
    pub flit_hops: u64,
    /// Requests answered, blocks received, accesses done.
    pub requests: u64,
    /// Requests not answered.
    pub failed: u64,
    /// Time to build the world.
    pub setup_s: f64,
    /// Time of the run by the wall clock.
    pub wall_s: f64,
    /// Processor time of the run, all threads together.
    pub cpu_s: f64,
    /// Virtual time of the run.
    pub virtual_s: f64,
    /// Peak of the resident memory.
    pub resident_bytes: u64,
    /// Payload received in virtual time, of incast.
    pub goodput_mbps: Option<f64>,
    /// Hash over all events.
    pub trace_hash: Option<String>,
}

/// Measures and writes the figures.
///
/// # Errors
/// If the workload cannot run, or the figures cannot be written.
pub fn execute_worker(args: WorkerArgs) -> Result<()> {
    let workload: Workload = serde_json::from_str(&args.workload).context("--workload")?;
    let mut measured = match workload {
        Workload::Memcached { transport, nodes, requests } => {
            warehouse(&case::memcached(transport, nodes, requests)?, args.threads)?
        }
        Workload::Incast { iterations } => {
            let mut measured = warehouse(&case::incast(iterations)?, args.threads)?;
            measured.requests *= u64::from(case::INCAST_SERVERS);
            measured
        }
        Workload::Mesh { accesses } => mesh(accesses)?,
        Workload::Queue { queue: QueueKind::Wheels, pending, events } => {
            hold(&mut Queue::default(), pending, events)
        }
        Workload::Queue { queue: QueueKind::BinaryHeap, pending, events } => {
            hold(&mut BinaryHeap::new(), pending, events)
        }
    };
    measured.nodes = workload.nodes();
    measured.resident_bytes = resident::peak_resident_bytes(std::process::id()).unwrap_or(0);
    venice_measure::report::write_json(&args.json, &measured)
}

/// Clocks at the beginning of a run.
struct Clocks {
    built_s: f64,
    cpu_s: f64,
    start: Instant,
}

impl Clocks {
    /// Begins a run whose set-up began at `setup`.
    fn start(setup: Instant) -> Self {
        let built_s = setup.elapsed().as_secs_f64();
        Self { built_s, cpu_s: cpu_time::of_this_process_s(), start: Instant::now() }
    }

    fn stop(self) -> Measured {
        let wall_s = self.start.elapsed().as_secs_f64();
        let cpu_s = cpu_time::of_this_process_s() - self.cpu_s;
        Measured { setup_s: self.built_s, wall_s, cpu_s, ..Measured::default() }
    }
}

fn warehouse(config: &Config, threads: usize) -> Result<Measured> {
    let setup = Instant::now();
    let mut world = Warehouse::new(config, threads)?;
    let clocks = Clocks::start(setup);
    world.advance(u64::MAX);
    let measured = clocks.stop();
    if !world.is_over() {
        bail!("the simulated world did not come to its end");
    }
    let outcome = world.outcome();
    let count = |name| outcome.counts.get(name).copied().unwrap_or(0);
    Ok(Measured {
        events: outcome.events,
        packet_hops: count("packet_hops"),
        requests: count("done"),
        failed: count("failed"),
        virtual_s: outcome.virtual_ps as f64 / 1e12,
        goodput_mbps: outcome.value("goodput").map(|(value, _)| value),
        trace_hash: Some(format!("{:016x}", outcome.trace_hash)),
        ..measured
    })
}

/// Counts the flits of all frames.
#[derive(Default)]
struct Flits(u64);

impl Tap for Flits {
    fn frame(&mut self, _: u64, datagram: &Datagram, _: Option<&str>) {
        self.0 += datagram.bytes.len().div_ceil(FLIT_BYTES) as u64;
    }
}

fn mesh(accesses: u32) -> Result<Measured> {
    let scenario = case::mesh(accesses);
    let mut flits = Flits::default();
    let clocks = Clocks::start(Instant::now());
    let report = rack::run(&scenario, Options { tap: Some(&mut flits), ..Options::default() })?;
    let measured = clocks.stop();
    if let Some(violation) = report.violations.first() {
        bail!("a checker of the simulated mesh complained: {violation:?}");
    }
    Ok(Measured {
        events: report.events,
        packet_hops: report.frames.delivered,
        flit_hops: flits.0,
        requests: report.succeeded(),
        failed: report.failed + report.refused,
        virtual_s: report.virtual_ns as f64 / 1e9,
        trace_hash: Some(report.trace_hash),
        ..measured
    })
}

/// A queue of future events.
trait Future {
    fn insert(&mut self, at: u64, rank: u64);
    fn next(&mut self) -> Option<u64>;
}

impl Future for Queue<u64> {
    fn insert(&mut self, at: u64, rank: u64) {
        self.push(at, rank, rank);
    }

    fn next(&mut self) -> Option<u64> {
        self.pop().map(|(at, _)| at)
    }
}

impl Future for BinaryHeap<Reverse<(u64, u64, u64)>> {
    fn insert(&mut self, at: u64, rank: u64) {
        self.push(Reverse((at, rank, rank)));
    }

    fn next(&mut self) -> Option<u64> {
        self.pop().map(|Reverse((at, ..))| at)
    }
}

/// Lets `events` come, each of which makes another after a time at random.
fn hold(queue: &mut impl Future, pending: u32, events: u32) -> Measured {
    let setup = Instant::now();
    let mut random = Stream::new(1);
    // The mean of the gaps keeps the density, however many wait.
    let most_gap = 2 * u64::from(pending) * PS_PER_US / EVENTS_PER_US;
    let mut rank = 0;
    let mut insert_after = |queue: &mut _, now: u64| {
        rank += 1;
        Future::insert(queue, now + random.below(most_gap), rank);
    };
    (0..pending).for_each(|_| insert_after(queue, 0));
    let mut now = 0;
    // One turn over all that wait brings the queue to its steady state.
    for _ in 0..pending {
        now = queue.next().unwrap_or(now);
        insert_after(queue, now);
    }
    let (clocks, from) = (Clocks::start(setup), now);
    for _ in 0..events {
        now = queue.next().unwrap_or(now);
        insert_after(queue, now);
    }
    let virtual_s = (now - from) as f64 / 1e12;
    Measured { events: events.into(), virtual_s, ..clocks.stop() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_queues_hold_the_same_events() {
        let wheels = hold(&mut Queue::default(), 100, 1000);
        let heap = hold(&mut BinaryHeap::new(), 100, 1000);
        assert_eq!((wheels.events, wheels.virtual_s), (heap.events, heap.virtual_s));
        assert!(wheels.virtual_s > 0.0);
    }

    #[test]
    fn mesh_has_flits() {
        let measured = mesh(2).unwrap();
        assert_eq!(measured.failed, 0);
        assert!(measured.flit_hops > measured.packet_hops && measured.requests >= 128);
    }

    #[test]
    fn threads_give_one_trace() {
        let config = case::memcached(case::Transport::Tcp, 62, 2).unwrap();
        let [one, two] = [1, 2].map(|threads| warehouse(&config, threads).unwrap());
        assert_eq!((one.requests, one.failed), (116, 0));
        assert_eq!((&one.trace_hash, one.packet_hops), (&two.trace_hash, two.packet_hops));
        assert!(one.trace_hash.is_some());
    }
}
