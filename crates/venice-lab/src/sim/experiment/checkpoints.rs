//! Checkpoints of the point that runs, in the folder of its results.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Result;
use venice_cli::failure;
use venice_cli::terminal;
use venice_experiment::checkpoint::{self, BadCheckpoint, Head};
use venice_experiment::ranks::Leader;
use venice_experiment::{BadState, Point, Simulation, WorldKind};

use super::folder::Folder;
use super::usage;

/// The time between two checkpoints, if none is given.
pub(super) const EVERY: Duration = Duration::from_secs(60);

/// The threads or processes that run a point.
pub(super) enum On<'a> {
    /// In this process.
    Threads(usize),
    /// In several processes.
    Ranks(&'a Rc<Leader>),
}

/// Checkpoints of one point.
pub(super) struct Checkpoints<'a> {
    folder: &'a Folder,
    /// The point's number, from 1.
    number: usize,
    kind: &'a WorldKind,
    point: &'a Point,
    head: Head,
    every: Duration,
    began: Instant,
    last: Instant,
}

impl<'a> Checkpoints<'a> {
    /// Prepares the checkpoints of a point; an `every` of zero makes none.
    pub(super) fn new(
        folder: &'a Folder,
        number: usize,
        kind: &'a WorldKind,
        point: &'a Point,
        link: Option<&str>,
        every: Duration,
    ) -> Self {
        let head = Head {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            world: kind.name.to_owned(),
            link: link.unwrap_or_default().to_owned(),
            wall_s: 0.0,
            config: point.config.clone(),
        };
        let now = Instant::now();
        Self { folder, number, kind, point, head, every, began: now, last: now }
    }

    /// Makes the simulation of the point: from its checkpoint if there is one, else from the start.
    ///
    /// # Errors
    /// If the checkpoint cannot be used, or the configuration cannot be run.
    pub(super) fn simulation(&mut self, on: &On<'_>) -> Result<Box<dyn Simulation>> {
        let Some((path, file)) = self.folder.read_checkpoint(self.number)? else {
            let simulation = match on {
                On::Threads(threads) => self.kind.start(self.point, *threads),
                On::Ranks(leader) => leader.start(self.kind, self.point),
            };
            let mut simulation = simulation.map_err(usage)?;
            if !self.head.link.is_empty() {
                simulation.capture(&self.head.link).map_err(|error| usage(error.into()))?;
            }
            return Ok(simulation);
        };
        let refused = |error: BadCheckpoint| {
            let or = match error {
                BadCheckpoint::OtherRun { .. } => "run it as before, or remove the file",
                BadCheckpoint::Foreign
                | BadCheckpoint::Form(_)
                | BadCheckpoint::Damaged
                | BadCheckpoint::Content(_) => "remove the file",
            };
            let path = path.display();
            failure::usage(format!("{path}: {error}: {or}, and the point begins anew"))
        };
        let (head, state) = checkpoint::decode(&file).map_err(refused)?;
        head.check(&self.head).map_err(refused)?;
        let simulation = match on {
            On::Threads(threads) => self.kind.restore(self.point, *threads, state),
            On::Ranks(leader) => leader.restore(self.kind, self.point, state),
        };
        let simulation =
            simulation.map_err(|BadState(why)| refused(BadCheckpoint::Content(why)))?;
        self.head.wall_s = head.wall_s;
        Ok(simulation)
    }

    /// True if the simulation captures a link.
    pub(super) fn captures(&self) -> bool {
        !self.head.link.is_empty()
    }

    /// Returns the seconds that the point has taken so far, before an interrupt too.
    pub(super) fn took_s(&self) -> f64 {
        self.head.wall_s + self.began.elapsed().as_secs_f64()
    }

    /// Writes a checkpoint if it is time. A folder that is full costs the checkpoint, not the run.
    pub(super) fn keep(&mut self, simulation: &dyn Simulation) {
        if self.last.elapsed() >= self.every {
            self.write(simulation);
        }
    }

    /// Writes a checkpoint; returns its file.
    pub(super) fn write(&mut self, simulation: &dyn Simulation) -> Option<PathBuf> {
        if self.every.is_zero() {
            return None;
        }
        let state = simulation.save()?;
        let head = Head { wall_s: self.took_s(), ..self.head.clone() };
        let written = self.folder.write_checkpoint(self.number, &checkpoint::encode(&head, &state));
        self.last = Instant::now();
        written.map_err(|error| terminal::remark(format!("no checkpoint: {error:#}"))).ok()
    }
}
