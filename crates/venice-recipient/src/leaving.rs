//! Donors that reclaim their memory, by notices with the renewals. The data is copied to other
//! donors ([`crate::rebuild`]) while the program goes on; then it is released here, its memory
//! freed where it is mapped ([`crate::reclamation`]), and the grant released.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::task::JoinSet;
use venice_control::Notice;
use venice_memory::paged::run_block::{Batches, RunBlock};

use crate::holding::Holding;
use crate::loan::{release, slabs_of};
use crate::news::News;
use crate::reclamation::Reclamation;

/// The nodes that want memory back. For the judge's thread
/// ([`begin_release`](venice_memory::paged::run_block::RunBlock::begin_release)).
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    nodes: BTreeMap<String, LeavingNode>,
    /// Slabs about to be released, and the writes to wait for.
    turning: Option<(Vec<usize>, Batches)>,
    reclamation: Reclamation,
    releases: JoinSet<()>,
}

/// A reclaiming node.
#[derive(Debug)]
struct LeavingNode {
    /// Its reclaimed grants, by their index in the run block.
    donors: BTreeSet<usize>,
    notice: Notice,
    is_reported: bool,
    /// Slabs released so far.
    slabs: usize,
}

impl Leaving {
    /// Records the notice of a donor, by its index in the run block, or its absence.
    pub(crate) fn take_notice(&mut self, holding: &Holding, donor: usize, notice: Option<Notice>) {
        let entry = &holding.block().donors()[donor];
        entry.set_reclaiming(notice.is_some() && holding.anchored().is_none());
        let name = entry.name();
        let Some(notice) = notice else {
            if let Some(node) = self.nodes.get_mut(&name) {
                node.donors.remove(&donor);
            }
            return;
        };
        let node = self.nodes.entry(name).or_insert_with(|| LeavingNode {
            donors: BTreeSet::new(),
            notice,
            is_reported: false,
            slabs: 0,
        });
        node.donors.insert(donor);
        node.notice = notice;
    }

    /// Frees slabs no longer in use, releases slabs that have moved, and releases the grants
    /// without any left; within a runtime.
    pub(crate) fn give_back(&mut self, holding: &Holding) {
        while self.releases.try_join_next().is_some() {}
        self.reclamation.turn(holding);
        if !holding.block().donors().iter().any(|donor| donor.is_reclaiming()) {
            return self.let_go(holding.block());
        }
        self.let_go(holding.block());
        if self.turning.is_none() {
            let slabs = holding.block().begin_release();
            let noted = holding.block().batches();
            self.turning = (!slabs.is_empty()).then_some((slabs, noted));
        }
        for (donor, grant) in holding.take_emptied(&self.reclamation) {
            if let Some(node) = self.nodes.get_mut(&grant.donor) {
                node.donors.remove(&donor);
                node.slabs += slabs_of(&grant);
            }
            let access = holding.access.clone();
            self.releases.spawn(async move { release(&access, &[grant]).await });
        }
    }

    /// Releases the slabs whose writes are over.
    fn let_go(&mut self, block: &RunBlock) {
        if let Some((slabs, noted)) = self.turning.take_if(|(_, noted)| block.are_over(noted)) {
            drop(noted);
            block.release_spares(&slabs);
        }
    }

    /// Ends all waits for writes.
    pub(crate) fn end(&mut self, block: &RunBlock) {
        if let Some((slabs, _)) = self.turning.take() {
            block.end_release(&slabs);
        }
    }

    /// Returns the events to report.
    pub(crate) fn news(&mut self, holding: &Holding) -> Vec<News> {
        let (anchored, donors) = (holding.anchored(), holding.block().donors());
        let mut news = Vec::new();
        self.nodes.retain(|name, node| {
            if !std::mem::replace(&mut node.is_reported, true) {
                let Notice { reason, within_ms } = node.notice;
                let name = name.clone();
                let within = within_ms.map(Duration::from_millis);
                news.push(News::WantedBack { name, reason, within, anchored });
            }
            node.donors.retain(|&donor| !donors[donor].is_gone());
            if node.donors.is_empty() && node.slabs > 0 {
                news.push(News::GivenBack { name: name.clone(), slabs: node.slabs });
            }
            !node.donors.is_empty()
        });
        news
    }
}
