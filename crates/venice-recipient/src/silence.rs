//! Donors that the run's processes wait for in vain: one judge for all of them.

use std::time::{Duration, Instant};

use venice_memory::paged::run_block::{RunBlock, Verdict};

use crate::news::News;

/// Who was complained of counts as silent for so long: a process that waits complains at least
/// whenever a link more has fallen silent.
const SILENT_FOR: Duration = Duration::from_secs(5);

/// The donors that are silent, and what was told of them.
#[derive(Debug, Default)]
pub(crate) struct Silences {
    /// By donor.
    complained: Vec<Option<Instant>>,
    is_told: Vec<bool>,
}

impl Silences {
    /// Judges who was complained of since the last time; what there is to tell.
    pub(crate) fn judge(&mut self, block: &RunBlock) -> impl Iterator<Item = News> + use<> {
        let donors = block.donors();
        self.complained.resize(donors.len(), None);
        self.is_told.resize(donors.len(), false);
        let complaints: Vec<usize> =
            (0..donors.len()).filter(|&donor| donors[donor].take_complaint()).collect();
        for &donor in &complaints {
            self.complained[donor] = Some(Instant::now());
        }
        let complained = &self.complained;
        let is_silent =
            |donor: usize| complained[donor].is_some_and(|at| at.elapsed() < SILENT_FOR);
        for (donor, is_told) in self.is_told.iter_mut().enumerate() {
            *is_told &= is_silent(donor);
        }
        let mut news = Vec::new();
        for donor in complaints.into_iter().filter(|&donor| !donors[donor].is_gone()) {
            if let Verdict::Awaited { slabs } = block.judge_silent(donor, is_silent)
                && !std::mem::replace(&mut self.is_told[donor], true)
            {
                news.push(News::Awaited { name: donors[donor].name(), slabs });
            }
        }
        news.into_iter()
    }
}
