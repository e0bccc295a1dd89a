//! `venice sim run`: point after point, with progress, and results after each.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use venice_cli::terminal;
use venice_experiment::outcome::Outcome;
use venice_experiment::{
    Experiment, Filter, Host, Point, PointResult, Results, State, World, keys,
};
use venice_measure::machine::Machine;

use super::checkpoints::{self, Checkpoints};
use super::folder::Folder;
use super::{RunArgs, numbers, usage};

/// First step of virtual time: a microsecond.
const FIRST_STEP_PS: u64 = 1_000_000;
/// A step takes about this long, so that progress and Ctrl-C are prompt.
const STEP: Duration = Duration::from_millis(50);

/// A point that was run.
#[derive(Debug)]
pub struct RunPoint {
    /// Its state at the end.
    pub state: State,
    /// Its results.
    pub outcome: Outcome,
    /// The packets of the captured link as a pcapng file, and their number.
    pub captured: Option<(Vec<u8>, usize)>,
}

/// Runs a world to its end, or until `observe` breaks; `captures` says that it captures a link.
pub fn run_point<W: World>(
    mut world: W,
    captures: bool,
    observe: &mut dyn FnMut(&W) -> ControlFlow<()>,
) -> RunPoint {
    let end = |world: W, state| RunPoint {
        state,
        outcome: world.outcome(),
        captured: captures.then(|| world.captured()),
    };
    let mut step = FIRST_STEP_PS;
    while !world.is_over() {
        let start = Instant::now();
        world.advance(world.now().saturating_add(step));
        step = match start.elapsed() {
            took if took < STEP / 2 => step.saturating_mul(2),
            took if took > STEP * 2 => (step / 2).max(1),
            _ => step,
        };
        if observe(&world).is_break() && !world.is_over() {
            return end(world, State::Interrupted);
        }
    }
    end(world, State::Done)
}

/// Runs the points of an experiment that `filter` takes, until `stop` is true; returns its folder and
/// its results, which are in that folder too.
///
/// # Errors
/// Usage errors name what is wrong before anything runs.
pub fn run_experiment<W: World>(
    args: &RunArgs,
    experiment: &Experiment,
    filter: &Filter,
    stop: &dyn Fn() -> bool,
) -> Result<(PathBuf, Results)> {
    let points = experiment.points::<W>().map_err(usage)?;
    let config = experiment.whole_config::<W>().map_err(usage)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(cores);
    let mut results = Results {
        format: Results::FORMAT,
        name: experiment.name.clone(),
        experiment: experiment.to_toml(),
        quick: args.layers.quick,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seed: keys::get(&config, "seed").and_then(toml::Value::as_integer).unwrap_or(0) as u64,
        command: args.command(),
        host: Host { machine: Machine::describe().line(), threads },
        started_unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .context("the clock is before 1970")?
            .as_secs(),
        config,
        points: points.iter().map(not_run).collect(),
        ..Results::default()
    };
    let (folder, before) = Folder::open(args.folder(experiment), &results, args.resume)?;
    results.points.iter_mut().for_each(|point| keep_done(point, before.as_ref()));
    let wanted = |at: &usize| {
        results.points[*at].state != State::Done && filter.takes(&points[*at].coordinates)
    };
    let wanted: Vec<usize> = (0..points.len()).filter(wanted).collect();
    // A folder without results is no run that can be resumed.
    folder.write_results(&results)?;
    for (at, point) in (1..).zip(&results.points) {
        if !args.resume || point.state == State::Done {
            folder.remove_checkpoint(at)?;
        }
    }
    let mut progress = Progress::new(wanted.len());
    for at in wanted {
        if stop() {
            results.interrupted = true;
            break;
        }
        let result = &mut results.points[at];
        run_in_folder::<W>(args, &folder, (at + 1, &points[at]), threads, result, stop, &progress)?;
        let state = result.state;
        progress.finish(result);
        results.interrupted = state == State::Interrupted;
        results.judge(experiment);
        folder.write_results(&results)?;
        if state == State::Done {
            folder.remove_checkpoint(at + 1)?;
        }
    }
    progress.bar.finish_and_clear();
    results.judge(experiment);
    folder.publish(experiment, &results)?;
    Ok((folder.folder, results))
}

