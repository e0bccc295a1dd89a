//! Quotas at the Monitor Node.

use super::{Rack, eight_slabs, granted, prepares, released, status};
use crate::common::owner;
use venice_rack::monitor::{Action, CallError, Kept, Token};
use venice_rack::monitor_node::Reply;
use venice_rack::quota::{Limits, OverQuota, QuotaFor, QuotaRecord};
use venice_rack::types::{AllocationRequest, RackError, ResourceKind, Want};
use venice_wire::SLAB_BYTES;

fn of_owner() -> QuotaFor {
    QuotaFor::User(owner().user)
}

impl Rack {
    fn allow(&mut self, of: QuotaFor, slabs: Option<u64>) -> Result<(), RackError> {
        let bytes = slabs.map(|slabs| slabs * SLAB_BYTES);
        self.core.handle_set_quota(
            Token(7),
            QuotaRecord { of, limits: Limits::of_memory(bytes) },
            "root@h",
        );
        done(self.actions())
    }

    /// Requests slabs, and returns the slabs in use and the quota if refused.
    fn ask_over(&mut self, client_id: u128, slabs: u64, copies: u32) -> Option<(u64, u64)> {
        let wants = vec![Want::memory(slabs * SLAB_BYTES, copies)];
        let request = AllocationRequest { wants, ..eight_slabs(client_id) };
        self.core.handle_request(0, owner(), request).unwrap();
        over(self.actions())
    }

    fn used_slabs(&self) -> u64 {
        self.core
            .quota_table()
            .users
            .first()
            .map_or(0, |row| row.used[&ResourceKind::Memory] / SLAB_BYTES)
    }
}

fn done(actions: Vec<Action>) -> Result<(), RackError> {
    let mut done = actions.into_iter().filter_map(|action| match action {
        Action::Reply(Token(7), Reply::Done(result)) => Some(result),
        _ => None,
    });
    done.next().expect("an answer")
}

fn over(actions: Vec<Action>) -> Option<(u64, u64)> {
    actions.into_iter().find_map(|action| match action {
        Action::ReplyRequest {
            result: Err(RackError::OverQuota(OverQuota { used, quota, .. })),
            ..
        } => Some((used / SLAB_BYTES, quota / SLAB_BYTES)),
        _ => None,
    })
}

#[test]
fn requested_copies_count_immediately() {
    let mut rack = Rack::new(&["node1", "node2"]);
    rack.allow(of_owner(), Some(6)).unwrap();
    assert_eq!(rack.ask_over(2, 7, 1), Some((0, 6)));
    assert_eq!(rack.ask_over(3, 4, 2), Some((0, 6)));
    assert_eq!(rack.ask_over(4, 2, 2), None);
    assert_eq!(rack.used_slabs(), 4, "before any donor has answered");
    assert_eq!(rack.ask_over(5, 3, 1), Some((4, 6)));
    assert_eq!(rack.ask_over(6, 2, 1), None);
    // The default does not apply to this user, and unlimited exceeds any limit.
    rack.allow(QuotaFor::Others, Some(0)).unwrap();
    assert_eq!(rack.ask_over(7, 1, 1), Some((6, 6)));
    rack.allow(of_owner(), None).unwrap();
    assert_eq!(rack.ask_over(8, 1, 1), None);
    rack.core.handle_remove_quota(Token(7), of_owner(), "root@h");
    done(rack.actions()).unwrap();
    assert_eq!(rack.ask_over(9, 1, 1), Some((7, 0)));
}

#[test]
fn lower_quota_keeps_grants() {
    let mut rack = Rack::new(&["node1"]);
    let (donor, grant) = rack.lend(2);
    rack.allow(of_owner(), Some(1)).unwrap();
    assert_eq!(rack.states(), ["committed"]);
    assert_eq!(rack.ask_over(9, 1, 1), Some((2, 1)));
    let again =
        AllocationRequest { wants: vec![Want::memory(2 * SLAB_BYTES, 1)], ..eight_slabs(1) };
    rack.core.handle_request(0, owner(), again).unwrap();
    assert_eq!(granted(rack.actions()).unwrap()[0].id, grant);
    rack.release(grant);
    assert_eq!(rack.used_slabs(), 2, "until the donor confirms");
    rack.core.handle_released(0, donor, &[grant], Ok(status(8, 3)));
    assert!(rack.actions().contains(&released(Kept::default())));
    assert_eq!(rack.ask_over(10, 1, 1), None);
}

#[test]
fn unanswered_share_still_counts() {
    let mut rack = Rack::new(&["node1", "node2"]);
    rack.allow(of_owner(), Some(8)).unwrap();
    rack.core.handle_request(0, owner(), eight_slabs(1)).unwrap();
    let asked = prepares(rack.actions());
    for (donor, request) in &asked {
        rack.core.handle_prepared(0, *donor, request.grant, Ok(status(4, 1)));
    }
    rack.actions();
    // One commit gets no answer: it may have been carried out.
    let (lost, kept) = (&asked[0], &asked[1]);
    rack.core.handle_committed(0, kept.0, kept.1.grant, Ok(status(4, 2)));
    rack.core.handle_committed(0, lost.0, lost.1.grant, Err(CallError::NoAnswer));
    assert_eq!(prepares(rack.actions()), [], "that would be more than eight");
    rack.core.handle_released(0, lost.0, &[lost.1.grant], Ok(status(8, 3)));
    let anew = prepares(rack.actions());
    assert_eq!(anew.iter().map(|(_, request)| request.share.slabs()).sum::<u32>(), 4);
}

#[test]
fn invalid_quotas_are_refused() {
    let mut rack = Rack::new(&["node1"]);
    let bad = |result: Result<(), RackError>, why: &str| match result {
        Err(RackError::BadRequest(text)) if text.contains(why) => {}
        other => panic!("{other:?}"),
    };
    bad(rack.allow(QuotaFor::Others, None), "remove the default instead");
    for name in ["", "a\nb", &"x".repeat(256)] {
        bad(rack.allow(QuotaFor::User(name.to_owned()), Some(1)), "control characters");
    }
    for (of, why) in [(of_owner(), "alice has no quota"), (QuotaFor::Others, "no default quota")] {
        rack.core.handle_remove_quota(Token(7), of, "root@h");
        bad(done(rack.actions()), why);
    }
}
