//! Suspicion of donors: one resolver for all processes of a run that wait for an answer in vain.

use std::time::{Duration, Instant};

use venice_memory::paged::run_block::{RunBlock, SuspicionOutcome, SuspicionResolver};

use crate::news::News;

/// A complaint counts for this time: a waiting process complains at least whenever another link
/// stops answering.
const SILENT_FOR: Duration = Duration::from_secs(5);

/// The suspected donors, and the reports on them.
#[derive(Debug)]
pub(crate) struct Suspicions {
    began: Instant,
    resolver: SuspicionResolver,
    /// True if reported, by donor.
    is_reported: Vec<bool>,
}

impl Default for Suspicions {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            resolver: SuspicionResolver::default(),
            is_reported: Vec::new(),
        }
    }
}

impl Suspicions {
    /// Judges the donors complained of since the last call, and returns the events. `answered`
    /// returns the time of the call that a donor answered last; `None`: it need not be called.
    pub(crate) fn judge(
        &mut self,
        block: &RunBlock,
        answered: impl Fn(usize) -> Option<Instant>,
    ) -> Vec<News> {
        let began = self.began;
        let ns = |at: Instant| at.saturating_duration_since(began).as_nanos() as u64;
        let (now_ns, silent_for_ns) = (ns(Instant::now()), SILENT_FOR.as_nanos() as u64);
        let answered_ns = |donor| answered(donor).map_or(u64::MAX, ns);
        let outcomes = self.resolver.resolve(block, now_ns, silent_for_ns, answered_ns);
        self.is_reported.resize(block.donors().len(), false);
        for (donor, is_reported) in self.is_reported.iter_mut().enumerate() {
            *is_reported &= self.resolver.is_suspected(donor, now_ns, silent_for_ns);
        }
        let mut news = Vec::new();
        for (donor, outcome) in outcomes {
            if let SuspicionOutcome::Awaited { slabs } = outcome
                && !std::mem::replace(&mut self.is_reported[donor], true)
            {
                news.push(News::Awaited { name: block.donors()[donor].name(), slabs });
            }
        }
        news
    }

    /// True if an early answer is needed on the liveness of donors.
    pub(crate) fn wait_for_answers(&self) -> bool {
        self.resolver.is_open()
    }
}
