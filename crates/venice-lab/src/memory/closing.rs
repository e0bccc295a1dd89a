//! How each of these benchmarks ends: what was checked and what is missing, as a line and as a verdict.

use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;

use super::mode::Mode;
use super::report::{Fate, Unmeasured};
use super::tables::unmeasured_line;
use crate::page::Page;
use crate::plot::Plot;
use crate::sheet::Sheet;
use venice_measure::arguments::OutputArgs;
use venice_measure::interrupt;
use venice_measure::machine::Machine;
use venice_measure::report::{grouped, publish};

/// What of a report its end tells.
pub(super) struct Closing<'a, M = Mode> {
    /// What was checked, in words.
    pub(super) what: &'a str,
    pub(super) checked: u64,
    pub(super) wrong: u64,
    pub(super) unmeasured: &'a [Unmeasured<M>],
    pub(super) interrupted: bool,
    /// Length of all of it.
    pub(super) seconds: f64,
}

/// What stands on the page of a report above its end.
pub(super) struct Pictured<'a> {
    pub(super) title: &'a str,
    pub(super) header: Vec<String>,
    /// How to read the plots.
    pub(super) legend: &'a str,
    pub(super) plots: Vec<Plot>,
    pub(super) sheets: Vec<Sheet>,
}

impl<M: std::fmt::Display> Closing<'_, M> {
    /// Prints a report's tables, writes its JSON, its plots and its page where they are wanted, and judges
    /// it.
    ///
    /// # Errors
    /// When something cannot be written, and as [`Self::verdict`].
    pub(super) fn tell<'p>(
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

    /// Writes the page, and the plots beside it.
    pub(super) fn publish_page(&self, pictured: Pictured<'_>, folder: &Path) -> Result<()> {
        let Pictured { title, header, legend, plots, sheets } = pictured;
        let closing = self.line().lines().map(str::to_owned).collect();
        Page { title, header, legend, plots: &plots, sheets, closing }.publish(folder)
    }

    /// For people.
    pub(super) fn line(&self) -> String {
        let Closing { what, checked, wrong, unmeasured, interrupted, seconds } = self;
        let missing: String = unmeasured.iter().map(|one| unmeasured_line(one) + "\n").collect();
        let checked = grouped(*checked as f64);
        let end =
            if *interrupted { ", INTERRUPTED: what is not above was not measured" } else { "" };
        format!("{missing}{checked} {what} checked, {wrong} wrong; {seconds:.0} s in all{end}.")
    }

    /// # Errors
    /// When something came back wrong, failed that this machine should be able to do, or was broken
    /// off.
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

/// Says so where others wanted the processors before it began.
pub(super) fn load_line(load: f64, machine: &Machine) -> Option<String> {
    (load > machine.cores as f64 / 2.0).then(|| {
        format!(
            "Load before: {load:.2}. Others wanted the processors too: single figures may be theirs."
        )
    })
}
