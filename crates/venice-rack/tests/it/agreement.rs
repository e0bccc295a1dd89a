//! Whatever goes wrong on the way, in the end recipients, donors, the Monitor Node's table and its
//! store agree, and nothing is granted twice or leaks.

use crate::model;
use crate::model::world::World;
use crate::model::{
    DeviceOp, Fate, MONITORS, Op, Waits, op, op_of_several, op_with_quotas, op_with_waiting,
    op_with_waiting_for_devices,
};
use proptest::prelude::*;

/// Does all that, lets everybody come to rest, and looks whether they agree.
fn ends_in_agreement(mut world: World, ops: Vec<Op>) {
    for op in ops {
        world.apply(op);
    }
    world.calm_down();
    world.check_agreement();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn all_agree_when_quiet(ops in prop::collection::vec(op(), 1..250)) {
        ends_in_agreement(World::new(), ops);
    }

    /// Nor has a user ever more than its quota, however it is changed meanwhile.
    #[test]
    fn nobody_has_more_than_the_quota(ops in prop::collection::vec(op_with_quotas(), 1..300)) {
        let mut world = World::new();
        world.apply(Op::SetQuota(model::USERS.len(), Some(6)));
        ends_in_agreement(world, ops);
    }

    /// Nor does anybody wait in vain, out of turn, or without a word.
    #[test]
    fn who_waits_is_served_in_turn(ops in prop::collection::vec(op_with_waiting(), 1..300)) {
        ends_in_agreement(World::new(), ops);
    }

    /// Nor for a device, memory being waited for beside it.
    #[test]
    fn who_waits_for_a_device_is_served_in_turn(
        ops in prop::collection::vec(op_with_waiting_for_devices(), 1..350),
    ) {
        ends_in_agreement(World::new(), ops);
    }

    /// The same with several Monitor Nodes, each of which has a line of its own.
    #[test]
    fn who_waits_for_a_device_gets_one_whoever_was_asked(
        ops in prop::collection::vec(op_of_several(op_with_waiting_for_devices()), 1..450),
    ) {
        ends_in_agreement(World::with_monitors(MONITORS), ops);
    }

    /// The same with several Monitor Nodes, all of which serve.
    #[test]
    fn all_agree_when_quiet_whoever_was_asked(
        ops in prop::collection::vec(op_of_several(op()), 1..400),
    ) {
        ends_in_agreement(World::with_monitors(MONITORS), ops);
    }

    #[test]
    fn nobody_has_more_than_the_quota_whoever_was_asked(
        ops in prop::collection::vec(op_of_several(op_with_quotas()), 1..450),
    ) {
        let mut world = World::with_monitors(MONITORS);
        world.apply(Op::SetQuota(model::USERS.len(), Some(6)));
        ends_in_agreement(world, ops);
    }

    /// Nor is a link promised more than it carries.
    #[test]
    fn no_link_is_promised_too_much_whoever_was_asked(
        ops in prop::collection::vec(op_of_several(op_with_waiting()), 1..400),
    ) {
        ends_in_agreement(World::with_monitors(MONITORS).promising_bandwidth(), ops);
    }

    /// The same with quotas that change meanwhile.
    #[test]
    fn who_waits_has_no_more_than_the_quota(
        ops in prop::collection::vec(prop_oneof![op_with_waiting(), op_with_quotas()], 1..300),
    ) {
        let mut world = World::new();
        world.apply(Op::SetQuota(model::USERS.len(), Some(12)));
        ends_in_agreement(world, ops);
    }

    /// A crash of the Monitor Node or of a donor at every single step of one handshake.
    #[test]
    fn a_crash_at_any_step_leaks_nothing(
        steps in 0usize..24,
        donor in prop::option::of(0usize..model::DONORS),
        slabs in 1u32..24,
        fates in prop::collection::vec(prop_oneof![
            3 => Just(Fate::Answered),
            1 => Just(Fate::AnswerLost),
            1 => Just(Fate::Late),
        ], 24),
    ) {
        let mut world = World::new();
        world.apply(Op::Request { slabs, named: None });
        let mut all_answered = true;
        for (step, fate) in (0..steps).zip(fates) {
            all_answered &= matches!(fate, Fate::Answered);
            world.apply(if step % 2 == 0 { Op::Act } else { Op::Deliver(0, fate) });
        }
        match donor {
            Some(index) => world.apply(Op::KillDonor(index)),
            None => world.apply(Op::CrashMonitor),
        }
        world.calm_down();
        world.check_agreement();
        // What the first try has set aside may still be so when the second asks.
        if all_answered && slabs <= 8 {
            prop_assert_eq!(world.granted(), 1);
        }
    }
}

