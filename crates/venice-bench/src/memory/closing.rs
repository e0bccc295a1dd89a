//! How each of these benchmarks ends: what was checked and what is missing, as a line and as a verdict.

use anyhow::{Result, bail};

use super::mode::Mode;
use super::report::{Fate, Unmeasured};
use super::tables::unmeasured_line;
use crate::interrupt;
use crate::machine::Machine;
use crate::report::grouped;

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

impl<M: std::fmt::Display> Closing<'_, M> {
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
