//! A warehouse on several ranks, a part each.

use std::rc::Rc;
use std::sync::Arc;

use venice_experiment::outcome::Outcome;
use venice_experiment::{BadConfig, BadState, Simulation, World};
use venice_simkernel::engine::Engine;
use venice_simkernel::ranks::Ranks;

use super::{State, View, Warehouse, parts, starts};
use crate::config::Config;
use crate::part::{Shared, WarehousePart};

/// The part of one rank. All ranks call the same methods; rank 0 has the results.
pub(super) struct OnRanks {
    /// The part that this rank runs.
    pub(super) own: Warehouse,
    ranks: Rc<dyn Ranks>,
    /// The sums of all ranks, at rank 0.
    sums: Sums,
}

#[derive(Default)]
struct Sums {
    events: u64,
    done: u64,
    /// Ranks that have an event left.
    busy: u64,
}

impl OnRanks {
    pub(super) fn check(config: &Config, count: usize) -> Result<(), BadConfig> {
        let (topology, partition) = Warehouse::plan(config, count)?;
        let most = usize::from(topology.partition(u16::MAX).parts);
        if usize::from(partition.parts) == count {
            return Ok(());
        }
        let why = match most {
            1 => "it is one part, a rack or links without delay: run it without --ranks".to_owned(),
            most => format!("{count} ranks, and it has {most} parts: run it on 1 to {most}"),
        };
        Err(BadConfig::new("topology", why))
    }

    pub(super) fn deal(
        config: &Config,
        count: usize,
        bytes: &[u8],
    ) -> Result<Vec<Vec<u8>>, BadState> {
        let State { link, now, parts } = State::read(bytes)?;
        let of_rank = |part: &[u8]| State { link: link.clone(), now, parts: vec![part] }.to_bytes();
        if parts.len() == count {
            return Ok(parts.into_iter().map(of_rank).collect());
        }
        let divided = Warehouse::restore(config, count, bytes)?.engine.save_parts();
        Ok(divided.iter().map(|part| of_rank(part)).collect())
    }

    pub(super) fn new(
        config: &Config,
        ranks: Rc<dyn Ranks>,
        dealt: Option<&[u8]>,
    ) -> Result<Self, BadState> {
        let planned = Warehouse::plan(config, ranks.count());
        let (topology, partition) = planned.map_err(|error| BadState(error.to_string()))?;
        let number = ranks.number() as u16;
        let shared = Arc::new(Shared::new(config, topology, &partition));
        let (link, engine) = match dealt {
            None => {
                let part = parts(config, &shared, &partition, number..number + 1).remove(0);
                let (part_of, look_ahead) = (partition.part_of, partition.look_ahead);
                let first = starts(&shared);
                (String::new(), Engine::of_rank(number, part, part_of, look_ahead, first))
            }
            Some(dealt) => {
                let state = State::read(dealt)?;
                let (topology, saved) = (&shared.topology, &partition);
                let mut engine = Warehouse::engine_of(config, topology, saved, number, &state)?;
                engine.parts_mut().for_each(|part| part.attach(shared.clone()));
                (state.link, engine)
            }
        };
        let own = Warehouse { config: config.clone(), shared, link, engine };
        let mut this = Self { own, ranks, sums: Sums::default() };
        this.add_up();
        Ok(this)
    }

    /// Returns the numbers of all ranks, at rank 0.
    fn gather<const N: usize>(&self, own: [u64; N]) -> Vec<[u64; N]> {
        let all = self.ranks.gather(own.map(u64::to_le_bytes).concat());
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let numbers = |bytes: Vec<u8>| {
            let mut numbers = bytes.chunks(size_of::<u64>()).map(number);
            [(); N].map(|()| numbers.next().expect("a rank of this program"))
        };
        all.into_iter().map(numbers).collect()
    }

    fn add_up(&mut self) {
        let (engine, done) = (&self.own.engine, self.own.done());
        let all = self.gather([engine.events(), done, u64::from(!engine.is_over())]);
        self.sums = all.into_iter().fold(Sums::default(), |sums, [events, done, busy]| Sums {
            events: sums.events + events,
            done: sums.done + done,
            busy: sums.busy + busy,
        });
    }

    /// Returns what `of` makes of all parts at rank 0, elsewhere the default.
    fn seen<R: Default>(&self, of: impl FnOnce(View<'_>) -> R) -> R {
        let engine = &self.own.engine;
        let own = engine.parts().next().expect("a rank has a part");
        let parts = self.ranks.gather(own.without_hosts());
        let traces = self.gather([engine.trace()]);
        if self.ranks.number() > 0 {
            return R::default();
        }
        let part = |bytes: Vec<u8>| rmp_serde::from_slice(&bytes).expect("a rank of this program");
        let parts: Vec<WarehousePart> = parts.into_iter().map(part).collect();
        of(View {
            parts: parts.iter().collect(),
            events: self.sums.events,
            trace: traces.iter().fold(0, |sum, [trace]| sum.wrapping_add(*trace)),
            ..self.own.view()
        })
    }
}

impl Simulation for OnRanks {
    fn capture(&mut self, link: &str) -> Result<(), BadConfig> {
        self.own.capture(link)
    }

    fn captured(&self) -> (Vec<u8>, usize) {
        self.seen(|all| all.captured(&self.own.link))
    }

    fn advance(&mut self, until_ps: u64) {
        let end = self.own.end_of(until_ps);
        self.own.engine.run_on(end, &*self.ranks);
        self.add_up();
    }

    fn now(&self) -> u64 {
        self.own.now()
    }

    fn is_over(&self) -> bool {
        self.own.is_over_if(self.sums.busy == 0)
    }

    fn events(&self) -> u64 {
        self.sums.events
    }

    fn progress(&self) -> Option<(u64, u64)> {
        Some((self.sums.done, self.own.total()))
    }

    fn save(&self) -> Option<Vec<u8>> {
        let parts = self.ranks.gather(self.own.engine.save_parts().remove(0));
        Some(self.own.state_of(parts).to_bytes())
    }

    fn outcome(&self) -> Outcome {
        self.seen(|all| all.outcome())
    }
}
