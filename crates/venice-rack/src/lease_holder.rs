//! A recipient's grants without I/O: renewed at their donors, and given up in time.
//!
//! A lease counts from when its renewal was sent, so it ends here before it ends at the donor,
//! which may then lend the device to another. So does the notice time of a reclaim: what is still
//! held then is released. [`LeaseHolder`] takes the results of renewals, orders of the user and the
//! time (`handle_*`), and returns what to do next ([`LeaseHolder::poll_output`]).
//! `venice-recipient` runs it on connections, `venice-sim` in virtual time.

#[cfg(test)]
pub(crate) mod tests;

use crate::types::{Grant, Notice, NoticeReason};
use std::collections::VecDeque;
use venice_wire::GrantId;

/// Longest interval between two renewals.
const MAX_PAUSE_NS: u64 = 1_000_000_000;
/// A grant is given up when this part of its lease is left: time for its user to stop.
const MARGIN_PARTS: u64 = 4;
/// The part of a lease that a grant's user has to stop, once it is lost or due.
const GRACE_PARTS: u64 = 5;
/// The longest such time.
const MAX_GRACE_NS: u64 = 5_000_000_000;

/// A renewal that is under way. It goes back with its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenewalCall {
    /// The grant, by its index.
    pub index: usize,
    /// Time at which it is sent: the donor counts the lease from later on.
    pub sent_ns: u64,
}

/// The result of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    /// It is live for another lease, perhaps with a notice.
    Live(Option<Notice>),
    /// It was transferred to this owner.
    Transferred(String),
    /// The donor does not have this grant.
    Unknown,
    /// The donor's address refuses: its agent is gone.
    Refused,
    /// The donor does not admit this process, or shows a certificate that this process does not know.
    NotAdmitted,
    /// No answer came, and its machine accepts connections: the agent stands still.
    Silent,
    /// Nothing at the donor's address accepts a connection.
    Unreachable,
}

/// The cause of a loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loss {
    /// The donor's agent is gone.
    Died,
    /// The donor took it back.
    Revoked,
    /// The donor ended it for this reason, in words.
    Ended(String),
    /// The donor did not answer until the lease ran out.
    Unresponsive,
    /// The donor did not admit this process until the lease ran out.
    NotAdmitted,
}

/// An output. Grants are named by their index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Renew a grant at its donor, then [`LeaseHolder::handle_renewed`].
    Renew(RenewalCall),
    /// Release a grant, so that no one waits for the end of its lease.
    GiveBack(usize),
    /// Tell the user that a grant is over: another recipient may have it.
    Lost(usize, Loss),
    /// Tell the user that its donor reclaims a grant.
    Wanted(usize, Notice),
    /// Tell the user that the notice time is about to end: he must stop now.
    Due(usize),
}

/// A reclaim of a grant by its donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reclaim {
    /// The reason.
    pub reason: NoticeReason,
    /// Time at which it ends, released or not; `None`: its donor waits.
    pub until_ns: Option<u64>,
}

/// The grants of one recipient. Times are of one clock that never goes backwards, in nanoseconds.
#[derive(Debug)]
pub struct LeaseHolder {
    leases: Vec<Lease>,
    /// Time of the next renewals.
    next_ns: u64,
    /// Time limit of the renewals before the first use, while they are under way.
    confirms_until_ns: Option<u64>,
    outputs: VecDeque<Output>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Held,
    Released,
    Lost(Loss),
}

/// One grant.
#[derive(Debug)]
struct Lease {
    grant: Grant,
    state: State,
    /// Time at which the last answered renewal was sent.
    renewed_ns: u64,
    /// True while a renewal is under way.
    is_asked: bool,
    reclaim: Option<Reclaim>,
    is_due: bool,
    /// True if the donor did not admit this process at the last renewal.
    is_refused: bool,
    /// True if its service is watched.
    is_served: bool,
}

impl Lease {
    fn is_held(&self) -> bool {
        self.state == State::Held
    }

    /// Returns the time at which it counts as lost: its user must be gone before its donor lends it
    /// to another.
    fn ends_ns(&self) -> u64 {
        let lease_ns = lease_ns(&self.grant);
        self.renewed_ns.saturating_add(lease_ns - lease_ns / MARGIN_PARTS)
    }

    fn until_ns(&self) -> Option<u64> {
        self.reclaim?.until_ns
    }

