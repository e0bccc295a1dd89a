//! QPairs and the death of their owners: no side hangs, and nothing of an old session is accepted
//! in the new one.

use crate::world::{self, Faults, MS, SECOND, World};
use proptest::prelude::*;
use venice_fabric::{
    CloseReason, CreditMode, DownReason, EndConfig, LinkConfig, PeerState, QPairConfig, QPairError,
    QPairEvent, QPairId, QPairs,
};

const SERVICE: u32 = 3;
/// First byte of every message of the old session, and of the new.
const OLD: u8 = 0xaa;
const NEW: u8 = 0xbb;

prop_compose! {
    fn any_faults()(
        lost in prop_oneof![Just(0), Just(20), Just(200)],
        repeated in prop_oneof![Just(0), Just(200)],
        delayed in prop_oneof![Just(0), Just(500)],
        stale in prop_oneof![Just(0), Just(300)],
    ) -> Faults {
        Faults { lost, repeated, delayed, damaged: 0, stale }
    }
}

/// Accepts all requests at the donor.
fn accept_all(world: &mut World) {
    let qpairs = world.donors[0].target.qpairs_mut();
    while let Some(event) = qpairs.poll_event() {
        if let QPairEvent::Incoming { qpair, .. } = event {
            // It may have been given up in the meantime.
            let _ = qpairs.accept(qpair, EndConfig::default());
        }
    }
}

fn connect(world: &mut World, credit: CreditMode) -> QPairId {
    let config = QPairConfig { credit, ..QPairConfig::messages() };
    world.initiator.qpair_connect(world.now_ns, world.peers[0], SERVICE, config).unwrap()
}

fn run(world: &mut World, steps: u64) {
    for _ in 0..steps {
        world.step();
        accept_all(world);
    }
}

/// Sends messages of all lengths until there is no more room.
fn send_all(world: &mut World, qpair: QPairId, first: u8) {
    for n in 0..50usize {
        let message = vec![first; 1 + n * 97];
        let _ = world.initiator.qpairs_mut().send(world.now_ns, qpair, &message);
    }
}

fn read_all(qpairs: &mut QPairs, ids: &[QPairId], first: u8) -> usize {
    let mut buf = vec![0; 1 << 16];
    let mut messages = 0;
    for &id in ids {
        while let Ok(len @ 1..) = qpairs.recv(id, &mut buf) {
            assert!(buf[..len].iter().all(|&byte| byte == first), "of another session");
            messages += 1;
        }
    }
    messages
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn restarted_donor_ends_old_qpairs(
        seed in any::<u64>(),
        faults in any_faults(),
        is_in_band in any::<bool>(),
        steps in 0..200u64,
    ) {
        let credit = if is_in_band { CreditMode::InBand } else { CreditMode::CrmaWrite };
        let mut world = World::new(seed, 1, 8, faults);
        world.donors[0].target.qpairs_mut().listen(SERVICE, 8).unwrap();
        let old: Vec<_> = (0..3).map(|_| connect(&mut world, credit)).collect();
        run(&mut world, steps);
        old.iter().for_each(|&qpair| send_all(&mut world, qpair, OLD));
        run(&mut world, steps / 4);
        world.run_until(|world| world.initiator.peer_state(world.peers[0]) == PeerState::Up);
        world.restart_donor(0);
        world.donors[0].target.qpairs_mut().listen(SERVICE, 8).unwrap();
        let reason = DownReason::Restarted;
        let down = PeerState::Down { reason };
        world.run_until(|world| world.initiator.peer_state(world.peers[0]) == down);
        for &qpair in &old {
            let closed = QPairError::Closed(CloseReason::LinkDown(reason));
            let refused = world.initiator.qpairs_mut().send(world.now_ns, qpair, &[OLD]);
            prop_assert_eq!(refused, Err(closed));
            world.initiator.qpairs_mut().close(qpair);
        }
        prop_assert_eq!(world.initiator.qpairs().count(), 0);
        world.peers[0] = world.initiator.add_peer(world::donor_node(0), world.now_ns);
        let new = connect(&mut world, credit);
        let mut far = Vec::new();
        let mut arrived = 0;
        let give_up_ns = world.now_ns + 600 * SECOND;
        while arrived == 0 {
            prop_assert!(world.now_ns < give_up_ns, "10 virtual minutes and nothing arrived");
            send_all(&mut world, new, NEW);
            world.run_for(20 * MS);
            let qpairs = world.donors[0].target.qpairs_mut();
            while let Some(event) = qpairs.poll_event() {
                if let QPairEvent::Incoming { qpair, .. } = event {
                    qpairs.accept(qpair, EndConfig::default()).unwrap();
                    far.push(qpair);
                }
            }
            arrived += read_all(qpairs, &far, NEW);
        }
        prop_assert_eq!(far.len(), 1, "the new one, and none of the old");
    }

    #[test]
    fn restarted_recipient_ends_old_qpairs(
        seed in any::<u64>(),
        faults in any_faults(),
        is_in_band in any::<bool>(),
        steps in 0..200u64,
    ) {
        let credit = if is_in_band { CreditMode::InBand } else { CreditMode::CrmaWrite };
        let mut world = World::new(seed, 1, 8, faults);
        world.donors[0].target.qpairs_mut().listen(SERVICE, 8).unwrap();
        let old: Vec<_> = (0..3).map(|_| connect(&mut world, credit)).collect();
        run(&mut world, steps);
        old.iter().for_each(|&qpair| send_all(&mut world, qpair, OLD));
        run(&mut world, steps / 4);
        let donor = &mut world.donors[0].target;
        while donor.qpairs_mut().poll_event().is_some() {}
        let before = donor.qpairs().count();
        world.restart_initiator();
        let new = connect(&mut world, credit);
        let (mut far, mut ended, mut arrived) = (Vec::new(), 0, 0);
        let give_up_ns = world.now_ns + 600 * SECOND;
        while arrived == 0 {
            prop_assert!(world.now_ns < give_up_ns, "10 virtual minutes and nothing arrived");
            send_all(&mut world, new, NEW);
            world.run_for(20 * MS);
            let qpairs = world.donors[0].target.qpairs_mut();
            while let Some(event) = qpairs.poll_event() {
                match event {
                    QPairEvent::Incoming { qpair, .. } => {
                        far.push(qpair);
                        let _ = qpairs.accept(qpair, EndConfig::default());
                    }
                    QPairEvent::Closed { qpair, reason } => {
                        prop_assert_eq!(reason, CloseReason::LinkDown(DownReason::Restarted));
                        ended += 1;
                        far.retain(|&other| other != qpair);
                        qpairs.close(qpair);
                    }
                    _ => {}
                }
            }
            arrived += read_all(qpairs, &far, NEW);
        }
        prop_assert!(ended >= before, "the ends of the old session were notified");
        prop_assert_eq!(world.donors[0].target.qpairs().count(), 1);
    }
}

