//! The claim of what was transferred to a user.

use crate::lease_holder::Renewed;
use crate::transfer::ClaimRequest;
use crate::types::Grant;
use std::collections::VecDeque;

/// Pause between two claims while nothing is there.
const PAUSE_NS: u64 = 200_000_000;
/// Time limit of the first renewals.
const ANSWER_WITHIN_NS: u64 = 3_000_000_000;

/// An output of a claim.
#[derive(Debug, Clone, PartialEq)]
pub enum ClaimingOutput<E> {
    /// Call any Monitor Node, then [`Claiming::handle_claimed`].
    Claim(ClaimRequest),
    /// Renew a grant, by its index, then [`Claiming::handle_renewed`].
    Renew(usize, Grant),
    /// The claim is over. Of no grants: nothing came.
    Claimed {
        /// The grants that could be renewed.
        live: Vec<Grant>,
        /// The others.
        lost: Vec<Grant>,
        /// A time before the renewals were sent.
        asked_ns: u64,
    },
    /// It failed; nothing is claimed.
    Failed(E),
}

/// A claim. The leases of what it gets began before, so each grant is renewed before it is used:
/// only that shows how much is left.
#[derive(Debug)]
pub struct Claiming<E> {
    request: ClaimRequest,
    /// Time until which it waits for something to claim.
    until_ns: u64,
    state: State,
    outputs: VecDeque<ClaimingOutput<E>>,
}

#[derive(Debug)]
enum State {
    Claiming,
    /// Nothing was there.
    Paused {
        until_ns: u64,
    },
    /// Each grant, and whether it is live, once that is known.
    Renewing {
        grants: Vec<(Grant, Option<bool>)>,
        asked_ns: u64,
    },
    Over,
}

impl<E> Claiming<E> {
    /// Begins a claim, and waits for as long as `within_ns` until something is there.
    pub fn new(now_ns: u64, request: ClaimRequest, within_ns: u64) -> Self {
        let until_ns = now_ns.saturating_add(within_ns);
        let outputs = [ClaimingOutput::Claim(request.clone())].into();
        Self { request, until_ns, state: State::Claiming, outputs }
    }

    /// Handles the result of [`ClaimingOutput::Claim`].
    pub fn handle_claimed(&mut self, now_ns: u64, result: Result<Vec<Grant>, E>) {
        match result {
            _ if !matches!(self.state, State::Claiming) => {}
            Ok(grants) if grants.is_empty() && now_ns < self.until_ns => {
                self.state = State::Paused { until_ns: now_ns.saturating_add(PAUSE_NS) };
            }
            Ok(mut grants) => {
                grants.sort_by_key(|grant| grant.id);
                let renewals = grants.iter().cloned().enumerate();
                self.outputs.extend(renewals.map(|(at, grant)| ClaimingOutput::Renew(at, grant)));
                let grants = grants.into_iter().map(|grant| (grant, None)).collect();
                self.state = State::Renewing { grants, asked_ns: now_ns };
                self.end_if_renewed(false);
            }
            Err(error) => {
                self.state = State::Over;
                self.outputs.push_back(ClaimingOutput::Failed(error));
            }
        }
    }

    /// Handles the result of [`ClaimingOutput::Renew`].
    pub fn handle_renewed(&mut self, index: usize, renewed: &Renewed) {
        if let State::Renewing { grants, .. } = &mut self.state {
            grants[index].1 = Some(matches!(renewed, Renewed::Live(_)));
            self.end_if_renewed(false);
        }
    }

    /// Ends once all renewals have results, or are `late`: a donor that does not answer in time does
    /// not count as holding its grant.
    fn end_if_renewed(&mut self, late: bool) {
        let State::Renewing { grants, asked_ns } = &mut self.state else { return };
        if !late && grants.iter().any(|(_, is_live)| is_live.is_none()) {
            return;
        }
        let (asked_ns, grants) = (*asked_ns, std::mem::take(grants));
        let (live, lost): (Vec<_>, Vec<_>) =
            grants.into_iter().partition(|(_, is_live)| *is_live == Some(true));
        let [live, lost] = [live, lost].map(|some| some.into_iter().map(|(it, _)| it).collect());
        self.state = State::Over;
        self.outputs.push_back(ClaimingOutput::Claimed { live, lost, asked_ns });
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.poll_timeout().is_none_or(|due_ns| due_ns > now_ns) {
            return;
        }
        match self.state {
            State::Paused { .. } => {
                self.state = State::Claiming;
                self.outputs.push_back(ClaimingOutput::Claim(self.request.clone()));
            }
            State::Renewing { .. } => self.end_if_renewed(true),
            State::Claiming | State::Over => {}
        }
    }

    /// Returns the time at which [`Self::handle_timeout`] must be called; `None`: only once there is
    /// a result.
    pub fn poll_timeout(&self) -> Option<u64> {
        match &self.state {
            State::Paused { until_ns } => Some(*until_ns),
            State::Renewing { asked_ns, .. } => Some(asked_ns.saturating_add(ANSWER_WITHIN_NS)),
            State::Claiming | State::Over => None,
        }
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<ClaimingOutput<E>> {
        self.outputs.pop_front()
    }
}