#[test]
fn without_trouble_everything_is_granted() {
    let mut world = World::new();
    for _ in 0..3 {
        world.apply(Op::Request { slabs: 8, named: None });
    }
    world.apply(Op::Request { slabs: 1, named: None });
    world.calm_down();
    world.check_agreement();
    assert_eq!(world.granted(), 3);
}

#[test]
fn every_device_is_granted_once() {
    let mut world = World::new();
    for _ in 0..=model::DONORS {
        for which in 0..model::world::DEVICES.len() {
            world.apply(Op::Device(DeviceOp::Get { which, units: 6, named: None, waits: None }));
        }
    }
    world.calm_down();
    world.check_agreement();
    assert_eq!(world.devices_granted(), model::DONORS * model::world::DEVICES.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// A crash of the Monitor Node or of a donor at every single step of a device's handshake.
    #[test]
    fn a_crash_at_any_step_leaks_no_device(
        steps in 0usize..16,
        which in 0..model::world::DEVICES.len(),
        donor in prop::option::of(0usize..model::DONORS),
        fates in prop::collection::vec(prop_oneof![
            3 => Just(Fate::Answered),
            1 => Just(Fate::AnswerLost),
            1 => Just(Fate::Late),
        ], 16),
    ) {
        let mut world = World::new();
        world.apply(Op::Device(DeviceOp::Get { which, units: 4, named: None, waits: None }));
        for (step, fate) in (0..steps).zip(fates) {
            world.apply(if step % 2 == 0 { Op::Act } else { Op::Deliver(0, fate) });
        }
        match donor {
            Some(index) => world.apply(Op::KillDonor(index)),
            None => world.apply(Op::CrashMonitor),
        }
        world.calm_down();
        world.check_agreement();
    }
}

#[test]
fn a_full_rack_is_waited_for_and_small_requests_pass_a_large_one_for_a_while() {
    let mut world = World::new();
    world.apply(Op::Request { slabs: 20, named: None });
    world.settle();
    let wait = |slabs, priority| Op::Wait {
        slabs,
        named: None,
        wait_ms: 25_000,
        priority,
        preempts: false,
    };
    world.apply(wait(8, 100));
    for _ in 0..6 {
        world.apply(wait(1, 99));
    }
    world.settle();
    assert_eq!((world.granted(), world.waited()), (5, (3, 4)), "four slabs were left to pass with");
    world.apply(Op::Release(0));
    world.calm_down();
    world.check_agreement();
    assert_eq!(world.granted(), 8);
}

#[test]
fn who_may_calls_grants_of_lower_priority_back_and_they_have_their_time() {
    let mut world = World::new();
    // Recipients 0 and 1 have all there is.
    world.apply(Op::Wait { slabs: 16, named: None, wait_ms: 1, priority: 50, preempts: false });
    world.apply(Op::Wait { slabs: 8, named: None, wait_ms: 1, priority: 90, preempts: false });
    world.settle();
    assert_eq!(world.granted(), 2);
    world.apply(Op::Wait { slabs: 4, named: None, wait_ms: 29_000, priority: 60, preempts: true });
    world.calm_down();
    world.check_agreement();
    assert!(world.called_back() > 0);
    assert_eq!(world.granted(), 3, "the first has given back, or lost, what was called back");
}

#[test]
fn a_device_is_waited_for_and_called_back_and_its_holder_has_its_time() {
    let get = |priority, preempts| {
        let waits = Some(Waits { wait_ms: 29_000, priority, preempts });
        Op::Device(DeviceOp::Get { which: 0, units: 1, named: Some(0), waits })
    };
    let mut world = World::new();
    world.apply(get(50, false));
    world.settle();
    assert_eq!(world.devices_granted(), 1);
    // Nobody is called back by who does not say so, nor by its own priority.
    world.apply(get(60, false));
    world.settle();
    world.apply(Op::Heartbeat(0));
    assert_eq!((world.devices_granted(), world.called_back(), world.waited().0), (1, 0, 1));
    world.apply(get(70, true));
    world.calm_down();
    world.check_agreement();
    assert!(world.called_back() > 0);
    assert_eq!(world.devices_granted(), 2, "the first has given back what was called back");
}

#[test]
fn who_is_asked_by_one_client_beside_two_others_does_not_break_their_handshakes_off_for_ever() {
    let mut world = World::with_monitors(MONITORS);
    for slabs in [1, 2] {
        world.apply(Op::Request { slabs, named: None });
    }
    for monitor in [0, 1] {
        world.apply(Op::Turn(monitor));
        world.apply(Op::AskAgain(1));
    }
    world.settle();
    world.calm_down();
    world.check_agreement();
    assert!(world.granted() >= 1);
}
