//! A warehouse that experiments run.

mod on_ranks;
mod queues;
mod state;
#[cfg(test)]
mod tests;
mod view;

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use venice_experiment::outcome::Outcome;
use venice_experiment::{BadConfig, BadState, Simulation, World};
use venice_simkernel::engine::{Engine, Node};
use venice_simkernel::random::Stream;
use venice_simkernel::ranks::Ranks;

use self::on_ranks::OnRanks;
use self::state::State;
use self::view::View;
use crate::application::sum;
use crate::capture::{BadLink, Capture, LinkEnd};
use crate::config::Config;
use crate::depths::Depths;
use crate::host::config::BadValue;
use crate::part::{Event, Shared, WarehousePart, places};
use crate::records::Records;
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
        let parts = parts(config, &shared, &partition, 0..partition.parts);
        let first = starts(&shared);
        let engine = Engine::new(parts, partition.part_of, partition.look_ahead, first);
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

    /// Makes the engine of a state, of the parts of numbers from `first` on.
    fn engine_of(
        config: &Config,
        topology: &Topology,
        saved: &Partition,
        first: u16,
        state: &State<&[u8]>,
    ) -> Result<Engine<WarehousePart>, BadState> {
        let (part_of, look_ahead) = (saved.part_of.clone(), saved.look_ahead);
        let engine = Engine::restore_parts(&state.parts, part_of, look_ahead, state.now);
        let engine = engine.map_err(|error| BadState(error.to_string()))?;
        let (_, nodes) = places(topology, saved);
        let nodes = nodes.get(usize::from(first)..).unwrap_or_default();
        let nodes = nodes.iter().take(state.parts.len());
        let is_whole = engine.parts().map(WarehousePart::nodes).eq(nodes.copied())
            && engine.parts().all(|part| part.measures(config.heatmap.0 > 0));
        match is_whole {
            true => Ok(engine),
            false => {
                let why = "hosts and switches are not those of the configuration";
                Err(BadState(why.to_owned()))
            }
        }
    }

    /// Returns the end of a run until a time.
    fn end_of(&self, until_ps: u64) -> u64 {
        match self.config.end.0 {
            0 => until_ps,
            end => until_ps.min(end),
        }
    }

    /// True if the run is over, once no event is left or its end has come.
    fn is_over_if(&self, no_event_is_left: bool) -> bool {
        let end = self.config.end.0;
        no_event_is_left || end > 0 && self.engine.now() >= end
    }

    /// Returns the requests or the like that its parts have done.
    fn done(&self) -> u64 {
        self.engine.parts().map(|part| part.records().sum(sum::DONE)).sum()
    }

    /// Returns how many there will be in the whole warehouse.
    fn total(&self) -> u64 {
        self.config.application.build().total(&self.shared.topology)
    }

    fn state_of<P>(&self, parts: Vec<P>) -> State<P> {
        State { link: self.link.clone(), now: self.engine.now(), parts }
    }

    fn view(&self) -> View<'_> {
        View {
            config: &self.config,
            shared: &self.shared,
            part_of: self.engine.part_of(),
            parts: self.engine.parts().collect(),
            events: self.engine.events(),
            trace: self.engine.trace(),
        }
    }

    /// Returns the sum of what all parts have measured.
    pub fn records(&self) -> Records {
        self.view().records()
    }

    /// Returns the number of requests that are followed.
    pub fn followed(&self) -> u64 {
        self.engine.parts().map(|part| part.followed() as u64).sum()
    }

    /// Returns the number of packets on their way.
    pub fn in_flight(&self) -> u64 {
        self.view().in_flight()
    }
}

/// Makes parts of a warehouse with their hosts and switches.
fn parts(
    config: &Config,
    shared: &Arc<Shared>,
    partition: &Partition,
    numbers: Range<u16>,
) -> Vec<WarehousePart> {
    let mut parts: Vec<_> = numbers.clone().map(|_| WarehousePart::new(shared.clone())).collect();
    let place_of = |node: u32| {
        let number = partition.part_of[node as usize];
        numbers.contains(&number).then(|| usize::from(number - numbers.start))
    };
    let root = Stream::new(config.seed);
    let (topology, application) = (&shared.topology, config.application.build());
    let hosts = topology.hosts();
    for host in 0..hosts {
        if let Some(place) = place_of(host) {
            let random = root.split("host", &[host.into()]);
            let setup = application.build(host, topology, config.server.cores, random);
            parts[place].add_host(setup.build());
        }
    }
    for number in 0..topology.switches().len() as u32 {
        if let Some(place) = place_of(hosts + number) {
            let switch = Switch::new(topology.switch_config(number), &topology.rates(number));
            let depths = (config.heatmap.0 > 0).then(|| Depths::new(config.heatmap.0));
            parts[place].add_switch(switch, depths);
        }
    }
    parts
}

/// Returns the first event of each host.
fn starts(shared: &Shared) -> impl Iterator<Item = (Node, u64, Event)> + use<> {
    (0..shared.topology.hosts()).map(|host| (host, 0, Event::Start))
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
        let state = State::read(state)?;
        let planned = Self::plan(config, threads);
        let (topology, wanted) = planned.map_err(|error| BadState(error.to_string()))?;
        let saved = topology.partition(state.parts.len().min(usize::from(u16::MAX)) as u16);
        let mut engine = Self::engine_of(config, &topology, &saved, 0, &state)?;
        let shared = Arc::new(Shared::new(config, topology, &wanted));
        if saved == wanted {
            engine.parts_mut().for_each(|part| part.attach(shared.clone()));
        } else {
            engine = Self::divide(engine, &shared, &saved, wanted);
        }
        Ok(Self { config: config.clone(), shared, link: state.link, engine })
    }

    fn check_ranks(config: &Config, count: usize) -> Result<(), BadConfig> {
        OnRanks::check(config, count)
    }

    fn deal(config: &Config, count: usize, state: &[u8]) -> Result<Vec<Vec<u8>>, BadState> {
        OnRanks::deal(config, count, state)
    }

    fn on_ranks(
        config: &Config,
        ranks: &Rc<dyn Ranks>,
        dealt: Option<&[u8]>,
    ) -> Result<Box<dyn Simulation>, BadState> {
        Ok(Box::new(OnRanks::new(config, ranks.clone(), dealt)?))
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
        self.view().captured(&self.link)
    }

    fn advance(&mut self, until_ps: u64) {
        self.engine.run_until(self.end_of(until_ps));
    }

    fn now(&self) -> u64 {
        self.engine.now()
    }

    fn is_over(&self) -> bool {
        self.is_over_if(self.engine.is_over())
    }

    fn events(&self) -> u64 {
        self.engine.events()
    }

    fn progress(&self) -> Option<(u64, u64)> {
        Some((self.done(), self.total()))
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(self.state_of(self.engine.save_parts()).to_bytes())
    }

    fn outcome(&self) -> Outcome {
        self.view().outcome()
    }
}
