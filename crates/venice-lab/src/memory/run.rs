//! The order of a run: application by application, on local memory first, then in every other mode
//! with every local share, so that compared runs lie close together in time.

use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;

use super::application::{Load, Sizes};
use super::mode::{Budget, Mode};
use super::report::{Cell, Fate, MemoryReport, Place, Unmeasured};
use super::sample::Sample;
use super::setup::{Lacking, ModeSetup};
use super::tables::{percent, unmeasured_line};
use venice_measure::interrupt;
use venice_measure::launch::{COPIES, Launch};
use venice_measure::machine::Machine;
use venice_measure::progress::note;
use venice_measure::scratch;

/// The measurement plan.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) loads: Vec<Load>,
    pub(super) sizes: Sizes,
    /// Modes without `local`, which always runs.
    pub(super) modes: Vec<Mode>,
    pub(super) shares: Vec<f64>,
    /// Time limit of one run of an application.
    pub(super) limit: Duration,
    pub(super) quick: bool,
}

/// Runs the plan. After an interrupt it returns what was measured so far.
///
/// # Errors
/// On an interrupt before the first result, and when an application does not run on local memory.
pub(super) fn run(plan: &Plan, setup: &mut ModeSetup) -> Result<MemoryReport> {
    let mut run = Run::new(plan);
    let outcome = plan.loads.iter().try_for_each(|load| run.measure(load, setup));
    if interrupt::check().is_err() && !run.report.cells.is_empty() {
        run.report.interrupted = true;
    } else {
        outcome?;
    }
    run.report.seconds = run.started.elapsed().as_secs_f64();
    Ok(run.report)
}

/// A run of an application in one mode.
struct Ran {
    sample: Sample,
    /// Duration from its start to its end, in seconds.
    whole_s: f64,
}

struct Run<'a> {
    plan: &'a Plan,
    report: MemoryReport,
    started: Instant,
    /// Runs so far, and their total number.
    done: usize,
    total: usize,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let report = MemoryReport {
            machine: Machine::describe(),
            started_unix_s: now.as_secs(),
            load: venice_measure::machine::load(),
            quick: plan.quick,
            copies: COPIES,
            sizes: plan.sizes.clone(),
            limit_s: plan.limit.as_secs_f64(),
            cells: Vec::new(),
            unmeasured: Vec::new(),
            checked: 0,
            wrong: 0,
            interrupted: false,
            seconds: 0.0,
        };
        let total = plan.loads.len() * (1 + plan.modes.len() * plan.shares.len());
        Self { plan, report, started: Instant::now(), done: 0, total }
    }

    fn measure(&mut self, load: &Load, setup: &mut ModeSetup) -> Result<()> {
        let Plan { sizes, limit, .. } = self.plan;
        let folder = scratch::folder(scratch::FOLDER)?;
        let prepared = match load.prepare(sizes, folder.path())? {
            Ok(prepared) => prepared,
            Err(Lacking(reason)) => {
                self.skip(load, reason);
                return Ok(());
            }
        };
        let label = self.label(&format!("{}, local", load.name()));
        let on = |launch: &Launch, label: &str| {
            let began = Instant::now();
            let sample = load.run(launch, sizes, prepared.as_deref(), *limit, label)?;
            anyhow::Ok(Ran { sample, whole_s: began.elapsed().as_secs_f64() })
        };
        let local = match on(&Launch::Local, &label) {
            Ok(local) => local,
            Err(error) => {
                interrupt::check()?;
                return Err(error.context(format!("{} on plain local memory", load.name())));
            }
        };
        let (resident_bytes, peak_bytes) = (local.sample.resident_bytes, local.sample.peak_bytes);
        self.enter(Place::local(load.application(), resident_bytes), &local, &local.sample);
        let modes = self.fitting_modes(load);
        for &share in &self.plan.shares {
            let budget = Budget::of(resident_bytes, peak_bytes, share);
            for &mode in &modes {
                let label = self.label(&format!("{}, {} {mode}", load.name(), percent(share)));
                if self.is_skipped(mode) {
                    continue;
                }
                let outcome = setup.on(mode, budget, |launch| on(launch, &label));
                interrupt::check()?;
                let place = Place::of(load.application(), mode, share, budget);
                self.enter_far(&load.name(), place, outcome, &local.sample);
            }
        }
        Ok(())
    }

    /// Returns the modes that `load` can run in; records the reason for each other.
    fn fitting_modes(&mut self, load: &Load) -> Vec<Mode> {
        let mut fitting = Vec::new();
        for &mode in &self.plan.modes {
            match load.check_mode(mode) {
                Ok(()) => fitting.push(mode),
                Err(Lacking(reason)) => {
                    self.done += self.plan.shares.len();
                    let (name, fate) = (Some(load.name()), Fate::Skipped);
                    self.leave_out(Unmeasured { name, mode, local_share: None, fate, reason });
                }
            }
        }
        fitting
    }

    /// Records that a requirement is missing: there is no run, on local memory either.
    fn skip(&mut self, load: &Load, reason: String) {
        self.done += 1 + self.plan.modes.len() * self.plan.shares.len();
        let name = Some(load.name());
        let (mode, local_share, fate) = (Mode::Local, None, Fate::Skipped);
        self.leave_out(Unmeasured { name, mode, local_share, fate, reason });
    }

    fn is_skipped(&self, mode: Mode) -> bool {
        self.report.unmeasured.iter().any(|one| one.mode == mode && one.name.is_none())
    }

    fn enter_far(
        &mut self,
        name: &str,
        place: Place,
        outcome: Result<Result<Ran, Lacking>>,
        local: &Sample,
    ) {
        let Place { mode, local_share, .. } = place;
        match outcome {
            Ok(Ok(mut ran)) => {
                ran.sample.compare_with(local);
                self.enter(place, &ran, local);
            }
            Ok(Err(Lacking(reason))) => {
                let fate = Fate::Skipped;
                self.leave_out(Unmeasured { name: None, mode, local_share: None, fate, reason });
            }
            Err(error) => self.leave_out(Unmeasured {
                name: Some(name.to_owned()),
                mode,
                local_share: Some(local_share),
                fate: Fate::of(&error),
                reason: format!("{error:#}"),
            }),
        }
    }

    /// Returns a label: `[12/64] pagerank, 25 % venice-udp`.
    fn label(&mut self, what: &str) -> String {
        self.done += 1;
        format!("[{}/{}] {what}", self.done, self.total)
    }

    fn enter(&mut self, place: Place, ran: &Ran, local: &Sample) {
        let Ran { sample, whole_s } = ran;
        self.report.checked += sample.checked;
        self.report.wrong += sample.wrong;
        for (timing, local) in sample.cases.iter().zip(&local.cases) {
            self.report.cells.push(Cell::new(place, timing, local, sample, *whole_s));
        }
    }

    /// Records a case without a figure and prints it at once.
    fn leave_out(&mut self, one: Unmeasured) {
        note(&unmeasured_line(&one));
        self.report.unmeasured.push(one);
    }
}
