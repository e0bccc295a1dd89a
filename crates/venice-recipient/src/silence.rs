//! Donors that the run's processes wait for in vain: one judge for all of them.

use std::time::{Duration, Instant};

use venice_memory::paged::run_block::{RunBlock, SuspicionOutcome, SuspicionResolver};

use crate::news::News;

/// Who was complained of counts as silent for so long: a process that waits complains at least
/// whenever a link more has fallen silent.
const SILENT_FOR: Duration = Duration::from_secs(5);

/// The donors that are silent, and what was told of them.
#[derive(Debug)]
pub(crate) struct Silences {
    began: Instant,
    judge: SuspicionResolver,
    /// By donor.
    is_told: Vec<bool>,
}

impl Default for Silences {
    fn default() -> Self {
        Self { began: Instant::now(), judge: SuspicionResolver::default(), is_told: Vec::new() }
    }
}

impl Silences {
    /// Judges who was complained of since the last time; what there is to tell. `answered` says of a
    /// donor when it was asked what it last answered; `None`: nobody need ask it.
    pub(crate) fn judge(
        &mut self,
        block: &RunBlock,
        answered: impl Fn(usize) -> Option<Instant>,
    ) -> Vec<News> {
        let began = self.began;
        let ns = |at: Instant| at.saturating_duration_since(began).as_nanos() as u64;
        let (now_ns, silent_for_ns) = (ns(Instant::now()), SILENT_FOR.as_nanos() as u64);
        let answered_ns = |donor| answered(donor).map_or(u64::MAX, ns);
        let judged = self.judge.resolve(block, now_ns, silent_for_ns, answered_ns);
        self.is_told.resize(block.donors().len(), false);
        for (donor, is_told) in self.is_told.iter_mut().enumerate() {
            *is_told &= self.judge.is_suspected(donor, now_ns, silent_for_ns);
        }
        let mut news = Vec::new();
        for (donor, verdict) in judged {
            if let SuspicionOutcome::Awaited { slabs } = verdict
                && !std::mem::replace(&mut self.is_told[donor], true)
            {
                news.push(News::Awaited { name: block.donors()[donor].name(), slabs });
            }
        }
        news
    }

    /// Whether it is to be found out soon whether donors are there that are counted on.
    pub(crate) fn wait_for_answers(&self) -> bool {
        self.judge.is_open()
    }
}