    /// Returns the time at which its user must stop, to have stopped half a grace before its donor
    /// takes it.
    fn due_ns(&self) -> Option<u64> {
        self.until_ns().map(|until_ns| until_ns.saturating_sub(grace_ns(&self.grant) * 3 / 2))
    }
}

impl LeaseHolder {
    /// Holds grants whose leases began after `asked_ns`. They are renewed at once.
    pub fn new(grants: Vec<Grant>, asked_ns: u64) -> Self {
        let lease = |grant| Lease {
            grant,
            state: State::Held,
            renewed_ns: asked_ns,
            is_asked: false,
            reclaim: None,
            is_due: false,
            is_refused: false,
            is_served: false,
        };
        let leases = grants.into_iter().map(lease).collect();
        Self { leases, next_ns: 0, confirms_until_ns: None, outputs: VecDeque::new() }
    }

    /// Returns all grants, in their order.
    pub fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.leases.iter().map(|lease| &lease.grant)
    }

    /// Returns a grant.
    ///
    /// # Panics
    /// If there is no such index.
    pub fn grant(&self, index: usize) -> &Grant {
        &self.leases[index].grant
    }

    /// Returns the grants that are neither lost nor released, with their indices.
    pub fn held(&self) -> impl Iterator<Item = (usize, &Grant)> {
        let held = self.leases.iter().enumerate().filter(|(_, lease)| lease.is_held());
        held.map(|(index, lease)| (index, &lease.grant))
    }

    /// Returns the lost grants with the causes.
    pub fn lost(&self) -> impl Iterator<Item = (usize, &Loss)> {
        self.leases.iter().enumerate().filter_map(|(index, lease)| match &lease.state {
            State::Lost(loss) => Some((index, loss)),
            State::Held | State::Released => None,
        })
    }

    /// Returns the reclaims of held grants.
    pub fn reclaims(&self) -> impl Iterator<Item = (usize, Reclaim)> {
        let held = self.leases.iter().enumerate().filter(|(_, lease)| lease.is_held());
        held.filter_map(|(index, lease)| Some((index, lease.reclaim?)))
    }

    /// Returns the time at which the last answered renewal of a grant was sent.
    pub fn renewed_ns(&self, index: usize) -> u64 {
        self.leases[index].renewed_ns
    }

    /// Returns the interval between two renewals.
    pub fn pause_ns(&self) -> u64 {
        (self.shortest_ns() / 4).min(MAX_PAUSE_NS)
    }

    /// Returns the shortest lease.
    fn shortest_ns(&self) -> u64 {
        let leases = self.leases.iter().map(|lease| lease_ns(&lease.grant));
        leases.min().unwrap_or(MAX_PAUSE_NS)
    }

    /// Renews all grants before their first use, if the request took so long that a lease may be half
    /// over. None is given up meanwhile.
    pub fn confirm(&mut self, now_ns: u64) {
        let half_ns = self.shortest_ns() / 2;
        if self.leases.iter().any(|lease| now_ns.saturating_sub(lease.renewed_ns) >= half_ns) {
            self.confirms_until_ns = Some(now_ns.saturating_add(half_ns));
            self.renew(now_ns);
        }
    }

    /// Returns the time limit of the renewals before the first use; `None`: none is under way.
    pub fn confirms_until_ns(&self) -> Option<u64> {
        self.confirms_until_ns
    }

    /// True if the service of a grant is watched.
    pub fn is_served(&self, index: usize) -> bool {
        self.leases[index].is_served
    }

    /// Sets whether the service of a grant is watched. The watch may know why the grant is gone, so a
    /// renewal does not end it.
    pub fn set_served(&mut self, index: usize, is_served: bool) {
        self.leases[index].is_served = is_served;
    }

    /// Gives up grants that were not renewed in time, whatever their donors answer later; releases
    /// those whose notice time is over; renews the others when that is due.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.confirms_until_ns.is_some_and(|until_ns| now_ns < until_ns) {
            return;
        }
        self.confirms_until_ns = None;
        for index in 0..self.leases.len() {
            let lease = &mut self.leases[index];
            let is_refused = lease.is_refused;
            if !lease.is_held() {
            } else if lease.ends_ns() <= now_ns {
                let loss = if is_refused { Loss::NotAdmitted } else { Loss::Unresponsive };
                self.handle_lost(index, loss);
            } else if lease.until_ns().is_some_and(|until_ns| until_ns <= now_ns) {
                self.outputs.push_back(Output::GiveBack(index));
                self.handle_lost(index, Loss::Revoked);
            } else if !lease.is_due && lease.due_ns().is_some_and(|due_ns| due_ns <= now_ns) {
                lease.is_due = true;
                self.outputs.push_back(Output::Due(index));
            }
        }
        if self.next_ns <= now_ns {
            self.renew(now_ns);
        }
    }

    /// Returns the time at which [`Self::handle_timeout`] must be called; `None`: nothing is held.
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.confirms_until_ns.is_some() {
            return self.confirms_until_ns;
        }
        let held = self.leases.iter().filter(|lease| lease.is_held());
        let ends = held.map(|lease| {
            let due_ns = lease.due_ns().filter(|_| !lease.is_due);
            [lease.until_ns(), due_ns].into_iter().flatten().fold(lease.ends_ns(), u64::min)
        });
        Some(ends.min()?.min(self.next_ns))
    }

    /// Renews all held grants, except those with a renewal under way.
    pub fn renew(&mut self, now_ns: u64) {
        self.next_ns = now_ns.saturating_add(self.pause_ns());
        for (index, lease) in self.leases.iter_mut().enumerate() {
            if lease.is_held() && !std::mem::replace(&mut lease.is_asked, true) {
                self.outputs.push_back(Output::Renew(RenewalCall { index, sent_ns: now_ns }));
            }
        }
    }

    /// Handles the result of a renewal.
    pub fn handle_renewed(&mut self, call: RenewalCall, renewed: Renewed) {
        let RenewalCall { index, sent_ns } = call;
        let lease = &mut self.leases[index];
        lease.is_asked = false;
        match renewed {
            Renewed::Live(notice) if lease.is_held() => {
                lease.renewed_ns = lease.renewed_ns.max(sent_ns);
                lease.is_refused = false;
                self.hear(call, notice);
            }
            Renewed::Transferred(to) => {
                self.handle_lost(index, Loss::Ended(format!("it was transferred to {to}")));
            }
            // The watch of its service may know why.
            Renewed::Unknown if lease.is_served => {}
            Renewed::Unknown => self.handle_lost(index, Loss::Revoked),
            Renewed::Refused => self.handle_lost(index, Loss::Died),
            Renewed::NotAdmitted => lease.is_refused = true,
            Renewed::Live(_) | Renewed::Silent | Renewed::Unreachable => {}
        }
        if !self.leases.iter().any(|lease| lease.is_asked) {
            self.confirms_until_ns = None;
        }
    }

    /// Takes a notice. Its donor counts from a time after the renewal was sent.
    fn hear(&mut self, RenewalCall { index, sent_ns }: RenewalCall, notice: Option<Notice>) {
        let lease = &mut self.leases[index];
        let reclaim = notice.map(|Notice { reason, within_ms }| Reclaim {
            reason,
            until_ns: within_ms.map(|ms| sent_ns.saturating_add(ms.saturating_mul(1_000_000))),
        });
        let before = std::mem::replace(&mut lease.reclaim, reclaim).map(|it| it.reason);
        if let Some(notice) = notice.filter(|notice| before != Some(notice.reason)) {
            self.outputs.push_back(Output::Wanted(index, notice));
        }
    }

    /// Handles the loss of a grant, unless it is over already.
    pub fn handle_lost(&mut self, index: usize, loss: Loss) {
        let lease = &mut self.leases[index];
        if lease.is_held() {
            lease.state = State::Lost(loss.clone());
            self.outputs.push_back(Output::Lost(index, loss));
        }
    }

    /// Releases a grant, unless it is over already. The others stay held.
    pub fn handle_release(&mut self, grant: GrantId) {
        let Some(index) = self.leases.iter().position(|lease| lease.grant.id == grant) else {
            return;
        };
        if self.leases[index].is_held() {
            self.leases[index].state = State::Released;
            self.outputs.push_back(Output::GiveBack(index));
        }
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
}

/// Returns the time that a grant's user has to stop, once it is lost or due, in nanoseconds.
pub fn grace_ns(grant: &Grant) -> u64 {
    (lease_ns(grant) / GRACE_PARTS).min(MAX_GRACE_NS)
}

/// Returns the lease of a grant, in nanoseconds.
pub fn lease_ns(grant: &Grant) -> u64 {
    (grant.lease_s.clamp(0.1, 86_400.0) * 1e9) as u64
}
