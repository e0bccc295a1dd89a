//! Donors that want their memory back: they say so with the renewals. What is there is copied
//! elsewhere ([`crate::rebuild`]) while the program goes on; then it is let go of here, its memory
//! freed where it is mapped ([`crate::freeing`]), and the grant given back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::task::JoinSet;
use venice_control::Notice;
use venice_memory::paged::run_block::{Batches, RunBlock};

use crate::freeing::Freeing;
use crate::holding::Holding;
use crate::loan::{release, slabs_of};
use crate::news::News;

/// The nodes that want memory back. For the judge's thread
/// ([`begin_release`](venice_memory::paged::run_block::RunBlock::begin_release)).
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    nodes: BTreeMap<String, LeavingNode>,
    /// Slabs that are about to be let go of, and the writes that are waited for.
    turning: Option<(Vec<usize>, Batches)>,
    freeing: Freeing,
    releases: JoinSet<()>,
}

/// One node that wants memory back.
#[derive(Debug)]
struct LeavingNode {
    /// Its grants that it wants back, by their index in the run block.
    donors: BTreeSet<usize>,
    notice: Notice,
    is_told: bool,
    /// Slabs that were given back.
    slabs: usize,
}

impl Leaving {
    /// A donor, by its index in the run block, has said whether it wants its memory back.
    pub(crate) fn heed(&mut self, holding: &Holding, donor: usize, notice: Option<Notice>) {
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
            is_told: false,
            slabs: 0,
        });
        node.donors.insert(donor);
        node.notice = notice;
    }

    /// Frees what is neither read nor written any more, lets go of what is elsewhere, and gives back
    /// the grants where nothing is left; within a runtime.
    pub(crate) fn give_back(&mut self, holding: &Holding) {
        while self.releases.try_join_next().is_some() {}
        self.freeing.turn(holding);
        if !holding.block().donors().iter().any(|donor| donor.is_reclaiming()) {
            return self.let_go(holding.block());
        }
        self.let_go(holding.block());
        if self.turning.is_none() {
            let slabs = holding.block().begin_release();
            let noted = holding.block().batches();
            self.turning = (!slabs.is_empty()).then_some((slabs, noted));
        }
        for (donor, grant) in holding.take_emptied(&self.freeing) {
            if let Some(node) = self.nodes.get_mut(&grant.donor) {
                node.donors.remove(&donor);
                node.slabs += slabs_of(&grant);
            }
            let access = holding.access.clone();
            self.releases.spawn(async move { release(&access, &[grant]).await });
        }
    }

    /// Lets go of the slabs whose turn has come.
    fn let_go(&mut self, block: &RunBlock) {
        if let Some((slabs, noted)) = self.turning.take_if(|(_, noted)| block.are_over(noted)) {
            drop(noted);
            block.release_spares(&slabs);
        }
    }

    /// Nobody need wait for a turn any more: all of it ends.
    pub(crate) fn end(&mut self, block: &RunBlock) {
        if let Some((slabs, _)) = self.turning.take() {
            block.end_release(&slabs);
        }
    }

    /// What there is to tell.
    pub(crate) fn news(&mut self, holding: &Holding) -> Vec<News> {
        let (anchored, donors) = (holding.anchored(), holding.block().donors());
        let mut news = Vec::new();
        self.nodes.retain(|name, node| {
            if !std::mem::replace(&mut node.is_told, true) {
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
