//! The end of each benchmark report: checked values and missing cases, as a line and as a verdict.

use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;

use super::mode::Mode;
use super::report::{Fate, Unmeasured};
use super::tables::unmeasured_line;
use crate::page::Page;
use crate::plot::Plot;
use crate::report_table::ReportTable;
use venice_measure::arguments::OutputArgs;
use venice_measure::interrupt;
use venice_measure::machine::Machine;
use venice_measure::report::{grouped, publish};

/// The part of a report that its end prints.
pub(super) struct Closing<'a, M = Mode> {
    /// Name of the checked values.
    pub(super) what: &'a str,
    pub(super) checked: u64,
    pub(super) wrong: u64,
    pub(super) unmeasured: &'a [Unmeasured<M>],
    pub(super) interrupted: bool,
    /// Duration of the whole run, in seconds.
    pub(super) seconds: f64,
}

/// The part of a report's page above its end.
pub(super) struct Pictured<'a> {
    pub(super) title: &'a str,
    pub(super) header: Vec<String>,
    /// Text that explains the plots.
    pub(super) legend: &'a str,
    pub(super) plots: Vec<Plot>,
    pub(super) tables: Vec<ReportTable>,
}

impl<M: std::fmt::Display> Closing<'_, M> {
    /// Prints a report's tables, writes JSON, plots and page where requested, and returns the
    /// verdict.
    ///
    /// # Errors
    /// When a file cannot be written, and the errors of [`Self::verdict`].
    pub(super) fn publish<'p>(
        &self,
        output: &OutputArgs,
        (report, text): (&impl Serialize, &str),
        pictured: impl FnOnce() -> Result<Pictured<'p>>,
    ) -> Result<()> {
        if let Some(folder) = &output.plots {
            self.publish_page(pictured()?, folder)?;
        }
        publish(text, output.json.as_deref(), report)?;
        self.verdict()
    }

    /// Writes the page and its plots.
    pub(super) fn publish_page(&self, pictured: Pictured<'_>, folder: &Path) -> Result<()> {
        let Pictured { title, header, legend, plots, tables } = pictured;
        let closing = self.line().lines().map(str::to_owned).collect();
        Page { title, header, legend, plots: &plots, tables, closing }.publish(folder)
    }

    /// Returns the closing line for a terminal.
    pub(super) fn line(&self) -> String {
        let Closing { what, checked, wrong, unmeasured, interrupted, seconds } = self;
        let missing: String = unmeasured.iter().map(|one| unmeasured_line(one) + "\n").collect();
        let checked = grouped(*checked as f64);
        let end =
            if *interrupted { ", INTERRUPTED: what is not above was not measured" } else { "" };
        format!("{missing}{checked} {what} checked, {wrong} wrong; {seconds:.0} s in all{end}.")
    }

    /// Returns the verdict.
    ///
    /// # Errors
    /// When a value was wrong, when a run failed that this machine should support, and after an
    /// interrupt.
    pub(super) fn verdict(&self) -> Result<()> {
        if self.wrong > 0 {
            bail!("{} of {} {} were wrong", self.wrong, self.checked, self.what);
        }
        if self.interrupted {
            return interrupt::check();
        }
        let failed = self.unmeasured.iter().filter(|one| one.fate == Fate::Failed).count();
        if failed > 0 {
            bail!("{failed} of the runs failed");
        }
        Ok(())
    }
}

/// Returns a warning if the load before the run was too high for exact figures.
pub(super) fn load_line(load: f64, machine: &Machine) -> Option<String> {
    (load > machine.cores as f64 / 2.0).then(|| {
        format!(
            "Load before: {load:.2}. Other processes competed for the CPUs: single figures may be disturbed."
        )
    })
}
