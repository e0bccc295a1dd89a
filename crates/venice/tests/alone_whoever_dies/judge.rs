//! Hears of what clients go by, and knows what may not be: a slab or a device with two owners, a number
//! given twice, an answer that its donor does not know of, an error that says nothing.

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
    /// What clients go by, by number.
    held: BTreeMap<u64, Holding>,
    /// Which request has got a number, ever.
    numbers: BTreeMap<u64, u128>,
    /// When a donor was last killed, stopped, or let go on.
    troubled: BTreeMap<String, Instant>,
    wrong: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
    /// That somebody who does not stand in line has waited for an answer.
    longest: Duration,
}

struct Holding {
    grant: Grant,
    /// When the renewal was sent that its donor answered last.
    renewed: Instant,
}

impl Judge {
    pub fn new(lease: Duration) -> Self {
        Self { lease, state: Mutex::default() }
    }

    /// For how long after a renewal a grant is believed in: as all recipients of Venice do.
    pub fn trust(&self) -> Duration {
        self.lease * 3 / 4
    }

    /// A client goes by a grant from now on: its donor has just said that it is lent, to a renewal that
    /// was sent then.
    pub fn took(&self, client_id: u128, grant: &Grant, renewed: Instant) {
        let mut state = self.state();
        let first = *state.numbers.entry(grant.id.0).or_insert(client_id);
        if first != client_id {
            state.wrong.push(format!("number {} was given to two requests", grant.id.0));
        }
        state.held.insert(grant.id.0, Holding { grant: grant.clone(), renewed });
        self.look_for_two_owners(&mut state, grant);
    }

    /// What all believe to have of that donor is no more than it has.
    fn look_for_two_owners(&self, state: &mut State, grant: &Grant) {
        let now = Instant::now();
        let is_believed = |it: &&Holding| now < it.renewed + self.trust();
        // An agent that died lends its devices only when whoever had one must know; the memory that it had
        // lent is gone with it.
        let of_donor = |it: &&Holding| {
            it.grant.donor == grant.donor
                && (grant.device.is_some() || it.grant.donor_epoch == grant.donor_epoch)
        };
        let what = |grant: &Grant| grant.device.as_ref().map(|it| (it.kind, it.address.clone()));
        let same = state.held.values().filter(is_believed).filter(of_donor);
        let same: Vec<&Grant> =
            same.map(|it| &it.grant).filter(|it| what(it) == what(grant)).collect();
        let bytes: u64 = same.iter().map(|it| it.bytes).sum();
        let is_too_much = match what(grant) {
            None => bytes > LEND_BYTES,
            Some((ResourceKind::Storage, _)) => bytes > POOL_BYTES,
            Some(_) => same.len() > 1,
        };
        if is_too_much {
            let ids: Vec<u64> = same.iter().map(|it| it.id.0).collect();
            let (donor, what) = (&grant.donor, what(grant).map(|(_, address)| address));
            state.wrong.push(format!("two owners at {donor}: {what:?} is lent as {ids:?}"));
        }
    }

    pub fn renewed(&self, grant: &Grant, sent: Instant) {
        if let Some(holding) = self.state().held.get_mut(&grant.id.0) {
            holding.renewed = holding.renewed.max(sent);
        }
    }

    /// Nobody goes by it any more: said before anybody else may hear of that.
    pub fn left(&self, grant: &Grant) {
        self.state().held.remove(&grant.id.0);
    }

    /// The donor does not know it (any more). That may be where a lease has passed since it last had
    /// reason to, or where it was killed or stopped.
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

    /// What somebody has done came to this; an error has to say what is the matter.
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

    /// Somebody who does not stand in line had an answer after so long.
    pub fn waited(&self, time: Duration) {
        let mut state = self.state();
        state.longest = state.longest.max(time);
    }

    /// The longest that one has waited since this was last asked.
    pub fn longest_wait(&self) -> Duration {
        std::mem::take(&mut self.state().longest)
    }

    pub fn complain(&self, what: String) {
        self.state().wrong.push(what);
    }

    pub fn holds(&self, grant: &Grant) -> bool {
        self.state().held.contains_key(&grant.id.0)
    }

    /// What clients go by now.
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

/// One of those that whoever asks can do something with.
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
