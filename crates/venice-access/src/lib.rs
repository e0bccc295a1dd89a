//! A world of experiments: a program on a recipient whose memory is partly on a donor, after sections
//! 4.1 and 4.2 of the Venice paper (HPCA 2016).
//!
//! Function and timing are apart. The demand of the program on memory is a recorded [`AccessTrace`] behind
//! a cache, the same in every configuration; [`Config`] says where lines are and what the way to them
//! costs. CRMA reads and writes and QPair messages go through the product's fabric; swap to commodity
//! interconnects is a cost model.

#![forbid(unsafe_code)]

mod cache;
mod config;
mod fabric;
mod machine;
mod record;
mod stream;
mod swap;
#[cfg(test)]
mod tests;
mod trace;

use std::path::Path;
use std::sync::Arc;

use venice_experiment::outcome::{Metric, NamedHistogram, Outcome};
use venice_experiment::{BadConfig, Simulation, World};
use venice_simkernel::units::Picos;

pub use self::cache::{CacheConfig, LINE_BYTES};
pub use self::config::{Channel, Config, Crma, Link, Memory, Processor, Program, Qpair, Swap};
pub use self::record::{BadRecording, FIRST_MARK, Recorder, RecorderConfig};
pub use self::trace::{Access, AccessTrace, BadTrace, Kind, LINES_OF_PAGE, PAGE_BYTES};
use crate::machine::{Counts, Machine};

/// The traces that come with Venice; `traces/record.sh` made them.
const TRACES: [(&str, &[u8]); 2] = [
    ("pagerank", include_bytes!("../traces/pagerank.trace")),
    ("berkeleydb", include_bytes!("../traces/berkeleydb.trace")),
];

/// A recipient at work on remote memory.
pub struct RemoteAccess {
    machine: Machine,
    /// The time of the same program with all memory local.
    local_time: u64,
}

impl Program {
    /// Reads its trace.
    ///
    /// # Errors
    /// If there is none, or it is damaged.
    pub fn load(&self) -> Result<AccessTrace, BadConfig> {
        let bad = |why: String| BadConfig::new("program.trace", format!("{}: {why}", self.trace));
        let shipped = TRACES.iter().find(|(name, _)| *name == self.trace);
        let read;
        let file = match shipped {
            Some((_, file)) => *file,
            None => {
                let names = TRACES.map(|(name, _)| name).join(", ");
                read = std::fs::read(Path::new(&self.trace)).map_err(|error| {
                    bad(format!("{error}: write a file's path, or one of {names}"))
                })?;
                &read
            }
        };
        AccessTrace::decode(file).map_err(|error| bad(error.to_string()))
    }
}

/// Checks a configuration, and that its cache can stand behind the filter of its trace.
fn load(config: &Config) -> Result<Arc<AccessTrace>, BadConfig> {
    config.check()?;
    let trace = config.program.load()?;
    if config.processor.cache.bytes < trace.filter.bytes {
        let why = format!(
            "{}: the accesses of {} were recorded behind a cache of {}: set at least that",
            config.processor.cache.bytes, config.program.trace, trace.filter.bytes
        );
        return Err(BadConfig::new("processor.cache.bytes", why));
    }
    Ok(Arc::new(trace))
}

impl World for RemoteAccess {
    const NAME: &'static str = "remote-access";
    const EXPERIMENTS: &'static [(&'static str, &'static str)] = &[
        ("venice-rack", include_str!("../experiments/venice-rack.toml")),
        ("venice-commodity", include_str!("../experiments/venice-commodity.toml")),
    ];

    type Config = Config;

    fn check(config: &Config) -> Result<(), BadConfig> {
        load(config).map(drop)
    }

    fn new(config: &Config, _threads: usize) -> Result<Self, BadConfig> {
        let trace = load(config)?;
        let local = Config { channel: Channel::Local, ..config.clone() };
        let mut local = Machine::new(&local, trace.clone());
        local.run_until(u64::MAX);
        Ok(Self { machine: Machine::new(config, trace), local_time: local.program_time() })
    }
}

impl Simulation for RemoteAccess {
    fn advance(&mut self, until_ps: u64) {
        self.machine.run_until(until_ps);
    }

    fn now(&self) -> u64 {
        self.machine.now()
    }

    fn is_over(&self) -> bool {
        self.machine.is_over()
    }

    fn events(&self) -> u64 {
        self.machine.events()
    }

    fn progress(&self) -> Option<(u64, u64)> {
        let (done, all) = self.machine.misses().progress();
        Some((done as u64, all as u64))
    }

    fn outcome(&self) -> Outcome {
        let machine = &self.machine;
        let milliseconds = |ps: u64| Picos(ps).as_secs() * 1000.0;
        let time = machine.program_time();
        let Counts { local_fills, remote_fills, remote_writes, pages_in, pages_out, wrong_reads } =
            machine.counts();
        let (frames, wire_bytes) = machine.traffic();
        let share = 100.0 * remote_fills as f64 / ((local_fills + remote_fills) as f64).max(1.0);
        let counts = [
            ("accesses", machine.misses().progress().0 as u64),
            ("cache_hits", machine.misses().hits()),
            ("fills.local", local_fills),
            ("fills.remote", remote_fills),
            ("writes.remote", remote_writes),
            ("pages.in", pages_in),
            ("pages.out", pages_out),
            ("frames", frames),
            ("wire_bytes", wire_bytes),
            ("wrong_reads", wrong_reads),
        ];
        Outcome {
            metrics: vec![
                Metric::new("slowdown", time as f64 / (self.local_time as f64).max(1.0), "x"),
                Metric::new("time", milliseconds(time), "ms"),
                Metric::new("local_time", milliseconds(self.local_time), "ms"),
                Metric::new("remote_share", share, "%"),
            ],
            histograms: vec![NamedHistogram::new("latency", "us", 1000.0, machine.latencies())],
            counts: counts.map(|(name, count)| (name.to_owned(), count)).into(),
            events: machine.events(),
            virtual_ps: machine.now(),
            trace_hash: machine.trace_hash(),
            ..Outcome::default()
        }
    }
}
