//! Checkpoints of the point that runs, in the folder of its results.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use venice_cli::failure;
use venice_cli::terminal;
use venice_experiment::checkpoint::{self, BadCheckpoint, Head};
use venice_experiment::{BadState, Point, World};

use super::folder::Folder;
use super::usage;

/// The time between two checkpoints, if none is given.
pub(super) const EVERY: Duration = Duration::from_secs(60);

/// Checkpoints of one point.
pub(super) struct Checkpoints<'a> {
    folder: &'a Folder,
    /// The point's number, from 1.
    number: usize,
    head: Head,
    every: Duration,
    began: Instant,
    last: Instant,
}

impl<'a> Checkpoints<'a> {
    /// Prepares the checkpoints of a point; an `every` of zero makes none.
    pub(super) fn new<W: World>(
        folder: &'a Folder,
        number: usize,
        point: &Point<W::Config>,
        link: Option<&str>,
        every: Duration,
    ) -> Self {
        let head = Head {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            world: W::NAME.to_owned(),
            link: link.unwrap_or_default().to_owned(),
            wall_s: 0.0,
            config: point.table.clone(),
        };
        let now = Instant::now();
        Self { folder, number, head, every, began: now, last: now }
    }

    /// Makes the world of the point: from its checkpoint if there is one, else from the start.
    ///
    /// # Errors
    /// If the checkpoint cannot be used, or the configuration cannot be run.
    pub(super) fn world<W: World>(&mut self, config: &W::Config, threads: usize) -> Result<W> {
        let Some((path, file)) = self.folder.read_checkpoint(self.number)? else {
            let mut world = W::new(config, threads).map_err(|error| usage(error.into()))?;
            if !self.head.link.is_empty() {
                world.capture(&self.head.link).map_err(|error| usage(error.into()))?;
            }
            return Ok(world);
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
        let world = W::restore(config, threads, state)
            .map_err(|BadState(why)| refused(BadCheckpoint::Content(why)))?;
        self.head.wall_s = head.wall_s;
        Ok(world)
    }

    /// Returns the seconds that the point has taken so far, before an interrupt too.
    pub(super) fn took_s(&self) -> f64 {
        self.head.wall_s + self.began.elapsed().as_secs_f64()
    }

    /// Writes a checkpoint if it is time. A folder that is full costs the checkpoint, not the run.
    pub(super) fn keep<W: World>(&mut self, world: &W) {
        if self.last.elapsed() >= self.every {
            self.write(world);
        }
    }

    /// Writes a checkpoint; returns its file.
    pub(super) fn write<W: World>(&mut self, world: &W) -> Option<PathBuf> {
        if self.every.is_zero() {
            return None;
        }
        let state = world.save()?;
        let head = Head { wall_s: self.took_s(), ..self.head.clone() };
        let written = self.folder.write_checkpoint(self.number, &checkpoint::encode(&head, &state));
        self.last = Instant::now();
        written.map_err(|error| terminal::remark(format!("no checkpoint: {error:#}"))).ok()
    }
}
