//! `venice sim run`: point after point, with progress, and results after each.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use venice_cli::terminal;
use venice_experiment::ranks::Leader;
use venice_experiment::run::run_point;
use venice_experiment::{
    Experiment, Filter, Host, PointResult, Results, Simulation, State, WorldKind,
};
use venice_measure::interrupt;
use venice_measure::machine::Machine;

use super::checkpoints::{self, Checkpoints, On};
use super::folder::Folder;
use super::{RunArgs, numbers, usage};

/// Results are written no more often, as all points are in one file.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);

/// Checks that the points of an experiment that `filter` takes can run on so many ranks.
pub(super) fn check_ranks(
    kind: &WorldKind,
    experiment: &Experiment,
    filter: &Filter,
    count: usize,
) -> Result<()> {
    let points = kind.points(experiment, filter).map_err(usage)?;
    let mut wanted = points.iter().filter(|point| filter.takes(&point.coordinates));
    wanted.try_for_each(|point| kind.check_ranks(point, count)).map_err(usage)
}

/// Runs the points of an experiment that `filter` takes, on the ranks of `leader` or on threads, until
/// `stop` is true; returns its folder, which has its results, and these.
///
/// # Errors
/// Usage errors name what is wrong before anything runs.
pub fn run_experiment(
    args: &RunArgs,
    kind: &WorldKind,
    experiment: &Experiment,
    filter: &Filter,
    leader: Option<&Rc<Leader>>,
    stop: &dyn Fn() -> bool,
) -> Result<(PathBuf, Results)> {
    let (folder, results) = run_points(args, kind, experiment, filter, leader, stop)?;
    folder.publish(experiment, &results)?;
    Ok((folder.folder, results))
}

/// Runs the points; their results are not in the folder yet.
pub(super) fn run_points(
    args: &RunArgs,
    kind: &WorldKind,
    experiment: &Experiment,
    filter: &Filter,
    leader: Option<&Rc<Leader>>,
    stop: &dyn Fn() -> bool,
) -> Result<(Folder, Results)> {
    let points = kind.points(experiment, filter).map_err(usage)?;
    let config = kind.whole_config(experiment).map_err(usage)?;
    let on = match leader {
        Some(leader) => On::Ranks(leader),
        None => On::Threads(threads(args)),
    };
    if let On::Ranks(leader) = on {
        check_ranks(kind, experiment, filter, leader.count())?;
    }
    // Until here Ctrl-C ends the process at once.
    interrupt::catch_signals()?;
    let mut results = Results {
        quick: args.layers.quick,
        command: args.command(),
        host: Host {
            machine: Machine::describe().line(),
            threads: if let On::Threads(threads) = on { threads } else { 1 },
            ranks: leader.map(|leader| leader.count()),
        },
        started_unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .context("the clock is before 1970")?
            .as_secs(),
        ..Results::not_run(experiment, config, &points)
    };
    let (folder, before) = Folder::open(args.folder(experiment), &results)?;
    results.points.iter_mut().for_each(|point| keep_done(point, before.as_ref()));
    let is_chosen = |at: usize| filter.takes(&points[at].coordinates);
    let is_done = |at: usize| results.points[at].state == State::Done;
    let wanted = |at: &usize| is_chosen(*at) && !(args.resume && is_done(*at));
    let wanted: Vec<usize> = (0..points.len()).filter(wanted).collect();
    // A folder without results is no run that can be resumed.
    folder.write_results(&results)?;
    for at in (0..points.len()).filter(|at| is_done(*at) || is_chosen(*at) && !args.resume) {
        folder.remove_checkpoint(at + 1)?;
    }
    let mut progress = Progress::new(wanted.len());
    let mut written = Instant::now();
    for at in wanted {
        if stop() {
            results.interrupted = true;
            break;
        }
        let result = &mut results.points[at];
        let mut checkpoints = Checkpoints::new(
            &folder,
            at + 1,
            kind,
            &points[at],
            args.capture.as_deref(),
            args.checkpoint.unwrap_or(checkpoints::EVERY),
        );
        run_in_folder(&folder, at + 1, &mut checkpoints, &on, result, stop, &progress)?;
        let state = result.state;
        progress.finish(result);
        results.interrupted = state == State::Interrupted;
        if written.elapsed() > BETWEEN_WRITES {
            results.judge(experiment);
            keep_on(folder.write_results(&results));
            written = Instant::now();
        }
        if state == State::Done {
            folder.remove_checkpoint(at + 1)?;
        }
    }
    progress.bar.finish_and_clear();
    results.judge(experiment);
    Ok((folder, results))
}

/// Returns the threads of a point. More of them pay for large worlds on processors without other work.
fn threads(args: &RunArgs) -> usize {
    let threads = args.threads.unwrap_or(1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if threads > cores {
        terminal::remark(format!("{threads} threads on {cores} processors wait for each other"));
    }
    threads
}

/// Says that results could not be written. The run goes on: they may be at its end.
fn keep_on(written: Result<()>) {
    if let Err(error) = written {
        terminal::remark(format!("the results so far are not kept: {error:#}"));
    }
}

/// Runs one point, from its checkpoint if it has one, and writes checkpoints and its captured packets.
fn run_in_folder(
    folder: &Folder,
    number: usize,
    checkpoints: &mut Checkpoints<'_>,
    on: &On<'_>,
    result: &mut PointResult,
    stop: &dyn Fn() -> bool,
    progress: &Progress,
) -> Result<()> {
    let name = result.place();
    let simulation = checkpoints.simulation(on)?;
    let ran = run_point(simulation, checkpoints.captures(), &mut |simulation| {
        progress.observe(&name, checkpoints.took_s(), simulation);
        if !stop() {
            checkpoints.keep(simulation);
            return ControlFlow::Continue(());
        }
        if let Some(path) = checkpoints.write(simulation) {
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

    fn observe(&self, name: &str, took_s: f64, simulation: &dyn Simulation) {
        let end = simulation.expected_end().filter(|end| *end > 0);
        let share = end.map(|end| (simulation.now() as f64 / end as f64).min(1.0));
        let left = match self.seconds_left(took_s, share) {
            Some(left) => format!(", {} left", terminal::seconds(left)),
            None => String::new(),
        };
        let of = end.map(|end| format!(" of {}", numbers::time(end))).unwrap_or_default();
        let now = numbers::time(simulation.now());
        let rate = numbers::rate(simulation.events() as f64 / took_s.max(1e-9));
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