/// Runs one point, from its checkpoint if it has one, and writes checkpoints and its captured packets.
fn run_in_folder<W: World>(
    args: &RunArgs,
    folder: &Folder,
    (number, point): (usize, &Point<W::Config>),
    threads: usize,
    result: &mut PointResult,
    stop: &dyn Fn() -> bool,
    progress: &Progress,
) -> Result<()> {
    let (name, link) = (result.place(), args.capture.as_deref());
    let every = args.checkpoint.unwrap_or(checkpoints::EVERY);
    let mut checkpoints = Checkpoints::new::<W>(folder, number, point, link, every);
    let world: W = checkpoints.world(&point.config, threads)?;
    let ran = run_point(world, link.is_some(), &mut |world| {
        progress.observe(&name, checkpoints.took_s(), world);
        if !stop() {
            checkpoints.keep(world);
            return ControlFlow::Continue(());
        }
        if let Some(path) = checkpoints.write(world) {
            terminal::remark(format!("checkpoint: {}", path.display()));
        }
        ControlFlow::Break(())
    });
    if let Some((file, packets)) = ran.captured {
        let path = folder.write_capture(number, &file)?;
        terminal::remark(format!("{packets} packets in {}", path.display()));
    }
    (result.state, result.wall_s) = (ran.state, checkpoints.took_s());
    result.outcome = Some(ran.outcome);
    Ok(())
}

fn not_run<C>(point: &Point<C>) -> PointResult {
    let coordinates = point.coordinates.clone();
    PointResult { coordinates, state: State::NotRun, wall_s: 0.0, outcome: None }
}

/// Takes the result of a point that an earlier run brought to its end.
fn keep_done(point: &mut PointResult, before: Option<&Results>) {
    let earlier = before.into_iter().flat_map(|results| &results.points);
    let mut done = earlier.filter(|old| old.state == State::Done);
    if let Some(old) = done.find(|old| old.coordinates == point.coordinates) {
        point.clone_from(old);
    }
}

/// Progress on the terminal: a bar, or a line for each point elsewhere.
struct Progress {
    bar: ProgressBar,
    count: usize,
    finished: usize,
    finished_s: f64,
}

impl Progress {
    fn new(count: usize) -> Self {
        let bar = terminal::progress(count as u64, "points");
        Self { bar, count, finished: 0, finished_s: 0.0 }
    }

    fn observe<W: World>(&self, name: &str, took_s: f64, world: &W) {
        let end = world.expected_end().filter(|end| *end > 0);
        let share = end.map(|end| (world.now() as f64 / end as f64).min(1.0));
        let left = match self.seconds_left(took_s, share) {
            Some(left) => format!(", {} left", terminal::seconds(left)),
            None => String::new(),
        };
        let of = end.map(|end| format!(" of {}", numbers::time(end))).unwrap_or_default();
        let now = numbers::time(world.now());
        let rate = numbers::rate(world.events() as f64 / took_s.max(1e-9));
        self.bar.set_message(format!("{name} {now}{of}, {rate}{left}"));
    }

    /// Estimates the rest: of this point by the share of its virtual time that has passed, of the
    /// others by the mean of all so far.
    fn seconds_left(&self, took_s: f64, share: Option<f64>) -> Option<f64> {
        let this = share.filter(|share| *share > 0.0).map(|share| took_s / share);
        let mean = match (self.finished, this) {
            (0, this) => this?,
            (finished, None) => self.finished_s / finished as f64,
            (finished, Some(this)) => (self.finished_s + this) / (finished as f64 + 1.0),
        };
        let others = self.count.saturating_sub(self.finished + 1) as f64;
        Some((this.unwrap_or(mean) - took_s).max(0.0) + mean * others)
    }

    fn finish(&mut self, point: &PointResult) {
        self.finished += 1;
        self.finished_s += point.wall_s;
        self.bar.inc(1);
        if self.bar.is_hidden()
            && let Some(outcome) = &point.outcome
        {
            terminal::remark(format!(
                "point {} of {} {}: {}, {}, {}, {}",
                self.finished,
                self.count,
                point.place(),
                point.state.words(),
                numbers::time(outcome.virtual_ps),
                numbers::rate(outcome.events as f64 / point.wall_s.max(1e-9)),
                terminal::seconds(point.wall_s),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_is_estimated() {
        let mut progress =
            Progress { bar: ProgressBar::hidden(), count: 4, finished: 0, finished_s: 0.0 };
        assert_eq!(progress.seconds_left(1.0, None), None);
        assert_eq!(progress.seconds_left(1.0, Some(0.5)), Some(1.0 + 3.0 * 2.0));
        (progress.finished, progress.finished_s) = (2, 8.0);
        assert_eq!(progress.seconds_left(1.0, None), Some(3.0 + 4.0));
        progress.finished = 3;
        assert_eq!(progress.seconds_left(9.0, None), Some(0.0));
    }
}
