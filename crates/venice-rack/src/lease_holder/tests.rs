use super::*;
use crate::types::Share;
use venice_wire::{GrantKey, NodeId};

const S: u64 = 1_000_000_000;
const ASKED: u64 = 100 * S;

pub(crate) fn grant(id: u64, lease_s: f64) -> Grant {
    Grant {
        id: GrantId(id),
        donor: "node1".into(),
        donor_node: NodeId(1),
        donor_epoch: 1,
        share: Share::of_slabs(1),
        key: GrantKey(1),
        control_addr: String::new(),
        endpoints: Vec::new(),
        lease_s,
    }
}

/// Holds grants 1 and 2, of 40 and 20 seconds, with the renewals of the start.
fn holder() -> (LeaseHolder, [RenewalCall; 2]) {
    let mut holder = LeaseHolder::new(vec![grant(1, 40.0), grant(2, 20.0)], ASKED);
    holder.handle_timeout(ASKED);
    let calls = [0, 1].map(|index| RenewalCall { index, sent_ns: ASKED });
    assert_eq!(outputs(&mut holder), calls.map(Output::Renew));
    (holder, calls)
}

fn outputs(holder: &mut LeaseHolder) -> Vec<Output> {
    std::iter::from_fn(|| holder.poll_output()).collect()
}

fn notice(within_ms: Option<u64>) -> Renewed {
    Renewed::Live(Some(Notice { reason: NoticeReason::Preempted, within_ms }))
}

#[test]
fn lease_ends_here_before_donor() {
    let (mut holder, _) = holder();
    holder.handle_timeout(ASKED + 15 * S - 1);
    assert_eq!(outputs(&mut holder), [], "the renewals are under way");
    assert_eq!(holder.poll_timeout(), Some(ASKED + 15 * S));
    holder.handle_timeout(ASKED + 15 * S);
    assert_eq!(outputs(&mut holder), [Output::Lost(1, Loss::Unresponsive)]);
    assert_eq!(holder.held().map(|(index, _)| index).collect::<Vec<_>>(), [0]);
}

#[test]
fn lease_counts_from_sending() {
    let (mut holder, [_, call]) = holder();
    holder.handle_timeout(ASKED + 10 * S);
    assert_eq!(outputs(&mut holder), [], "asked once at a time");
    holder.handle_renewed(call, Renewed::Live(None));
    holder.handle_timeout(ASKED + 11 * S);
    let again = RenewalCall { index: 1, sent_ns: ASKED + 11 * S };
    assert_eq!(outputs(&mut holder), [Output::Renew(again)]);
    holder.handle_renewed(again, Renewed::Live(None));
    holder.handle_timeout(ASKED + 26 * S - 1);
    assert!(holder.held().any(|(index, _)| index == 1));
    holder.handle_timeout(ASKED + 26 * S);
    assert!(!holder.held().any(|(index, _)| index == 1));
}

#[test]
fn refused_process_learns_why() {
    let (mut holder, [_, call]) = holder();
    holder.handle_renewed(call, Renewed::NotAdmitted);
    holder.handle_timeout(ASKED + 15 * S);
    assert!(outputs(&mut holder).contains(&Output::Lost(1, Loss::NotAdmitted)));
}

#[test]
fn answers_end_grants_at_once() {
    let (mut holder, [first, second]) = holder();
    holder.handle_renewed(first, Renewed::Refused);
    holder.handle_renewed(second, Renewed::Transferred("bob@n2".into()));
    let why = Loss::Ended("it was transferred to bob@n2".into());
    assert_eq!(outputs(&mut holder), [Output::Lost(0, Loss::Died), Output::Lost(1, why)]);
    holder.handle_renewed(first, Renewed::Live(None));
    assert_eq!((outputs(&mut holder), holder.lost().count()), (vec![], 2), "lost for good");
    assert_eq!(holder.poll_timeout(), None);
}

