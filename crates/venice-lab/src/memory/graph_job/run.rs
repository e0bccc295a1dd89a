//! The order of a run: the job on local memory, then in every mode with a share of it.

use std::path::Path;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, bail};

use super::super::application::report_of_work;
use super::super::mode::{Budget, Mode};
use super::super::report::{Fate, Unmeasured};
use super::super::setup::{Lacking, ModeSetup};
use super::super::tables::unmeasured_line;
use super::super::work::{self, Work, WorkReport};
use super::Plan;
use super::report::{JobCell, JobReport};
use venice_measure::interrupt;
use venice_measure::launch::Launch;
use venice_measure::machine::Machine;
use venice_measure::progress::{Phase, note};
use venice_measure::scratch;

/// Runs the plan. After an interrupt it returns what was measured so far.
///
/// # Errors
/// On an interrupt before the first result, and when the job fails on local memory.
pub(super) fn run(plan: &Plan, setup: &mut ModeSetup) -> Result<JobReport> {
    let started = Instant::now();
    let mut report = begin(plan);
    let folder = scratch::folder(scratch::FOLDER)?;
    let graph = folder.path().join("graph");
    {
        let _phase = Phase::waiting("draw the graph");
        work::draw_graph(Work::Topk, plan.graph, 0, &graph)?;
    }
    let local = job(&Launch::Local, plan, &graph, folder.path(), "local")
        .context("the job on plain local memory")?;
    let sums = local.heat.iter().map(|sample| sample.iter().sum::<u64>());
    report.peak_bytes = sums.max().context("the job reported no memory samples")?;
    report.heat.clone_from(&local.heat);
    enter(&mut report, Mode::Local, &local, &local);
    let budget = Budget::of(report.peak_bytes, report.peak_bytes, plan.share);
    report.local_bytes = budget.local_bytes;
    if budget.local_bytes >= report.peak_bytes {
        bail!("the graph is too small: the job needs no more than {} bytes", report.peak_bytes);
    }
    for (index, &mode) in plan.modes.iter().enumerate() {
        let label = format!("[{}/{}] {mode}", index + 1, plan.modes.len());
        let outcome =
            setup.on(mode, budget, |launch| job(launch, plan, &graph, folder.path(), &label));
        if interrupt::check().is_err() {
            report.interrupted = true;
            break;
        }
        match outcome {
            Ok(Ok(far)) => enter(&mut report, mode, &far, &local),
            Ok(Err(Lacking(reason))) => leave_out(&mut report, mode, Fate::Skipped, reason),
            Err(error) => {
                leave_out(&mut report, mode, Fate::of(&error), format!("{error:#}"));
            }
        }
    }
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

fn begin(plan: &Plan) -> JobReport {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    JobReport {
        machine: Machine::describe(),
        started_unix_s: now.as_secs(),
        load: venice_measure::machine::load(),
        quick: plan.quick,
        vertices: plan.graph.vertices,
        edges: plan.graph.edges,
        heat: Vec::new(),
        peak_bytes: 0,
        local_bytes: 0,
        cells: Vec::new(),
        unmeasured: Vec::new(),
        interrupted: false,
        checked: 0,
        wrong: 0,
        seconds: 0.0,
    }
}

fn job(
    launch: &Launch<'_>,
    plan: &Plan,
    graph: &Path,
    folder: &Path,
    label: &str,
) -> Result<WorkReport> {
    let _phase = Phase::waiting(label);
    let program = std::env::current_exe().context("cannot find the running program")?;
    let mut command = launch.command(&program);
    command.args(["bench", "work", "topk", "--graph"]).arg(graph);
    report_of_work("topk", command, plan.limit, folder).map(|(report, _peak_bytes)| report)
}

fn enter(report: &mut JobReport, mode: Mode, far: &WorkReport, local: &WorkReport) {
    let pairs = far.digests.iter().zip(&local.digests);
    let differ = pairs.filter(|(here, there)| here != there).count();
    let wrong = (differ + far.digests.len().abs_diff(local.digests.len())) as u64 + far.wrong;
    report.checked += local.digests.len() as u64;
    report.wrong += wrong;
    report.cells.push(JobCell {
        mode,
        messages: far.operations,
        seconds: far.run_s,
        slowdown: far.run_s / local.run_s,
        resident_bytes: far.resident_bytes,
        wrong,
    });
}

/// Records a case without a figure and prints it at once.
fn leave_out(report: &mut JobReport, mode: Mode, fate: Fate, reason: String) {
    let one = Unmeasured { name: None, mode, local_share: None, fate, reason };
    note(&unmeasured_line(&one));
    report.unmeasured.push(one);
}
