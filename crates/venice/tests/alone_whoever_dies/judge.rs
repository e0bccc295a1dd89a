//! Checks the grants that clients use for broken promises: a slab or a device with two owners, an
//! id given twice, a grant unknown to its donor, an error without a reason.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use venice_control::{ControlError, Grant, ResourceKind};

use crate::{LEND_BYTES, POOL_BYTES};

pub struct Judge {
    lease: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Grants in use, by id.
    held: BTreeMap<u64, Holding>,
    /// The request that got each id, ever.
    numbers: BTreeMap<u64, u128>,
    /// Time at which a donor was last killed, stopped or resumed.
    troubled: BTreeMap<String, Instant>,
    wrong: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
    /// Longest wait for an answer without queueing.
    longest: Duration,
}

struct Holding {
    grant: Grant,
    /// Time at which the last successful renewal was sent.
    renewed: Instant,
}

impl Judge {
    pub fn new(lease: Duration) -> Self {
        Self { lease, state: Mutex::default() }
    }

    /// Time after a renewal for which a grant is trusted, as by all recipients of Venice.
    pub fn trust(&self) -> Duration {
        self.lease * 3 / 4
    }

    /// Records a grant in use: its donor has confirmed it, by a renewal sent at `renewed`.
    pub fn took(&self, client_id: u128, grant: &Grant, renewed: Instant) {
        let mut state = self.state();
        let first = *state.numbers.entry(grant.id.0).or_insert(client_id);
        if first != client_id {
            state.wrong.push(format!("number {} was given to two requests", grant.id.0));
        }
        state.held.insert(grant.id.0, Holding { grant: grant.clone(), renewed });
        self.look_for_two_owners(&mut state, grant);
    }

    /// Checks that the grants trusted at that donor fit its memory.
    fn look_for_two_owners(&self, state: &mut State, grant: &Grant) {
        let now = Instant::now();
        let is_believed = |it: &&Holding| now < it.renewed + self.trust();
        // The devices of a dead agent are lent again only after their holders must have noticed;
        // its memory is gone with it.
        let of_donor = |it: &&Holding| {
            it.grant.donor == grant.donor
                && (grant.share.device().is_some() || it.grant.donor_epoch == grant.donor_epoch)
        };
        let what = |grant: &Grant| (grant.share.kind, grant.share.address.clone());
        let same = state.held.values().filter(is_believed).filter(of_donor);
        let same: Vec<&Grant> =
            same.map(|it| &it.grant).filter(|it| what(it) == what(grant)).collect();
        let bytes: u64 = same.iter().map(|it| it.share.bytes).sum();
        let is_too_much = match what(grant) {
            (ResourceKind::Memory, _) => bytes > LEND_BYTES,
            (ResourceKind::Storage, _) => bytes > POOL_BYTES,
            _ => same.len() > 1,
        };
        if is_too_much {
            let ids: Vec<u64> = same.iter().map(|it| it.id.0).collect();
            let (donor, what) = (&grant.donor, what(grant));
            state.wrong.push(format!("two owners at {donor}: {what:?} is lent as {ids:?}"));
        }
    }

    pub fn renewed(&self, grant: &Grant, sent: Instant) {
        if let Some(holding) = self.state().held.get_mut(&grant.id.0) {
            holding.renewed = holding.renewed.max(sent);
        }
    }

    /// Records that a grant is no longer used, before any other client may learn of it.
    pub fn left(&self, grant: &Grant) {
        self.state().held.remove(&grant.id.0);
    }

    /// Checks a grant that its donor does not know. This is allowed after a lease without renewal,
    /// or if the donor was killed or stopped.
    pub fn is_unknown(&self, grant: &Grant, known: Instant) {
        let now = Instant::now();
        let mut state = self.state();
        state.held.remove(&grant.id.0);
        let is_troubled =
            state.troubled.get(&grant.donor).is_some_and(|at| now < *at + 2 * self.lease);
        if now < known + self.lease && !is_troubled {
            let (id, donor, ago) = (grant.id.0, &grant.donor, known.elapsed());
            state.wrong.push(format!(
                "grant {id} was answered and is not known at {donor}, {ago:?} after it was asked for or \
                 renewed"
            ));
        }
        *state.counts.entry("lost").or_default() += 1;
    }

    pub fn trouble(&self, donor: &str) {
        self.state().troubled.insert(donor.to_owned(), Instant::now());
    }

    /// Checks an action's outcome; an error must give a reason.
    pub fn heard<T>(&self, what: &'static str, outcome: &Result<T, ControlError>) {
        let mut state = self.state();
        let ending = match outcome {
            Ok(_) => what,
            Err(_) => "refused or failed, with a reason",
        };
        *state.counts.entry(ending).or_default() += 1;
        if let Err(error) = outcome
            && !is_clear(error)
        {
            state.wrong.push(format!("an answer that says nothing: {what}: {error:?}"));
        }
    }

    /// Records the waiting time of a request without queueing.
    pub fn waited(&self, time: Duration) {
        let mut state = self.state();
        state.longest = state.longest.max(time);
    }

    /// Returns the longest wait since the last call.
    pub fn longest_wait(&self) -> Duration {
        std::mem::take(&mut self.state().longest)
    }

    pub fn complain(&self, what: String) {
        self.state().wrong.push(what);
    }

    pub fn holds(&self, grant: &Grant) -> bool {
        self.state().held.contains_key(&grant.id.0)
    }

    /// Returns the grants in use.
    pub fn held(&self) -> Vec<Grant> {
        self.state().held.values().map(|it| it.grant.clone()).collect()
    }

    pub fn wrong(&self) -> Vec<String> {
        self.state().wrong.clone()
    }

    pub fn counts(&self) -> String {
        let counts = self.state();
        let counts = counts.counts.iter().map(|(what, count)| format!("{what}: {count}"));
        counts.collect::<Vec<_>>().join(", ")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True for errors that a caller can act on.
fn is_clear(error: &ControlError) -> bool {
    matches!(
        error,
        ControlError::Rack(_)
            | ControlError::NoRoom { .. }
            | ControlError::Refused(_)
            | ControlError::Unreachable { .. }
            | ControlError::TimedOut { .. }
    )
}
