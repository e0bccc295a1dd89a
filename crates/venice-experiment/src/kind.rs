//! Kinds of worlds as data.

use std::rc::Rc;

use toml::Table;
use venice_simkernel::ranks::Ranks;

use crate::{BadState, Experiment, ExperimentError, Filter, Point, Simulation, World, keys};

/// A simulation, or why there is none.
type Started<E> = Result<Box<dyn Simulation>, E>;

/// The share of each rank of a saved state.
type Dealt = Result<Vec<Vec<u8>>, BadState>;

/// A function as [`World::on_ranks`].
type OnRanks = fn(&Table, &Rc<dyn Ranks>, Option<&[u8]>) -> Started<BadState>;

/// A kind of world, for those who choose it by name.
#[derive(Clone, Copy, Debug)]
pub struct WorldKind {
    /// Its name in experiments: the value of their key `world`.
    pub name: &'static str,
    /// Names and texts of the experiments that come with it.
    pub experiments: &'static [(&'static str, &'static str)],
    points: fn(&Experiment, &Filter) -> Result<Vec<Point>, ExperimentError>,
    whole_config: fn(&Experiment) -> Result<Table, ExperimentError>,
    start: fn(&Table, usize) -> Started<ExperimentError>,
    restore: fn(&Table, usize, &[u8]) -> Started<BadState>,
    check_ranks: fn(&Table, usize) -> Result<(), ExperimentError>,
    deal: fn(&Table, usize, &[u8]) -> Dealt,
    on_ranks: OnRanks,
}

impl WorldKind {
    /// Returns the kind of `W`.
    pub const fn of<W: World>() -> Self {
        Self {
            name: W::NAME,
            experiments: W::EXPERIMENTS,
            points: Experiment::points::<W>,
            whole_config: Experiment::whole_config::<W>,
            start: start::<W>,
            restore: restore::<W>,
            check_ranks: check_ranks::<W>,
            deal: deal::<W>,
            on_ranks: on_ranks::<W>,
        }
    }

    /// Returns the points of an experiment, as [`Experiment::points`].
    ///
    /// # Errors
    /// If a configuration has an unknown key, or the world cannot run it.
    pub fn points(
        &self,
        experiment: &Experiment,
        chosen: &Filter,
    ) -> Result<Vec<Point>, ExperimentError> {
        (self.points)(experiment, chosen)
    }

    /// Returns the configuration of an experiment without its sweeps, with every key.
    ///
    /// # Errors
    /// If it has an unknown key.
    pub fn whole_config(&self, experiment: &Experiment) -> Result<Table, ExperimentError> {
        (self.whole_config)(experiment)
    }

    /// Begins the simulation of a point, as [`World::new`].
    ///
    /// # Errors
    /// With the key that cannot be run.
    pub fn start(&self, point: &Point, threads: usize) -> Started<ExperimentError> {
        (self.start)(&point.config, threads)
    }

    /// Goes on with the simulation of a point, as [`World::restore`].
    ///
    /// # Errors
    /// If `state` is no state of such a simulation.
    pub fn restore(&self, point: &Point, threads: usize, state: &[u8]) -> Started<BadState> {
        (self.restore)(&point.config, threads, state)
    }

    /// Checks that a point can run on so many ranks, as [`World::check_ranks`].
    ///
    /// # Errors
    /// With the key that cannot be run.
    pub fn check_ranks(&self, point: &Point, count: usize) -> Result<(), ExperimentError> {
        (self.check_ranks)(&point.config, count)
    }

    pub(crate) fn deal(&self, config: &Table, count: usize, state: &[u8]) -> Dealt {
        (self.deal)(config, count, state)
    }

    pub(crate) fn on_ranks(
        &self,
        config: &Table,
        ranks: &Rc<dyn Ranks>,
        dealt: Option<&[u8]>,
    ) -> Started<BadState> {
        (self.on_ranks)(config, ranks, dealt)
    }
}

fn start<W: World>(config: &Table, threads: usize) -> Started<ExperimentError> {
    let (config, _) = keys::read::<W::Config>(config)?;
    Ok(Box::new(W::new(&config, threads)?))
}

fn restore<W: World>(config: &Table, threads: usize, state: &[u8]) -> Started<BadState> {
    Ok(Box::new(W::restore(&read::<W>(config)?, threads, state)?))
}

fn check_ranks<W: World>(config: &Table, count: usize) -> Result<(), ExperimentError> {
    let (config, _) = keys::read::<W::Config>(config)?;
    Ok(W::check_ranks(&config, count)?)
}

fn deal<W: World>(config: &Table, count: usize, state: &[u8]) -> Dealt {
    W::deal(&read::<W>(config)?, count, state)
}

fn on_ranks<W: World>(
    config: &Table,
    ranks: &Rc<dyn Ranks>,
    dealt: Option<&[u8]>,
) -> Started<BadState> {
    W::on_ranks(&read::<W>(config)?, ranks, dealt)
}

fn read<W: World>(config: &Table) -> Result<W::Config, BadState> {
    let read = keys::read::<W::Config>(config).map_err(|error| BadState(error.to_string()));
    Ok(read?.0)
}
