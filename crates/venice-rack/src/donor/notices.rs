//! Memory that a donor wants back while it is lent: notices with the renewals, and an end by force
//! only after the time that was stated with them.

use std::collections::BTreeSet;

use venice_wire::GrantId;

use super::{DonorCore, Held, Wanted};
use crate::NS_PER_MS;
use crate::types::{CalledBack, HeldState, Notice, NoticeReason};

impl DonorCore {
    /// The donor's machine wants `slabs` lent slabs back, or with 0 none any more: as many grants
    /// as that takes are given notice, the newest first, and those that have it already before
    /// others. A grant that is not given back ends `within_ns` after its notice; with `None` it is
    /// waited for. Slabs on their way back count.
    pub fn handle_want_back(&mut self, now_ns: u64, slabs: u32, within_ns: Option<u64>) {
        let freeing: u32 = self.freeing.values().map(|ended| ended.slabs).sum();
        let chosen = self.chosen(slabs.saturating_sub(freeing));
        let until_ns = within_ns.map(|within_ns| now_ns.saturating_add(within_ns));
        for (id, held) in &mut self.held {
            held.wanted = match chosen.contains(id) {
                true => held.wanted.or(Some(Wanted { until_ns })),
                false => None,
            };
        }
    }

    /// The Monitor Node says that the node is to be empty, or (false) not: the grants that there are then
    /// are given notice, and none is ended for that. One that comes later was placed here by who knew
    /// better, until the Monitor Node says so again.
    pub fn handle_draining(&mut self, is_draining: bool) {
        self.held.values_mut().for_each(|held| held.is_drained = is_draining);
    }

    /// The Monitor Node calls these grants back for requests of higher priority, and no others any
    /// more. Each ends by itself when the time is over that was stated with the first word of it.
    pub fn handle_called_back(&mut self, now_ns: u64, called_back: &[CalledBack]) {
        for (id, held) in &mut self.held {
            let called = called_back.iter().find(|called| called.grant == *id);
            let called = called.filter(|_| held.state == HeldState::Committed);
            held.called = called.map(|called| {
                let within_ns = called.within_ms.saturating_mul(NS_PER_MS);
                held.called.unwrap_or_else(|| now_ns.saturating_add(within_ns))
            });
        }
    }

    /// The grants that are to come back for so many slabs.
    fn chosen(&self, slabs: u32) -> BTreeSet<GrantId> {
        let is_lent = |held: &Held| held.state == HeldState::Committed && held.request.slabs > 0;
        let lent = || self.held.iter().rev().filter(|(_, held)| is_lent(held));
        let noticed = lent().filter(|(_, held)| held.wanted.is_some());
        let others = lent().filter(|(_, held)| held.wanted.is_none());
        let mut left = slabs;
        let mut chosen = BTreeSet::new();
        for (id, held) in noticed.chain(others) {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(held.request.slabs);
            chosen.insert(*id);
        }
        chosen
    }
}

impl Held {
    /// What its recipient is told when it renews.
    pub(super) fn notice(&self, now_ns: u64) -> Option<Notice> {
        let wanted = self.wanted.map(|wanted| Notice {
            reason: NoticeReason::Pressure,
            within_ms: wanted.until_ns.map(|until_ns| until_ns.saturating_sub(now_ns) / NS_PER_MS),
        });
        let called = self.called.map(|until_ns| Notice {
            reason: NoticeReason::Preempted,
            within_ms: Some(until_ns.saturating_sub(now_ns) / NS_PER_MS),
        });
        // Of two the one that ends it.
        let soonest = |notice: &Notice| notice.within_ms.unwrap_or(u64::MAX);
        let wanted = [called, wanted].into_iter().flatten().min_by_key(soonest);
        let drained = Notice { reason: NoticeReason::Drain, within_ms: None };
        wanted.or(self.is_drained.then_some(drained))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DonorAction, DonorSettings, EndReason};
    use super::*;
    use crate::queueing::DEFAULT_PRIORITY;
    use crate::types::{LeaseState, PrepareRequest};
    use venice_wire::GrantKey;

    const S: u64 = 1_000_000_000;

    /// A donor of 8 slabs with grants 1, 2 and 3 of two slabs each, and grant 4 prepared.
    fn donor() -> DonorCore {
        let settings = DonorSettings { total_slabs: 8, prepare_timeout_ns: 1000 * S };
        let mut donor = DonorCore::new(settings);
        donor.set_epoch(1);
        for grant in 1..=4 {
            donor.handle_prepare(0, request(grant)).unwrap();
            if grant < 4 {
                donor.handle_commit(0, GrantId(grant), 1).unwrap();
            }
        }
        donor
    }

    fn request(grant: u64) -> PrepareRequest {
        PrepareRequest {
            grant: GrantId(grant),
            key: GrantKey(grant),
            slabs: 2,
            device: None,
            donor_epoch: 1,
            lease_ms: 1_000_000,
            owner: None,
            recipient: "r".into(),
            purpose: "p".into(),
            priority: DEFAULT_PRIORITY,
            at_once: false,
        }
    }

    fn notice(donor: &mut DonorCore, now_ns: u64, grant: u64) -> Option<Notice> {
        match donor.handle_renew(now_ns, GrantId(grant), GrantKey(grant)) {
            LeaseState::Live { notice, .. } => notice,
            LeaseState::Unknown => panic!("grant {grant} has ended"),
        }
    }

    fn pressure(within_ms: u64) -> Option<Notice> {
        Some(Notice { reason: NoticeReason::Pressure, within_ms: Some(within_ms) })
    }