#[test]
fn watched_service_knows_why() {
    let (mut holder, [call, _]) = holder();
    holder.set_served(0, true);
    holder.handle_renewed(call, Renewed::Unknown);
    assert_eq!(outputs(&mut holder), []);
    holder.handle_lost(0, Loss::Ended("it crashed".into()));
    assert_eq!(outputs(&mut holder), [Output::Lost(0, Loss::Ended("it crashed".into()))]);
}

#[test]
fn reclaimed_grant_is_due_early() {
    let (mut holder, [call, _]) = holder();
    holder.handle_renewed(call, notice(Some(12_000)));
    let wanted = Notice { reason: NoticeReason::Preempted, within_ms: Some(12_000) };
    assert_eq!(outputs(&mut holder), [Output::Wanted(0, wanted)]);
    let until_ns = ASKED + 12 * S;
    let due_ns = until_ns - grace_ns(&grant(1, 40.0)) * 3 / 2;
    holder.handle_timeout(due_ns - 1);
    assert!(!outputs(&mut holder).contains(&Output::Due(0)));
    assert!(holder.poll_timeout().unwrap() <= due_ns);
    holder.handle_timeout(due_ns);
    assert!(outputs(&mut holder).contains(&Output::Due(0)));
    holder.handle_timeout(until_ns);
    let given_back = [Output::GiveBack(0), Output::Lost(0, Loss::Revoked)];
    assert_eq!(outputs(&mut holder)[..2], given_back, "before the donor takes it");
}

#[test]
fn withdrawn_notice_is_forgotten() {
    let (mut holder, [call, _]) = holder();
    holder.handle_renewed(call, notice(None));
    assert_eq!(holder.reclaims().count(), 1);
    holder.handle_renewed(call, notice(None));
    assert_eq!(outputs(&mut holder).len(), 1, "told once");
    holder.handle_renewed(call, Renewed::Live(None));
    assert_eq!(holder.reclaims().count(), 0);
}

#[test]
fn released_grant_is_not_lost() {
    let (mut holder, _) = holder();
    holder.handle_release(GrantId(1));
    holder.handle_release(GrantId(1));
    assert_eq!(outputs(&mut holder), [Output::GiveBack(0)]);
    holder.handle_lost(0, Loss::Revoked);
    assert_eq!((holder.lost().count(), holder.held().count()), (0, 1));
}

#[test]
fn old_leases_are_confirmed_first() {
    let now_ns = ASKED + 60 * S;
    for (renewed, is_held) in [(Renewed::Live(None), true), (Renewed::Unknown, false)] {
        let mut holder = LeaseHolder::new(vec![grant(1, 20.0)], ASKED);
        holder.confirm(now_ns);
        let call = RenewalCall { index: 0, sent_ns: now_ns };
        assert_eq!(outputs(&mut holder), [Output::Renew(call)]);
        holder.handle_timeout(now_ns);
        assert_eq!(outputs(&mut holder), [], "it may be live");
        assert_eq!(holder.confirms_until_ns(), Some(now_ns + 10 * S));
        holder.handle_renewed(call, renewed);
        assert_eq!(holder.confirms_until_ns(), None);
        holder.handle_timeout(now_ns);
        assert_eq!(holder.held().count() == 1, is_held);
    }
}

#[test]
fn unconfirmed_lease_is_lost() {
    let mut holder = LeaseHolder::new(vec![grant(1, 20.0)], ASKED);
    holder.confirm(ASKED + 60 * S);
    outputs(&mut holder);
    let until_ns = holder.poll_timeout().unwrap();
    holder.handle_timeout(until_ns);
    assert_eq!(outputs(&mut holder), [Output::Lost(0, Loss::Unresponsive)]);
}

#[test]
fn young_leases_need_no_confirmation() {
    let mut holder = LeaseHolder::new(vec![grant(1, 20.0)], ASKED);
    holder.confirm(ASKED + 10 * S - 1);
    assert_eq!((outputs(&mut holder), holder.confirms_until_ns()), (vec![], None));
}
