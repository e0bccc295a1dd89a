//! A warehouse that experiments run.

mod queues;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use venice_experiment::outcome::{CauseRow, Outcome};
use venice_experiment::{BadConfig, BadState, Simulation, World};
use venice_simkernel::engine::Engine;
use venice_simkernel::pcapng;
use venice_simkernel::random::Stream;

use crate::application::sum;
use crate::capture::{BadLink, Capture, Captured, LinkEnd};
use crate::config::Config;
use crate::depths::Depths;
use crate::host::config::BadValue;
use crate::journey::Stage;
use crate::part::{Event, Shared, WarehousePart, places};
use crate::records::{Drop, Records};
use crate::switch::Switch;
use crate::topology::{Partition, Topology};

/// Lists experiments of the folder `experiments` by their names.
macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../experiments/", $name, ".toml")))),*]
    };
}

/// A warehouse in virtual time.
pub struct Warehouse {
    config: Config,
    shared: Arc<Shared>,
    /// The link that is captured.
    link: String,
    engine: Engine<WarehousePart>,
}

impl From<BadValue> for BadConfig {
    fn from(bad: BadValue) -> Self {
        BadConfig::new(bad.key, format!("{}: must be {}", bad.value, bad.bound))
    }
}

impl Warehouse {
    /// Builds what all parts have in common, and which part each node is in.
    fn plan(config: &Config, threads: usize) -> Result<(Topology, Partition), BadConfig> {
        config.check()?;
        let topology = Topology::build(&config.topology)
            .map_err(|bad| BadConfig::new(format!("topology.{}", bad.key), bad.problem))?;
        config.application.build().fits(&topology)?;
        let partition = topology.partition(threads.clamp(1, usize::from(u16::MAX)) as u16);
        Ok((topology, partition))
    }

    /// Builds all hosts and switches.
    fn build(config: &Config, threads: usize) -> Result<Self, BadConfig> {
        let (topology, partition) = Self::plan(config, threads)?;
        let shared = Arc::new(Shared::new(config, topology, &partition));
        let Partition { parts: count, part_of, look_ahead } = partition;
        let mut parts: Vec<_> = (0..count).map(|_| WarehousePart::new(shared.clone())).collect();
        let root = Stream::new(config.seed);
        let (topology, application) = (&shared.topology, config.application.build());
        let hosts = topology.hosts();
        for host in 0..hosts {
            let random = root.split("host", &[host.into()]);
            let setup = application.build(host, topology, config.server.cores, random);
            parts[usize::from(part_of[host as usize])].add_host(setup.build());
        }
        for number in 0..topology.switches().len() as u32 {
            let part = part_of[(hosts + number) as usize];
            let switch = Switch::new(topology.switch_config(number), &topology.rates(number));
            let depths = (config.heatmap.0 > 0).then(|| Depths::new(config.heatmap.0));
            parts[usize::from(part)].add_switch(switch, depths);
        }
        let first = (0..hosts).map(|host| (host, 0, Event::Start));
        let engine = Engine::new(parts, part_of, look_ahead, first);
        Ok(Self { config: config.clone(), shared, link: String::new(), engine })
    }

    /// Divides a world that has run in the parts of `saved` into those of `wanted`.
    fn divide(
        engine: Engine<WarehousePart>,
        shared: &Arc<Shared>,
        saved: &Partition,
        wanted: Partition,
    ) -> Engine<WarehousePart> {
        let Partition { parts: count, part_of, look_ahead } = wanted;
        let records = Records::divide(engine.parts().map(WarehousePart::records), count.into());
        let parts = (0..count).map(|_| WarehousePart::new(shared.clone())).collect();
        let (places, _) = places(&shared.topology, saved);
        let hosts = shared.topology.hosts();
        let mut engine = engine.divide(parts, part_of, look_ahead, |node, from, to| {
            to.carry(node < hosts, places[node as usize], from);
        });
        engine.parts_mut().zip(records).for_each(|(part, records)| part.set_records(records));
        engine
    }

    /// Returns the sum of what all parts have measured.
    pub fn records(&self) -> Records {
        let mut records = Records::default();
        self.engine.parts().for_each(|part| records.merge(part.records()));
        records
    }

    /// Returns the number of requests that are followed.
    pub fn followed(&self) -> u64 {
        self.engine.parts().map(|part| part.followed() as u64).sum()
    }

    /// Returns the number of packets on their way.
    pub fn in_flight(&self) -> u64 {
        self.engine.parts().map(|part| part.in_flight() as u64).sum()
    }
}

impl World for Warehouse {
    const NAME: &'static str = "warehouse";
    const EXPERIMENTS: &'static [(&'static str, &'static str)] =
        shipped!["incast-1g", "incast-10g", "memcached-tail"];

    type Config = Config;

    fn check(config: &Config) -> Result<(), BadConfig> {
        Self::plan(config, 1).map(|_| ())
    }

    fn new(config: &Config, threads: usize) -> Result<Self, BadConfig> {
        Self::build(config, threads)
    }

