//! `venice sim run`: point after point, with progress, and results after each.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use venice_cli::terminal;
use venice_experiment::outcome::Outcome;
use venice_experiment::{
    BadConfig, Experiment, Filter, Host, Point, PointResult, Results, State, World, keys,
};
use venice_measure::machine::Machine;

use super::folder::Folder;
use super::{RunArgs, numbers, usage};

/// First step of virtual time: a microsecond.
const FIRST_STEP_PS: u64 = 1_000_000;
/// A step takes about this long, so that progress and Ctrl-C are prompt.
const STEP: Duration = Duration::from_millis(50);

/// A point that runs.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// Virtual time in picoseconds.
    pub now: u64,
    /// Virtual time of its end, as far as it can be foreseen.
    pub expected_end: Option<u64>,
    /// Events handled.
    pub events: u64,
}

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

/// Runs one point to its end, or until `observe` breaks; captures a link.
///
/// # Errors
/// With the key that the world cannot run.
pub fn run_point<W: World>(
    config: &W::Config,
    threads: usize,
    link: Option<&str>,
    observe: &mut dyn FnMut(Observed) -> ControlFlow<()>,
) -> Result<RunPoint, BadConfig> {
    let mut world = W::new(config, threads)?;
    if let Some(link) = link {
        world.capture(link)?;
    }
    let end = |world: W, state| RunPoint {
        state,
        outcome: world.outcome(),
        captured: link.map(|_| world.captured()),
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
        let (now, expected_end, events) = (world.now(), world.expected_end(), world.events());
        if observe(Observed { now, expected_end, events }).is_break() && !world.is_over() {
            return Ok(end(world, State::Interrupted));
        }
    }
    Ok(end(world, State::Done))
}

/// Runs the points of an experiment that `filter` takes, until `stop` is true; returns its folder and its results, which are in that
/// folder too.
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
    let mut progress = Progress::new(wanted.len());
    for at in wanted {
        if stop() {
            results.interrupted = true;
            break;
        }
        let (name, start) = (results.points[at].place(), Instant::now());
        let link = args.capture.as_deref();
        let ran = run_point::<W>(&points[at].config, threads, link, &mut |observed| {
            progress.observe(&name, start, observed);
            if stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let RunPoint { state, outcome, captured } = ran.map_err(|error| usage(error.into()))?;
        if let Some((file, packets)) = captured {
            let path = folder.write_capture(at + 1, &file)?;
            terminal::remark(format!("{packets} packets in {}", path.display()));
        }
        results.interrupted = state == State::Interrupted;
        let result = &mut results.points[at];
        (result.state, result.wall_s) = (state, start.elapsed().as_secs_f64());
        result.outcome = Some(outcome);
        progress.finish(result);
        results.judge(experiment);
        folder.write_results(&results)?;
    }
    progress.bar.finish_and_clear();
    results.judge(experiment);
    folder.publish(experiment, &results)?;
    Ok((folder.folder, results))
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

    fn observe(&self, name: &str, start: Instant, observed: Observed) {
        let took_s = start.elapsed().as_secs_f64();
        let end = observed.expected_end.filter(|end| *end > 0);
        let share = end.map(|end| (observed.now as f64 / end as f64).min(1.0));
        let left = match self.seconds_left(took_s, share) {
            Some(left) => format!(", {} left", terminal::seconds(left)),
            None => String::new(),
        };
        let of = end.map(|end| format!(" of {}", numbers::time(end))).unwrap_or_default();
        let now = numbers::time(observed.now);
        let rate = numbers::rate(observed.events as f64 / took_s.max(1e-9));
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