/// The donor's side must detect the death of a recipient itself: it is not restarted.
#[test]
fn dead_recipient_is_detected_by_qpairs() {
    let mut world = World::with_link(5, 1, LinkConfig::default(), Faults::default());
    world.donors[0].target.qpairs_mut().listen(SERVICE, 1).unwrap();
    let near = connect(&mut world, CreditMode::CrmaWrite);
    world.run_for(20 * MS);
    accept_all(&mut world);
    world.run_for(10 * SECOND);
    let connected = QPairEvent::Connected { qpair: near };
    assert_eq!(world.initiator.qpairs_mut().poll_event(), Some(connected));
    assert_eq!(world.donors[0].target.qpairs_mut().poll_event(), None, "alive and idle");
    world.network.faults.lost = 1000;
    let cut_ns = world.now_ns;
    let told = loop {
        assert!(world.step(), "nothing left to happen");
        if let Some(event) = world.donors[0].target.qpairs_mut().poll_event() {
            break event;
        }
    };
    let reason = CloseReason::LinkDown(DownReason::Silent);
    assert!(matches!(told, QPairEvent::Closed { reason: told, .. } if told == reason), "{told:?}");
    assert!(world.now_ns - cut_ns < 3 * SECOND, "{} ns", world.now_ns - cut_ns);
}

/// A donor that was stopped for a while must keep its QPairs: its clock jumps, others were awake.
#[test]
fn stopped_donor_keeps_qpairs() {
    let mut world = World::with_link(6, 1, LinkConfig::default(), Faults::default());
    world.donors[0].target.qpairs_mut().listen(SERVICE, 1).unwrap();
    connect(&mut world, CreditMode::CrmaWrite);
    world.run_for(20 * MS);
    accept_all(&mut world);
    world.run_for(SECOND);
    world.now_ns += 20 * SECOND;
    world.donors[0].target.handle_timeout(world.now_ns);
    world.run_for(SECOND);
    assert_eq!(world.donors[0].target.qpairs_mut().poll_event(), None);
    assert_eq!(world.donors[0].target.qpairs().count(), 1);
}
