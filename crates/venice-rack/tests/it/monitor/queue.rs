//! The queue, and preemption for it.

use super::{Rack, eight_slabs, prepares};
use crate::common::owner;
use venice_rack::caller::Owner;
use venice_rack::monitor::Action;
use venice_rack::queueing::{Preempt, Queueing};
use venice_rack::types::{
    AllocationRequest, DonorReport, DonorStatus, HeartbeatReport, HeldGrant, HeldState, Identity,
    PortReport, RackError, Want,
};
use venice_wire::{GrantId, SLAB_BYTES};

impl Rack {
    /// Lends all of it at that node, which then has this many slabs free.
    fn lend_at(&mut self, node: &str, slabs: u64, priority: u8, free_slabs: u32) -> GrantId {
        self.lend_at_to(owner(), (node, slabs, priority, free_slabs))
    }

    fn lend_at_to(
        &mut self,
        owner: Owner,
        (node, slabs, priority, free_slabs): (&str, u64, u8, u32),
    ) -> GrantId {
        let client_id = 100 + u128::from(priority) * 8 + u128::from(slabs);
        let queueing = Queueing { priority, ..Queueing::default() };
        let wants = vec![Want::memory(slabs * SLAB_BYTES, 1)];
        let donors = vec![node.to_owned()];
        let request = AllocationRequest { wants, donors, queueing, ..eight_slabs(client_id) };
        self.core.handle_request(0, owner, request).unwrap();
        let (donor, request) = prepares(self.actions()).remove(0);
        let status = |revision| DonorStatus { total_slabs: 8, free_slabs, revision };
        let revision = 100 - u64::from(free_slabs);
        self.core.handle_prepared(0, donor, request.grant, Ok(status(revision)));
        self.core.handle_committed(0, donor, request.grant, Ok(status(revision)));
        self.actions();
        request.grant
    }

    fn wait(&mut self, owner: Owner, slabs: u64, preempt: Preempt) -> Vec<Action> {
        let queueing = Queueing { wait_ms: 60_000, preempt, ..Queueing::default() };
        let request = AllocationRequest {
            wants: vec![Want::memory(slabs * SLAB_BYTES, 1)],
            donors: vec!["node1".into()],
            queueing,
            ..eight_slabs(7)
        };
        self.core.handle_request(0, owner, request).unwrap();
        self.actions()
    }

    fn leave(&mut self, owner: &Owner) {
        self.core.handle_leave(0, owner, 7).unwrap();
        self.actions();
    }

    /// Returns the preempted grants in the heartbeat answer to the first node, which has these
    /// grants.
    fn called_back(&mut self, held: &[(GrantId, u32)]) -> Vec<GrantId> {
        let identity = Identity { node: venice_wire::NodeId(1), epoch: 1 };
        let lent: u32 = held.iter().map(|(_, slabs)| slabs).sum();
        let status = DonorStatus { total_slabs: 8, free_slabs: 8 - lent, revision: 200 };
        let of = |(id, slabs): &(GrantId, u32)| HeldGrant {
            ownership: 1,
            state: HeldState::Committed,
            ..super::held_of(*id, *slabs)
        };
        let memory =
            DonorReport { status, held: held.iter().map(of).collect(), ..Default::default() };
        let report = HeartbeatReport {
            usage: Vec::new(),
            peers_version: 0,
            door: Default::default(),
            identity,
            instance: 1,
            memory,
            links: vec![],
            port: PortReport::default(),
            pressure: Default::default(),
        };
        let ack = self.core.handle_heartbeat(0, report).unwrap();
        ack.called_back.into_iter().map(|called| called.grant).collect()
    }
}

#[test]
fn preemption_takes_least_and_lowest() {
    let mut rack = Rack::new(&["node1"]);
    let large = rack.lend_at("node1", 4, 50, 4);
    let small = rack.lend_at("node1", 2, 50, 2);
    let lowest = rack.lend_at("node1", 1, 40, 1);
    let held = [(large, 4), (small, 2), (lowest, 1)];
    let stranger = Owner { user: "mallory".into(), ..owner() };

    rack.wait(owner(), 3, Preempt::No);
    assert_eq!(rack.called_back(&held), []);
    rack.leave(&owner());
    rack.wait(stranger.clone(), 3, Preempt::Own);
    assert_eq!(rack.called_back(&held), [], "they are not its own");
    rack.leave(&stranger);

    rack.wait(owner(), 2, Preempt::Own);
    assert_eq!(rack.called_back(&held), [lowest], "one slab is free");
    rack.leave(&owner());
    assert_eq!(rack.called_back(&held), [], "no request needs it any more");
    rack.wait(stranger.clone(), 3, Preempt::All);
    assert_eq!(rack.called_back(&held), [small], "which makes the lowest unnecessary");
    rack.leave(&stranger);
    rack.wait(stranger, 8, Preempt::All);
    assert_eq!(rack.called_back(&held), [large, small, lowest]);
}

#[test]
fn own_bound_grant_is_not_preempted() {
    let mut rack = Rack::new(&["node1"]);
    let bound = Owner { is_bound: true, ..owner() };
    let grant = rack.lend_at_to(bound, ("node1", 4, 50, 4));
    rack.wait(owner(), 6, Preempt::Own);
    assert_eq!(rack.called_back(&[(grant, 4)]), []);
    rack.leave(&owner());
    rack.wait(owner(), 6, Preempt::All);
    assert_eq!(rack.called_back(&[(grant, 4)]), [grant], "root may");
}

#[test]
fn insufficient_preemption_is_skipped() {
    let mut rack = Rack::new(&["node1"]);
    let dear = rack.lend_at("node1", 4, 100, 4);
    let cheap = rack.lend_at("node1", 3, 50, 1);
    let held = [(dear, 4), (cheap, 3)];
    rack.wait(owner(), 5, Preempt::All);
    assert_eq!(rack.called_back(&held), [], "it would not suffice");
    rack.leave(&owner());
    rack.wait(owner(), 4, Preempt::All);
    assert_eq!(rack.called_back(&held), [cheap]);
    // Returned memory goes to the request that preempted it.
    rack.core
        .handle_request(
            0,
            owner(),
            AllocationRequest { wants: vec![Want::memory(1, 1)], ..eight_slabs(9) },
        )
        .unwrap();
    let refused = super::granted(rack.actions()).unwrap_err();
    assert!(
        matches!(&refused, RackError::NoRoom { line, .. } if line.before.len() == 1),
        "{refused}"
    );
}

#[test]
fn adopted_grant_keeps_priority() {
    let mut rack = Rack::new(&["node1"]);
    let (cheap, dear) = (GrantId(700), GrantId(701));
    let held = [(cheap, 40), (dear, 100)]
        .map(|(id, priority)| HeldGrant { priority, ..super::held_of(id, 4) });
    let donor = Identity { node: venice_wire::NodeId(1), epoch: 1 };
    let status = DonorStatus { total_slabs: 8, free_slabs: 0, revision: 5 };
    rack.heartbeat(0, donor, DonorReport { status, held: held.to_vec(), devices: vec![] });
    let rows = rack.core.grant_rows(0);
    assert_eq!(rows.iter().map(|row| row.priority).collect::<Vec<_>>(), [40, 100]);
    rack.wait(owner(), 4, Preempt::All);
    assert_eq!(rack.called_back(&[(cheap, 4), (dear, 4)]), [cheap]);
}
