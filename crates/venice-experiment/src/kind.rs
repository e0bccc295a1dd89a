//! Kinds of worlds as data.

use toml::Table;

use crate::{BadState, Experiment, ExperimentError, Point, Simulation, World, keys};

/// A simulation, or why there is none.
type Started<E> = Result<Box<dyn Simulation>, E>;

/// A kind of world, for those who choose it by name.
#[derive(Clone, Copy, Debug)]
pub struct WorldKind {
    /// Its name in experiments: the value of their key `world`.
    pub name: &'static str,
    /// Names and texts of the experiments that come with it.
    pub experiments: &'static [(&'static str, &'static str)],
    points: fn(&Experiment) -> Result<Vec<Point>, ExperimentError>,
    whole_config: fn(&Experiment) -> Result<Table, ExperimentError>,
    start: fn(&Table, usize) -> Started<ExperimentError>,
    restore: fn(&Table, usize, &[u8]) -> Started<BadState>,
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
        }
    }

    /// Returns the points of an experiment, as [`Experiment::points`].
    ///
    /// # Errors
    /// If a configuration has an unknown key, or the world cannot run it.
    pub fn points(&self, experiment: &Experiment) -> Result<Vec<Point>, ExperimentError> {
        (self.points)(experiment)
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
}

fn start<W: World>(config: &Table, threads: usize) -> Started<ExperimentError> {
    let (config, _) = keys::read::<W::Config>(config)?;
    Ok(Box::new(W::new(&config, threads)?))
}

fn restore<W: World>(config: &Table, threads: usize, state: &[u8]) -> Started<BadState> {
    let read = keys::read::<W::Config>(config).map_err(|error| BadState(error.to_string()));
    Ok(Box::new(W::restore(&read?.0, threads, state)?))
}
