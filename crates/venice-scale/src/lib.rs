//! A world of experiments: a whole rack of 2 to 50 000 nodes, after sections 5.3 and 7.1 of the Venice
//! paper (HPCA 2016), which leaves the Monitor Node under load, far resources and crossing paths as
//! future work.
//!
//! The Monitor Node, the agents' membership and their donors are the product's own state machines
//! (`venice-rack`). The programs that borrow, the processor and the store of the Monitor Node, and the
//! links between the nodes are models ([`Config`]).

#![forbid(unsafe_code)]

mod agent;
mod config;
#[cfg(test)]
mod costs;
mod fabric;
mod messages;
mod monitor;
mod rack;
mod reads;
mod recipient;
mod records;
#[cfg(test)]
mod tests;

use venice_experiment::outcome::{Metric, NamedHistogram, Outcome};
use venice_experiment::{BadConfig, Simulation, World};
use venice_simkernel::units::Picos;

pub use self::config::{
    Config, Cost, Deaths, Donors, Fabric, Hosts, Monitor, Reads, Recipients, Shape,
};
use crate::rack::Rack;

/// A rack at work.
pub struct RackScale {
    config: Config,
    rack: Rack,
}

impl World for RackScale {
    const NAME: &'static str = "rack";
    const EXPERIMENTS: &'static [(&'static str, &'static str)] = &[
        ("rack-scale", include_str!("../experiments/rack-scale.toml")),
        ("rack-paths", include_str!("../experiments/rack-paths.toml")),
        ("rack-distance", include_str!("../experiments/rack-distance.toml")),
    ];

    type Config = Config;

    fn check(config: &Config) -> Result<(), BadConfig> {
        config.check()
    }

    /// It has one part: more threads than one do nothing.
    fn new(config: &Config, _threads: usize) -> Result<Self, BadConfig> {
        config.check()?;
        Ok(Self { config: config.clone(), rack: Rack::new(config) })
    }
}

impl Simulation for RackScale {
    fn advance(&mut self, until_ps: u64) {
        self.rack.run_until(until_ps);
    }

    fn now(&self) -> u64 {
        self.rack.now()
    }

    fn is_over(&self) -> bool {
        self.rack.is_over()
    }

    fn events(&self) -> u64 {
        self.rack.events()
    }

    /// Virtual microseconds.
    fn progress(&self) -> Option<(u64, u64)> {
        Some((self.rack.now() / Picos::MICRO, self.config.end() / Picos::MICRO))
    }

    fn outcome(&self) -> Outcome {
        let (rack, records, load) = (&self.rack, self.rack.records(), self.rack.load());
        let milli = 1e6;
        let histograms = [
            ("allocation", "ms", milli, &records.allocation),
            ("release", "ms", milli, &records.release),
            ("heartbeat", "ms", milli, &records.heartbeat),
            ("stay", "ms", milli, &load.stays),
            ("revocation", "s", 1e9, &records.revocation),
            ("read", "us", 1e3, &records.read),
        ];
        let histograms = histograms.map(|(name, unit, per_unit, histogram)| {
            NamedHistogram::new(name, unit, per_unit, histogram)
        });
        Outcome {
            metrics: self.metrics(),
            histograms: histograms.into(),
            counts: self.counts().map(|(name, count)| (name.to_owned(), count)).collect(),
            events: rack.events(),
            virtual_ps: rack.now(),
            trace_hash: rack.trace_hash(),
            ..Outcome::default()
        }
    }
}

impl RackScale {
    fn metrics(&self) -> Vec<Metric> {
        let (rack, records, load) = (&self.rack, self.rack.records(), self.rack.load());
        let recorded = rack.now().saturating_sub(self.config.warm_up.0).max(1) as f64;
        let percent = |time: u64| 100.0 * time as f64 / recorded;
        let (distance, farthest) = records.distance();
        let (busiest, mean) = rack.read_load();
        let idle = if records.idle == 0 { 1.0 } else { records.idle as f64 };
        vec![
            Metric::new("utilization", percent(load.busy), "%"),
            Metric::new("writing", percent(load.writing), "%"),
            Metric::new("distance", distance, "hops"),
            Metric::new("farthest", f64::from(farthest), "hops"),
            Metric::new("diameter", f64::from(rack.fabric().topology().diameter()), "hops"),
            Metric::new("slowdown", records.taken as f64 / idle, "x"),
            Metric::new("link_busiest", 100.0 * busiest, "%"),
            Metric::new("link_mean", 100.0 * mean, "%"),
            Metric::new("link_wait", Picos(rack.fabric().longest_wait).as_secs() * 1e6, "us"),
        ]
    }

    fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let (rack, records, load) = (&self.rack, self.rack.records(), self.rack.load());
        let refused: u64 = records.refused.values().sum();
        let counts = [
            ("requests", records.asked),
            ("granted", records.granted),
            ("refused", refused),
            ("refused.no_room", records.refused.get("no-room").copied().unwrap_or(0)),
            ("abandoned", records.abandoned),
            ("waiting", rack.asking()),
            ("lost", records.lost),
            ("messages", load.messages),
            ("queue", load.longest as u64),
            ("writes", load.writes),
            ("deaths", records.deaths),
            ("noticed", records.noticed),
            ("mistaken", records.mistaken),
            ("reads", records.reads),
            ("reads_done", records.reads_done),
            ("packets", rack.fabric().sent),
            ("packets_queued", rack.fabric().waited),
        ];
        counts.into_iter()
    }
}
