//! `venice sim list|show|run|compare|report`: experiments in simulated worlds.
//!
//! The experiments are data ([`venice_experiment`]); a
//! [`World`](venice_experiment::World) runs their points: one of Venice's, or one of the tests' own.

mod arguments;
mod causes;
mod checkpoints;
mod compare;
mod figures;
mod folder;
mod launch;
mod numbers;
mod page;
mod parquet;
mod queues;
mod remarks;
mod run;
mod show;
mod table;

use std::rc::Rc;

use venice_cli::failure::{self, EXIT_FAILURE};
use venice_cli::terminal;
use venice_experiment::ExperimentError;
use venice_experiment::ranks::Leader;
use venice_measure::interrupt;
use venice_worlds::world_of;

pub use arguments::{CompareArgs, Layers, ListArgs, ReportArgs, RunArgs, ShowArgs};
pub use folder::REPORT;
pub use run::run_experiment;

/// Examples of `venice sim list`.
pub const HELP_LIST: &str = "\
EXAMPLES:
  venice sim list
  venice sim list --json";

/// Examples of `venice sim show`.
pub const HELP_SHOW: &str = "\
EXAMPLES:
  venice sim show incast-1g                           sweeps, keys with values, figures, findings
  venice sim show incast-1g --toml > mine.toml        a file to change
  venice sim show incast-1g --set topology.tor.switch.latency=2us --quick

A file with base = \"incast-1g\" only has what differs from that experiment.";

/// Examples of `venice sim run`.
pub const HELP_RUN: &str = "\
EXAMPLES:
  venice sim run incast-1g --quick                    the small variant: seconds
  venice sim run incast-1g --out incast               the paper's: its figure beside ours
  venice sim run incast-1g --set topology.tor.switch.latency=2us --out slower
  venice sim run incast-1g --sweep seed=1,2,3 --points 'servers=1|8'
  venice sim run mine.toml --out mine --resume        go on after Ctrl-C or a kill
  venice sim run mine.toml --checkpoint 10s           a kill costs at most 10 s
  venice sim run memcached-tail --ranks 4             on four processes, by MPI
  venice sim run incast-1g --quick --set heatmap=1us  maps of the switches' queues in the report

The folder gets results.json, points.parquet, latencies.parquet, a plot of each figure, report.html, and
experiment.toml, which repeats the run. The same configuration and seed give the same results on any number of
threads and ranks. Ctrl-C keeps the points so far, and a checkpoint of the one that runs; exit code 1.";

/// Examples of `venice sim compare`.
pub const HELP_COMPARE: &str = "\
EXAMPLES:
  venice sim compare incast slower
  venice sim compare incast slower --all --json

Prints the figures that differ, point by point, with the ratio of the second to the first, and the keys
that were set differently.";

/// Examples of `venice sim report`.
pub const HELP_REPORT: &str = "\
EXAMPLES:
  venice sim report incast
  venice sim report incast --output incast.html

Writes the page anew from results.json: one file without references to others.";

/// Runs `venice sim list` on the experiments that come with Venice.
pub fn list(args: &ListArgs) -> anyhow::Result<i32> {
    show::list(args, &venice_worlds::catalogue())
}

/// Runs `venice sim show`.
pub fn show(args: &ShowArgs) -> anyhow::Result<i32> {
    let (experiment, filter) = args.layers.read(&venice_worlds::catalogue())?;
    show::show(args, world_of(&experiment).map_err(usage)?, &experiment, &filter)
}

/// Runs `venice sim run`, on the ranks of `leader` if this is rank 0 of several.
pub fn run(args: &RunArgs, leader: Option<&Rc<Leader>>) -> anyhow::Result<i32> {
    if leader.is_none() {
        crate::sim::huge_pages::use_for_heap();
    }
    let (experiment, filter) = args.layers.read(&venice_worlds::catalogue())?;
    let world = world_of(&experiment).map_err(usage)?;
    match (args.ranks, leader) {
        (Some(count), None) => {
            run::check_ranks(world, &experiment, &filter, count)?;
            return launch::launch(count);
        }
        (Some(count), Some(leader)) if count != leader.count() => {
            let why = format!("--ranks {count}, and mpirun started {}", leader.count());
            return Err(failure::usage(why));
        }
        (Some(_) | None, _) => {}
    }
    let stop =
        || interrupt::check().is_err() || leader.is_some_and(|leader| leader.is_asked_to_stop());
    let (folder, results) = run::run_points(args, world, &experiment, &filter, leader, &stop)?;
    // Before they are written: a full disk costs no results.
    match args.json {
        true => terminal::say_json(&results)?,
        false => terminal::say(table::summary(&experiment, &results))?,
    }
    remarks::of(&experiment, &results).into_iter().for_each(terminal::remark);
    folder.publish(&experiment, &results)?;
    terminal::remark(format!("results and report: {}", folder.folder.join(REPORT).display()));
    if results.interrupted {
        terminal::remark("interrupted: run it again with --resume to go on");
        return Ok(EXIT_FAILURE);
    }
    Ok(0)
}

/// Runs `venice sim compare`.
///
/// # Errors
/// If a folder has no results.
pub fn compare(args: &CompareArgs) -> anyhow::Result<i32> {
    let (a, b) = (folder::read(&args.first)?, folder::read(&args.second)?);
    let comparison = compare::Comparison::of(&a, &b)?;
    match args.json {
        true => terminal::say_json(&comparison)?,
        false => terminal::say(comparison.text(args.all))?,
    }
    Ok(0)
}

/// Runs `venice sim report`.
///
/// # Errors
/// If the folder has no results, or the page cannot be written.
pub fn report(args: &ReportArgs) -> anyhow::Result<i32> {
    let results = folder::read(&args.folder)?;
    let experiment = results.experiment()?;
    let output = args.output.clone().unwrap_or_else(|| args.folder.join(REPORT));
    let plots = figures::plots(&experiment, &results)?;
    folder::write(&output, page::html(&experiment, &results, &plots).as_bytes())?;
    terminal::say(output.display().to_string())?;
    Ok(0)
}

/// Turns a mistake in an experiment into a usage error.
fn usage(error: ExperimentError) -> anyhow::Error {
    failure::usage(error.to_string())
}