    fn ended(donor: &mut DonorCore) -> Vec<(u64, EndReason)> {
        let actions = std::iter::from_fn(|| donor.poll_action());
        actions.map(|DonorAction::FreeSlabs { grant, reason, .. }| (grant.0, reason)).collect()
    }

    #[test]
    fn the_newest_grants_are_asked_for_first_and_no_more_than_needed() {
        let mut donor = donor();
        donor.handle_want_back(S, 3, Some(60 * S));
        let told = [1, 2, 3].map(|grant| notice(&mut donor, 11 * S, grant));
        assert_eq!(told, [None, pressure(50_000), pressure(50_000)]);
        // What is asked for again has the time it was told.
        donor.handle_want_back(20 * S, 6, Some(60 * S));
        let told = [1, 2, 3].map(|grant| notice(&mut donor, 21 * S, grant));
        assert_eq!(told, [pressure(59_000), pressure(40_000), pressure(40_000)]);
        donor.handle_want_back(22 * S, 0, Some(60 * S));
        assert!([1, 2, 3].iter().all(|grant| notice(&mut donor, 23 * S, *grant).is_none()));
    }

    #[test]
    fn what_is_given_back_in_time_is_enough() {
        let mut donor = donor();
        donor.handle_want_back(0, 2, Some(60 * S));
        donor.handle_release(S, GrantId(3));
        // Not free yet, but on its way.
        donor.handle_want_back(2 * S, 2, Some(60 * S));
        assert!([1, 2].iter().all(|grant| notice(&mut donor, 3 * S, *grant).is_none()));
        donor.handle_timeout(61 * S);
        assert_eq!(ended(&mut donor), [(3, EndReason::Released)]);
    }

    #[test]
    fn what_is_not_given_back_in_time_is_taken() {
        let mut donor = donor();
        donor.handle_want_back(0, 4, Some(60 * S));
        assert_eq!(donor.poll_timeout(), Some(60 * S));
        donor.handle_timeout(60 * S - 1);
        assert_eq!(ended(&mut donor), []);
        donor.handle_timeout(60 * S);
        let reason = EndReason::TakenBack;
        assert_eq!(ended(&mut donor), [(2, reason), (3, reason)]);
        assert!(donor.grant(GrantId(1)).is_some() && donor.grant(GrantId(4)).is_some());
    }

    #[test]
    fn an_operator_who_sets_no_bound_waits() {
        let mut donor = donor();
        donor.handle_want_back(0, 9, None);
        let waits = Some(Notice { reason: NoticeReason::Pressure, within_ms: None });
        assert_eq!(notice(&mut donor, 500 * S, 1), waits);
        donor.handle_timeout(600 * S);
        assert!(donor.grant(GrantId(1)).is_some() && ended(&mut donor).is_empty());
    }

    #[test]
    fn what_is_called_back_has_the_time_that_was_stated_first() {
        let mut donor = donor();
        let call = |grant, within_ms| CalledBack { grant: GrantId(grant), within_ms };
        let told = |within_ms| {
            Some(Notice { reason: NoticeReason::Preempted, within_ms: Some(within_ms) })
        };
        donor.handle_called_back(S, &[call(2, 30_000), call(4, 30_000)]);
        assert_eq!(notice(&mut donor, S, 2), told(30_000));
        // Said again it is no new word.
        donor.handle_called_back(20 * S, &[call(2, 5_000)]);
        assert_eq!([1, 2].map(|id| notice(&mut donor, 21 * S, id)), [None, told(10_000)]);
        donor.handle_called_back(22 * S, &[]);
        assert_eq!(notice(&mut donor, 23 * S, 2), None);
        donor.handle_called_back(23 * S, &[call(2, 30_000)]);
        donor.handle_timeout(53 * S - 1);
        assert_eq!(ended(&mut donor), []);
        donor.handle_timeout(53 * S);
        assert_eq!(ended(&mut donor), [(2, EndReason::TakenBack)]);
        assert!(donor.grant(GrantId(4)).is_some(), "it was not lent yet");
    }

    #[test]
    fn a_drain_asks_for_all_and_ends_nothing() {
        let mut donor = donor();
        donor.handle_draining(true);
        let drain = Some(Notice { reason: NoticeReason::Drain, within_ms: None });
        assert_eq!([1, 2, 3].map(|grant| notice(&mut donor, S, grant)), [drain; 3]);
        donor.handle_want_back(S, 1, Some(10 * S));
        assert_eq!(notice(&mut donor, S, 3), pressure(10_000), "the one that ends it is told");
        donor.handle_want_back(2 * S, 0, None);
        donor.handle_timeout(900 * S);
        assert_eq!(ended(&mut donor), []);
        donor.handle_draining(false);
        assert_eq!([1, 2, 3].map(|grant| notice(&mut donor, 901 * S, grant)), [None; 3]);
    }

    #[test]
    fn what_is_lent_after_a_drain_was_taken_back_is_not_asked_for() {
        let mut donor = donor();
        donor.handle_draining(true);
        donor.handle_release(S, GrantId(1));
        donor.handle_freed(GrantId(1));
        // The Monitor Node lends again, and the agent has not heard of that yet.
        donor.handle_prepare(S, request(5)).unwrap();
        donor.handle_commit(S, GrantId(5), 1).unwrap();
        assert_eq!(notice(&mut donor, S, 5), None);
        assert!(notice(&mut donor, S, 2).is_some());
        donor.handle_draining(true);
        assert!(notice(&mut donor, S, 5).is_some(), "it was placed by another that did not know");
    }
}
