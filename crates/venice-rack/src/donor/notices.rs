//! Reclaim of lent memory: notices with the renewals, and an end by force only after the time
//! stated in them.

use std::collections::BTreeSet;

use venice_wire::GrantId;

use super::{DonorCore, Held, Wanted};
use crate::NS_PER_MS;
use crate::types::{CalledBack, HeldState, Notice, NoticeReason, Share};

impl DonorCore {
    /// Reclaims `slabs` lent slabs, or cancels that with 0. Gives notice to as many grants as
    /// needed, the newest first, and those with a notice already before others. A grant that is not
    /// returned ends `within_ns` after its notice; with `None` it does not end by force. Slabs that
    /// are being freed count.
    pub fn handle_want_back(&mut self, now_ns: u64, slabs: u32, within_ns: Option<u64>) {
        let freeing: u32 = self.freeing.values().map(Share::slabs).sum();
        let chosen = self.chosen(slabs.saturating_sub(freeing));
        let until_ns = within_ns.map(|within_ns| now_ns.saturating_add(within_ns));
        for (id, held) in &mut self.held {
            held.wanted = match chosen.contains(id) {
                true => held.wanted.or(Some(Wanted { until_ns })),
                false => None,
            };
        }
    }

    /// Starts or ends (false) the drain of the node. All present grants get a notice, and none ends
    /// by force. A grant that comes later was placed after the drain was lifted, unless the Monitor
    /// Node repeats the call.
    pub fn handle_draining(&mut self, is_draining: bool) {
        self.held.values_mut().for_each(|held| held.is_drained = is_draining);
    }

    /// Preempts these grants for requests of higher priority, and cancels the preemption of all
    /// others. Each ends when the time is over that its first notice stated.
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

    /// Chooses the grants to reclaim for this number of slabs.
    fn chosen(&self, slabs: u32) -> BTreeSet<GrantId> {
        let is_lent =
            |held: &Held| held.state == HeldState::Committed && held.request.share.slabs() > 0;
        let lent = || self.held.iter().rev().filter(|(_, held)| is_lent(held));
        let noticed = lent().filter(|(_, held)| held.wanted.is_some());
        let others = lent().filter(|(_, held)| held.wanted.is_none());
        let mut left = slabs;
        let mut chosen = BTreeSet::new();
        for (id, held) in noticed.chain(others) {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(held.request.share.slabs());
            chosen.insert(*id);
        }
        chosen
    }
}

impl Held {
    /// Returns the notice for the recipient's next renewal.
    pub(super) fn notice(&self, now_ns: u64) -> Option<Notice> {
        let wanted = self.wanted.map(|wanted| Notice {
            reason: NoticeReason::Pressure,
            within_ms: wanted.until_ns.map(|until_ns| until_ns.saturating_sub(now_ns) / NS_PER_MS),
        });
        let called = self.called.map(|until_ns| Notice {
            reason: NoticeReason::Preempted,
            within_ms: Some(until_ns.saturating_sub(now_ns) / NS_PER_MS),
        });
        // Of two notices, the one that ends the grant.
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

    /// Creates a donor of 8 slabs with grants 1, 2 and 3 of two slabs each, and grant 4 prepared.
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
            share: Share::of_slabs(2),
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
            LeaseState::Transferred { .. } | LeaseState::Unknown => {
                panic!("grant {grant} has ended")
            }
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
    fn newest_grants_are_reclaimed_first() {
        let mut donor = donor();
        donor.handle_want_back(S, 3, Some(60 * S));
        let notices = [1, 2, 3].map(|grant| notice(&mut donor, 11 * S, grant));
        assert_eq!(notices, [None, pressure(50_000), pressure(50_000)]);
        // A repeated reclaim keeps the stated time.
        donor.handle_want_back(20 * S, 6, Some(60 * S));
        let notices = [1, 2, 3].map(|grant| notice(&mut donor, 21 * S, grant));
        assert_eq!(notices, [pressure(59_000), pressure(40_000), pressure(40_000)]);
        donor.handle_want_back(22 * S, 0, Some(60 * S));
        assert!([1, 2, 3].iter().all(|grant| notice(&mut donor, 23 * S, *grant).is_none()));
    }

    #[test]
    fn released_grants_satisfy_reclaim() {
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
    fn unreleased_grants_end_by_force() {
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
    fn unbounded_reclaim_waits() {
        let mut donor = donor();
        donor.handle_want_back(0, 9, None);
        let waits = Some(Notice { reason: NoticeReason::Pressure, within_ms: None });
        assert_eq!(notice(&mut donor, 500 * S, 1), waits);
        donor.handle_timeout(600 * S);
        assert!(donor.grant(GrantId(1)).is_some() && ended(&mut donor).is_empty());
    }

    #[test]
    fn preempted_grant_keeps_first_deadline() {
        let mut donor = donor();
        let call = |grant, within_ms| CalledBack { grant: GrantId(grant), within_ms };
        let notices = |within_ms| {
            Some(Notice { reason: NoticeReason::Preempted, within_ms: Some(within_ms) })
        };
        donor.handle_called_back(S, &[call(2, 30_000), call(4, 30_000)]);
        assert_eq!(notice(&mut donor, S, 2), notices(30_000));
        // A repetition does not restart the time.
        donor.handle_called_back(20 * S, &[call(2, 5_000)]);
        assert_eq!([1, 2].map(|id| notice(&mut donor, 21 * S, id)), [None, notices(10_000)]);
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
    fn drain_notices_all_ends_none() {
        let mut donor = donor();
        donor.handle_draining(true);
        let drain = Some(Notice { reason: NoticeReason::Drain, within_ms: None });
        assert_eq!([1, 2, 3].map(|grant| notice(&mut donor, S, grant)), [drain; 3]);
        donor.handle_want_back(S, 1, Some(10 * S));
        assert_eq!(
            notice(&mut donor, S, 3),
            pressure(10_000),
            "the notice names the one that ends it"
        );
        donor.handle_want_back(2 * S, 0, None);
        donor.handle_timeout(900 * S);
        assert_eq!(ended(&mut donor), []);
        donor.handle_draining(false);
        assert_eq!([1, 2, 3].map(|grant| notice(&mut donor, 901 * S, grant)), [None; 3]);
    }

    #[test]
    fn grant_after_drain_gets_no_notice() {
        let mut donor = donor();
        donor.handle_draining(true);
        donor.handle_release(S, GrantId(1));
        donor.handle_freed(GrantId(1));
        // The Monitor Node lends again, before the agent has received the end of the drain.
        donor.handle_prepare(S, request(5)).unwrap();
        donor.handle_commit(S, GrantId(5), 1).unwrap();
        assert_eq!(notice(&mut donor, S, 5), None);
        assert!(notice(&mut donor, S, 2).is_some());
        donor.handle_draining(true);
        assert!(
            notice(&mut donor, S, 5).is_some(),
            "another Monitor Node placed it before it saw the drain"
        );
    }
}
