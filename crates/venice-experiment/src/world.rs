//! Worlds in virtual time, as experiments drive them.

use std::rc::Rc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use venice_simkernel::ranks::Ranks;

use crate::outcome::Outcome;

/// A configuration that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct BadConfig {
    /// The key to change, with the tables that it is in: `switch.ports`.
    pub key: String,
    /// The reason, with what can be set: `0 is no number of ports: set 1 to 128`.
    pub why: String,
}

impl BadConfig {
    /// Makes an error that names `key`.
    pub fn new(key: impl Into<String>, why: impl Into<String>) -> Self {
        Self { key: key.into(), why: why.into() }
    }
}

/// A saved state from which a world cannot go on, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadState(pub String);

/// A simulation of one point, in virtual time.
pub trait Simulation {
    /// Captures a link from now on, in both directions: `host:3`, or `switch:2.31` with its port.
    ///
    /// # Errors
    /// If there is no such link.
    fn capture(&mut self, link: &str) -> Result<(), BadConfig> {
        Err(BadConfig::new("link", format!("'{link}': this world has no links")))
    }

    /// Returns the captured packets so far as a pcapng file, with their number.
    fn captured(&self) -> (Vec<u8>, usize) {
        (Vec::new(), 0)
    }

    /// Runs until a virtual time in picoseconds, or until it is over. Stops on the way change no
    /// result.
    fn advance(&mut self, until_ps: u64);

    /// Returns the virtual time in picoseconds.
    fn now(&self) -> u64;

    /// True once nothing is left to simulate.
    fn is_over(&self) -> bool;

    /// Returns the number of events handled.
    fn events(&self) -> u64;

    /// Returns the work done so far and all of it, in a unit of the world's own, such as requests;
    /// `None`: how much there will be is unknown.
    fn progress(&self) -> Option<(u64, u64)>;

    /// Returns the virtual time of its end in picoseconds, if work goes on at its mean rate so far.
    fn expected_end(&self) -> Option<u64> {
        let (done, all) = self.progress().filter(|(done, all)| *done > 0 && *all > 0)?;
        let end = u128::from(self.now()) * u128::from(all) / u128::from(done);
        Some(u64::try_from(end).unwrap_or(u64::MAX))
    }

    /// Returns the results so far. Its virtual time is that at which something happened last: it does not
    /// depend on where [`Simulation::advance`] stopped, nor on timers that nobody needs any more.
    fn outcome(&self) -> Outcome;

    /// Returns its state, captured packets included, from which [`World::restore`] goes on; `None`: it
    /// cannot be saved.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }
}

/// A world in virtual time that experiments can run.
pub trait World: Simulation + Sized + 'static {
    /// Its name in experiments: the value of their key `world`.
    const NAME: &'static str;

    /// Names and texts of the experiments that come with it.
    const EXPERIMENTS: &'static [(&'static str, &'static str)];

    /// All that can be set. Experiments find its keys by serializing it: each field that it reads it
    /// also writes, but for an `Option` that is `None`. Where its tables differ by a choice, the
    /// choice is the key `kind`.
    type Config: Clone + Default + Serialize + DeserializeOwned;

    /// Checks a configuration, without the cost of a world.
    ///
    /// # Errors
    /// With the key that cannot be run.
    fn check(config: &Self::Config) -> Result<(), BadConfig>;

    /// Makes a world that runs on up to `threads` threads; their number changes no result.
    ///
    /// # Errors
    /// With the key that cannot be run.
    fn new(config: &Self::Config, threads: usize) -> Result<Self, BadConfig>;

    /// Makes a world that goes on from a state that [`Simulation::save`] returned for the same
    /// configuration: on any number of threads, with the results of a run that was not interrupted.
    ///
    /// # Errors
    /// If it is no state of such a world.
    fn restore(_config: &Self::Config, _threads: usize, _state: &[u8]) -> Result<Self, BadState> {
        Err(BadState(format!("the world {} cannot be restored", Self::NAME)))
    }
    /// Checks that a world of the configuration can be divided among so many ranks.
    ///
    /// # Errors
    /// With the key that cannot be run.
    fn check_ranks(_config: &Self::Config, _count: usize) -> Result<(), BadConfig> {
        Err(one_part(Self::NAME))
    }

    /// Divides a state that [`Simulation::save`] returned, on threads or ranks, among `count` ranks.
    ///
    /// # Errors
    /// If it is no state of such a world.
    fn deal(
        _config: &Self::Config,
        _count: usize,
        _state: &[u8],
    ) -> Result<Vec<Vec<u8>>, BadState> {
        Err(BadState(one_part(Self::NAME).to_string()))
    }

    /// Makes the part of a world that one rank runs: from the start, or from its share of a state that
    /// was dealt. All ranks make one, and call the same of its methods in the same order; results,
    /// state and progress are those of the whole world at rank 0. The configuration was checked.
    ///
    /// # Errors
    /// If it is no share of such a world.
    fn on_ranks(
        _config: &Self::Config,
        _ranks: &Rc<dyn Ranks>,
        _dealt: Option<&[u8]>,
    ) -> Result<Box<dyn Simulation>, BadState> {
        Err(BadState(one_part(Self::NAME).to_string()))
    }
}

fn one_part(name: &str) -> BadConfig {
    BadConfig::new("world", format!("{name} is one part: run it without --ranks"))
}