    fn restore(config: &Config, threads: usize, state: &[u8]) -> Result<Self, BadState> {
        let bad = |error: &dyn std::fmt::Display| BadState(error.to_string());
        let (link, mut engine): (String, Engine<WarehousePart>) =
            rmp_serde::from_slice(state).map_err(|error| bad(&error))?;
        let (topology, wanted) = Self::plan(config, threads).map_err(|error| bad(&error))?;
        let saved = topology.partition(engine.parts().count().min(usize::from(u16::MAX)) as u16);
        let (_, nodes) = places(&topology, &saved);
        let is_whole = engine.part_of() == saved.part_of
            && engine.parts().map(WarehousePart::nodes).eq(nodes)
            && engine.parts().all(|part| part.measures(config.heatmap.0 > 0));
        if !is_whole {
            return Err(BadState("hosts and switches are not those of the configuration".into()));
        }
        let shared = Arc::new(Shared::new(config, topology, &wanted));
        if saved == wanted {
            engine.parts_mut().for_each(|part| part.attach(shared.clone()));
        } else {
            engine = Self::divide(engine, &shared, &saved, wanted);
        }
        Ok(Self { config: config.clone(), shared, link, engine })
    }
}

impl Simulation for Warehouse {
    fn capture(&mut self, link: &str) -> Result<(), BadConfig> {
        let bad = |why: &str| BadConfig::new("link", why.to_owned());
        let end: LinkEnd = link.parse().map_err(|error: BadLink| bad(&error.to_string()))?;
        let peer = end.peer(&self.shared.topology);
        let peer = peer.ok_or_else(|| bad(&format!("'{link}': the topology has no such link")))?;
        self.link = link.to_owned();
        for part in self.engine.parts_mut() {
            part.capture(Capture::new([end, peer]));
        }
        Ok(())
    }

    fn captured(&self) -> (Vec<u8>, usize) {
        let parts = self.engine.parts().map(|part| part.records().captured());
        let mut packets: Vec<&Captured> = parts.flatten().collect();
        packets.sort_by_key(|packet| packet.order());
        let blocks: Vec<u8> = packets.iter().flat_map(|packet| packet.block()).collect();
        ([pcapng::head(&self.link), blocks].concat(), packets.len())
    }

    fn advance(&mut self, until_ps: u64) {
        let end = match self.config.end.0 {
            0 => until_ps,
            end => until_ps.min(end),
        };
        self.engine.run_until(end);
    }

    fn now(&self) -> u64 {
        self.engine.now()
    }

    fn is_over(&self) -> bool {
        let end = self.config.end.0;
        self.engine.is_over() || end > 0 && self.engine.now() >= end
    }

    fn events(&self) -> u64 {
        self.engine.events()
    }

    fn progress(&self) -> Option<(u64, u64)> {
        let total = self.config.application.build().total(&self.shared.topology);
        let done: u64 = self.engine.parts().map(|part| part.records().sum(sum::DONE)).sum();
        Some((done, total))
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(rmp_serde::to_vec_named(&(&self.link, &self.engine)).expect("all of it is data"))
    }

    fn outcome(&self) -> Outcome {
        let records = self.records();
        let mut outcome = Outcome {
            events: self.engine.events(),
            virtual_ps: self.engine.last_event(),
            trace_hash: self.engine.trace(),
            ..Outcome::default()
        };
        let counts = [
            ("packets.made", records.made()),
            ("packets.delivered", records.delivered()),
            ("packets.in_flight", self.in_flight()),
            ("packet_hops", records.hops()),
            ("done", records.sum(sum::DONE)),
            ("failed", records.sum(sum::FAILED)),
        ];
        let drops = Drop::ALL.map(|cause| (cause.name(), records.dropped(cause)));
        let names = counts.iter().chain(&drops);
        outcome.counts = names.map(|(name, count)| ((*name).to_owned(), *count)).collect();
        outcome.causes = causes(&records);
        let end = self.engine.last_event();
        let switches = queues::switches(&self.engine, &self.shared);
        outcome.queues = queues::fullest(&switches, end);
        outcome.heatmaps = queues::heatmaps(&switches, self.config.heatmap.0, end);
        self.config.application.build().report(&records, &mut outcome);
        outcome
    }
}

/// Parts of all requests by rising latency, in percent.
const PARTS: [(f64, f64); 5] =
    [(0.0, 50.0), (50.0, 90.0), (90.0, 99.0), (99.0, 99.9), (99.9, 100.0)];

/// Returns the mean time of each stage, for each of the parts.
fn causes(records: &Records) -> Vec<CauseRow> {
    let row = |percent: (f64, f64)| {
        let cause = records.causes().between(percent.0 / 100.0, percent.1 / 100.0)?;
        let stages = Stage::ALL.iter().zip(cause.mean_ns);
        let stages = stages.map(|(stage, ns)| (stage.name().to_owned(), ns / 1000.0)).collect();
        Some(CauseRow { percent, count: cause.count, stages })
    };
    PARTS.into_iter().filter_map(row).collect()
}
