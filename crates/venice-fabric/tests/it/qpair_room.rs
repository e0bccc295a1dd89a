//! The room at a donor shared by answers and frames of QPairs.

use crate::world::{Donor, Faults, MS, RECIPIENT_ADDR, World};
use venice_fabric::{CreditMode, EndConfig, QPairConfig, QPairEvent, QPairId};
use venice_wire::MAX_FRAME_BYTES;

const SERVICE: u32 = 9;

/// A stream whose reader gives credit in band for each byte; its donor has ended its sending.
fn half_closed(world: &mut World) -> (QPairId, QPairId) {
    let end = EndConfig { credit_every_bytes: 1, ..EndConfig::default() };
    let config = QPairConfig { credit: CreditMode::InBand, end, ..QPairConfig::stream() };
    world.donors[0].target.qpairs_mut().listen(SERVICE, 4).unwrap();
    let near = world.initiator.qpair_connect(world.now_ns, world.peers[0], SERVICE, config);
    let near = near.unwrap();
    world.run_for(10 * MS);
    let qpairs = world.donors[0].target.qpairs_mut();
    let Some(QPairEvent::Incoming { qpair: far, .. }) = qpairs.poll_event() else {
        panic!("no QPair was requested");
    };
    qpairs.accept(far, end).unwrap();
    qpairs.shutdown(far).unwrap();
    world.run_for(10 * MS);
    (near, far)
}

/// Delivers all frames of the recipient to the donor.
fn send_all(world: &mut World) {
    let mut buf = [0; MAX_FRAME_BYTES];
    let World { now_ns, initiator, donors, .. } = world;
    while let Some((_, len)) = initiator.poll_transmit(*now_ns, &mut buf) {
        let Donor { target, memory, .. } = &mut donors[0];
        target.handle_frame(*now_ns, RECIPIENT_ADDR, &buf[..len], memory);
    }
}

/// Delivers all frames of the donor that are not lost.
fn answer_all(world: &mut World, is_lost: impl Fn(usize) -> bool) {
    let mut buf = [0; MAX_FRAME_BYTES];
    for n in 0.. {
        let sent = world.donors[0].target.poll_transmit(world.now_ns, &mut buf);
        let Some((_, len)) = sent else { return };
        if !is_lost(n) {
            world.initiator.handle_frame(world.now_ns, world.peers[0], &buf[..len]);
        }
    }
}

/// Issues as many more reads as are accepted, with tokens from `first` on.
fn read_more(world: &mut World, first: u64) -> u64 {
    let World { now_ns, initiator, .. } = world;
    (first..).take_while(|&token| initiator.read(*now_ns, token, 0, 8).is_ok()).count() as u64
}

fn overruns(world: &World) -> u64 {
    world.donors[0].target.link_stats().map(|(_, _, stats)| stats.overruns).sum()
}

/// In a window of four, three reads are allowed beside a QPair. The first of their answers is lost.
/// Then the recipient sends its last bytes, and ends: for it the QPair is over. The donor still
/// gives credit for these bytes, which takes up room.
#[test]
fn closed_qpair_keeps_room_until_answered() {
    let mut world = World::new(7, 1, 4, Faults::default());
    let (near, far) = half_closed(&mut world);
    assert_eq!(read_more(&mut world, 0), 3);
    send_all(&mut world);
    answer_all(&mut world, |n| n == 0);

    let qpairs = world.initiator.qpairs_mut();
    qpairs.write(world.now_ns, near, b"last words").unwrap();
    send_all(&mut world);
    let mut buf = [0; 64];
    assert_eq!(world.donors[0].target.qpairs_mut().read(far, &mut buf), Ok(10));
    answer_all(&mut world, |_| true);
    world.initiator.qpairs_mut().shutdown(near).unwrap();
    send_all(&mut world);
    let taken = 3 + read_more(&mut world, 3);
    send_all(&mut world);
    assert_eq!((overruns(&world), taken), (0, 3));

    world.run_until(|world| world.done.len() as u64 == taken);
    assert_eq!(read_more(&mut world, taken), 3, "the donor may still send for the QPair");
    world.run_for(10 * MS);
    assert_eq!(read_more(&mut world, taken + 3), 4, "now it is");
    world.run_for(10 * MS);
    assert_eq!((overruns(&world), world.done.len() as u64), (0, taken + 7));
}
