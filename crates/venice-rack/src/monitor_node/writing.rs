//! Writes to the store, what peers have written there, and degraded service while it is full.
//!
//! A store without disk space accepts no changes. Ending is no way out, since the next start fails
//! too; going on would make grants that a restart loses. Started work waits, and its callers learn
//! that. Queries are answered, changes are refused with the reason, and the data plane is not
//! affected.

use super::{MonitorNode, Now, Output, Written};
use crate::monitor::{Action, CHANGES_AT_ONCE, Change, RecordKey, Sight};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::replace;
use venice_wire::NodeId;

/// Time between two tries to write, in nanoseconds.
const RETRY_NS: u64 = 500_000_000;

/// The state of writes.
pub(super) enum Stage {
    Idle,
    /// The changes are being written.
    Writing(Vec<Change>),
    /// A peer came first: its changes are awaited.
    Behind(Behind),
    /// The store has no room.
    Full {
        unmade: Vec<Change>,
        retry_ns: u64,
    },
}

/// A write that failed by a conflict.
pub(super) struct Behind {
    failed: Vec<Change>,
    /// Its conditions.
    sights: Vec<Sight>,
    /// The revisions that the store has.
    found: BTreeMap<RecordKey, u64>,
    /// Changes of peers that the tables lack.
    news: Vec<Change>,
}

/// The reason why no change is made.
pub(super) struct Obstacle {
    pub(super) why: String,
    /// True if the callers that wait were told.
    are_told: bool,
}

impl MonitorNode {
    /// True while no write is under way, and no conflict is being resolved.
    pub fn takes_input(&self) -> bool {
        matches!(self.stage, Stage::Idle | Stage::Full { .. })
    }

    /// True after a conflict, until the changes of peers that caused it are here.
    pub fn awaits_news(&self) -> bool {
        matches!(self.stage, Stage::Behind(_))
    }

    /// Returns the reason why no change is made, if none is.
    pub fn obstacle(&self) -> Option<&str> {
        self.obstacle.as_ref().map(|it| it.why.as_str())
    }

    /// Handles the result of the write under way.
    ///
    /// # Panics
    /// If no write is under way, or after a conflict without peers.
    pub fn handle_written(&mut self, now: Now, written: Written) {
        let Stage::Writing(changes) = replace(&mut self.stage, Stage::Idle) else {
            panic!("no write is under way");
        };
        match written {
            Written::Made { revision } => {
                self.obstacle = None;
                if let Some(view) = &mut self.view {
                    view.made(revision, changes);
                }
            }
            Written::Conflict { found } => {
                let view = self.view.as_ref().expect("only peers cause conflicts");
                let (sights, news) = (view.conditions(&changes), Vec::new());
                self.stage = Stage::Behind(Behind { failed: changes, sights, found, news });
                self.catch_up(now);
            }
            Written::NoRoom { why } => {
                let retry_ns = self.clock.now_ns(now.clock_ns).saturating_add(RETRY_NS);
                self.stage = Stage::Full { unmade: changes, retry_ns };
                let are_told = self.obstacle.as_ref().map(|it| it.are_told);
                if are_told == Some(false) {
                    self.answer_without_room(&why);
                }
                self.obstacle = Some(Obstacle { why, are_told: are_told.is_some() });
            }
        }
    }

    /// Handles changes made at `revision` by any Monitor Node, in order, and the nodes that no peer
    /// hears; `None` without peers.
    pub fn handle_news(
        &mut self,
        now: Now,
        (revision, changes): (u64, Vec<Change>),
        silent_at_peers: Option<BTreeSet<NodeId>>,
    ) {
        let Some(view) = &mut self.view else { return };
        let news = view.learn(revision, changes);
        self.core.handle_silent_at_peers(silent_at_peers);
        if let Stage::Behind(behind) = &mut self.stage {
            behind.news.extend(news);
            return self.catch_up(now);
        }
        if news.is_empty() {
            return;
        }
        let is_of_revocations =
            |it: &Change| matches!(it, Change::PutRevocation(_) | Change::DeleteRevocation(_));
        if news.iter().any(is_of_revocations) {
            self.outputs.push_back(Output::Revoked);
        }
        self.core.handle_stored(self.clock.now_ns(now.clock_ns), news);
    }

    /// Evaluates all pending calls again once the peers' changes are here.
    fn catch_up(&mut self, now: Now) {
        let (Stage::Behind(behind), Some(view)) = (&self.stage, &self.view) else { return };
        if !view.has_moved_on(&behind.sights, &behind.found) {
            return;
        }
        let Stage::Behind(Behind { failed, news, .. }) = replace(&mut self.stage, Stage::Idle)
        else {
            unreachable!("it was checked")
        };
        let now_ns = self.clock.now_ns(now.clock_ns);
        self.core.handle_conflict(now_ns, failed, view, news);
        self.core.handle_certificate_life(self.certificate_life_ms);
        self.outputs.push_back(Output::Revoked);
        self.repeat_calls(now);
    }

    pub(super) fn next_action(&mut self) -> Option<Action> {
        let unwritten = self.unwritten.pop_front().map(Action::Store);
        unwritten.or_else(|| self.later.pop_front()).or_else(|| self.core.poll_action())
    }

    pub(super) fn begin_write(&mut self, mut changes: Vec<Change>) -> Output {
        let conditions = match &self.view {
            Some(view) => view.conditions(&changes),
            None => {
                self.add_waiting(&mut changes);
                Vec::new()
            }
        };
        self.stage = Stage::Writing(changes.clone());
        Output::Write { conditions, changes }
    }

    /// Adds all waiting changes, so that they become durable together: the disk's latency is most of
    /// the cost of each. Only for a store without other writers, where no conflict can occur.
    /// Actions between the changes are performed after all of them.
    fn add_waiting(&mut self, changes: &mut Vec<Change>) {
        if !self.unwritten.is_empty() {
            return;
        }
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Store(more) if changes.len() + more.len() <= CHANGES_AT_ONCE => {
                    changes.extend(more);
                }
                Action::Store(more) => return self.unwritten.push_back(more),
                action => self.later.push_back(action),
            }
        }
    }

    /// Returns the time of the next try, while the store has no room.
    pub(super) fn retry_ns(&self) -> Option<u64> {
        match &self.stage {
            Stage::Full { retry_ns, .. } => Some(*retry_ns),
            Stage::Idle | Stage::Writing(_) | Stage::Behind(_) => None,
        }
    }

    pub(super) fn retry(&mut self) {
        if let Stage::Full { unmade, .. } = replace(&mut self.stage, Stage::Idle) {
            self.unwritten.push_front(unmade);
        }
    }
}
