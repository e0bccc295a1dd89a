//! QPairs: creation, transfer and end.

use crate::world::{self, Faults, MS, RECIPIENT_ADDR, SECOND, World};
use venice_fabric::{
    CloseReason, CreditMode, DownReason, EndConfig, QPairConfig, QPairError, QPairEvent, QPairId,
    QPairKind, RejectReason,
};

const SERVICE: u32 = 9;

fn world() -> World {
    let mut world = World::new(1, 1, 16, Faults::default());
    world.donors[0].target.qpairs_mut().listen(SERVICE, 4).unwrap();
    world
}

fn donor_event(world: &mut World) -> Option<QPairEvent> {
    world.donors[0].target.qpairs_mut().poll_event()
}

fn own_event(world: &mut World) -> Option<QPairEvent> {
    world.initiator.qpairs_mut().poll_event()
}

/// A QPair from the recipient to the donor: its two ends.
fn connect(world: &mut World, config: QPairConfig) -> (QPairId, QPairId) {
    let near = world.initiator.qpair_connect(world.now_ns, world.peers[0], SERVICE, config);
    let near = near.unwrap();
    world.run_for(10 * MS);
    let Some(QPairEvent::Incoming { qpair: far, service, node, kind }) = donor_event(world) else {
        panic!("no QPair was requested");
    };
    assert_eq!((service, node, kind), (SERVICE, world::RECIPIENT, config.kind));
    world.donors[0].target.qpairs_mut().accept(far, config.end).unwrap();
    world.run_for(10 * MS);
    assert_eq!(own_event(world), Some(QPairEvent::Connected { qpair: near }));
    (near, far)
}

#[test]
fn messages_flow_both_ways_in_order() {
    for credit in [CreditMode::CrmaWrite, CreditMode::InBand] {
        let mut world = world();
        let config = QPairConfig { credit, ..QPairConfig::messages() };
        let (near, far) = connect(&mut world, config);
        let mut buf = vec![0; 200_000];
        let messages: Vec<Vec<u8>> =
            [1usize, 5000, 3, 100_000].iter().map(|&len| vec![len as u8; len]).collect();
        for message in &messages {
            world.initiator.qpairs_mut().send(world.now_ns, near, message).unwrap();
            let back = world.donors[0].target.qpairs_mut();
            back.send(world.now_ns, far, message).unwrap();
        }
        world.run_for(10 * MS);
        assert_eq!(donor_event(&mut world), Some(QPairEvent::Readable { qpair: far }));
        assert_eq!(own_event(&mut world), Some(QPairEvent::Readable { qpair: near }));
        for message in &messages {
            let len = world.initiator.qpairs_mut().recv(near, &mut buf).unwrap();
            assert!(buf[..len] == message[..]);
            let len = world.donors[0].target.qpairs_mut().recv(far, &mut buf).unwrap();
            assert!(buf[..len] == message[..]);
        }
        let empty = world.initiator.qpairs_mut().recv(near, &mut buf);
        assert_eq!(empty, Err(QPairError::WouldBlock));
    }
}

#[test]
fn donor_connects_to_recipient() {
    let mut world = world();
    world.initiator.qpairs_mut().listen(SERVICE, 1).unwrap();
    let target = &mut world.donors[0].target;
    let early = target.qpair_connect(world.now_ns, RECIPIENT_ADDR, SERVICE, QPairConfig::stream());
    assert_eq!(early, Err(QPairError::NoLink));
    world.run_for(10 * MS);
    let target = &mut world.donors[0].target;
    let far =
        target.qpair_connect(world.now_ns, RECIPIENT_ADDR, SERVICE, QPairConfig::stream()).unwrap();
    world.run_for(10 * MS);
    let Some(QPairEvent::Incoming { qpair: near, kind: QPairKind::Stream, .. }) =
        own_event(&mut world)
    else {
        panic!("no QPair was requested");
    };
    world.initiator.qpairs_mut().accept(near, EndConfig::default()).unwrap();
    assert_eq!(world.initiator.qpairs_mut().write(world.now_ns, near, b"a stream").unwrap(), 8);
    world.run_for(10 * MS);
    assert_eq!(donor_event(&mut world), Some(QPairEvent::Connected { qpair: far }));
    let mut buf = [0; 5];
    let qpairs = world.donors[0].target.qpairs_mut();
    assert_eq!((qpairs.read(far, &mut buf), buf), (Ok(5), *b"a str"));
    assert_eq!((qpairs.read(far, &mut buf), &buf[..3]), (Ok(3), &b"eam"[..]));
}

#[test]
fn connect_reports_reject_reason() {
    let mut world = world();
    let ask = |world: &mut World, service| {
        let (now_ns, peer) = (world.now_ns, world.peers[0]);
        world.initiator.qpair_connect(now_ns, peer, service, QPairConfig::messages()).unwrap()
    };
    let refused =
        |qpair, reason| Some(QPairEvent::Closed { qpair, reason: CloseReason::Refused(reason) });
    let nobody = ask(&mut world, 1);
    world.run_for(10 * MS);
    assert_eq!(own_event(&mut world), refused(nobody, RejectReason::NoListener));
    let asking: Vec<_> = (0..5).map(|_| ask(&mut world, SERVICE)).collect();
    world.run_for(10 * MS);
    assert_eq!(own_event(&mut world), refused(asking[4], RejectReason::BacklogFull));
    let Some(QPairEvent::Incoming { qpair, .. }) = donor_event(&mut world) else { panic!() };
    world.donors[0].target.qpairs_mut().refuse(qpair).unwrap();
    world.run_for(10 * MS);
    assert_eq!(own_event(&mut world), refused(asking[0], RejectReason::Declined));
    world.donors[0].target.qpairs_mut().unlisten(SERVICE);
    world.run_for(10 * MS);
    for qpair in &asking[1..4] {
        assert_eq!(own_event(&mut world), refused(*qpair, RejectReason::NoListener));
    }
    for qpair in asking.into_iter().chain([nobody]) {
        world.initiator.qpairs_mut().close(qpair);
    }
    assert_eq!(world.initiator.qpairs().count(), 0);
    assert_eq!(world.donors[0].target.qpairs().count(), 0);
}

/// Requests that waited for an earlier listener do not count for the next one, even if their
/// answers are sent late.
#[test]
fn relisten_resets_backlog() {
    let mut world = world();
    let ask = |world: &mut World| {
        let (now_ns, peer) = (world.now_ns, world.peers[0]);
        world.initiator.qpair_connect(now_ns, peer, SERVICE, QPairConfig::messages()).unwrap();
    };
    (0..4).for_each(|_| ask(&mut world));
    world.run_for(10 * MS);
    (0..2).for_each(|_| ask(&mut world));
    world.transmit();
    let qpairs = world.donors[0].target.qpairs_mut();
    qpairs.unlisten(SERVICE);
    qpairs.listen(SERVICE, 2).unwrap();
    world.now_ns += MS;
    world.deliver();
    world.run_for(10 * MS);
    (0..2).for_each(|_| ask(&mut world));
    world.run_for(10 * MS);
    let told: Vec<_> = std::iter::from_fn(|| own_event(&mut world)).collect();
    let refused = |told: &QPairEvent, with| matches!(told, QPairEvent::Closed { reason: CloseReason::Refused(reason), .. } if *reason == with);
    let count = |with| told.iter().filter(|event| refused(event, with)).count();
    assert_eq!((count(RejectReason::NoListener), count(RejectReason::BacklogFull)), (4, 2));
}

#[test]
fn half_close_keeps_other_direction() {
    let mut world = world();
    let (near, far) = connect(&mut world, QPairConfig::messages());
    world.initiator.qpairs_mut().send(world.now_ns, near, b"last words").unwrap();
    world.initiator.qpairs_mut().shutdown(near).unwrap();
    let late = world.initiator.qpairs_mut().send(world.now_ns, near, b"too late");
    assert_eq!(late, Err(QPairError::Ended));
    world.run_for(10 * MS);
    assert_eq!(donor_event(&mut world), Some(QPairEvent::Readable { qpair: far }));
    let mut buf = [0; 64];
    let qpairs = world.donors[0].target.qpairs_mut();
    assert_eq!(qpairs.recv(far, &mut buf), Ok(10));
    assert_eq!(qpairs.recv(far, &mut buf), Ok(0), "the end");
    qpairs.send(world.now_ns, far, b"answer").unwrap();
    qpairs.shutdown(far).unwrap();
    world.run_for(10 * MS);
    assert_eq!(own_event(&mut world), Some(QPairEvent::Readable { qpair: near }));
    let finished = |qpair| Some(QPairEvent::Closed { qpair, reason: CloseReason::Finished });
    assert_eq!(own_event(&mut world), finished(near));
    assert_eq!(donor_event(&mut world), finished(far));
    assert_eq!(world.initiator.qpairs_mut().recv(near, &mut buf), Ok(6), "it can still be read");
    world.initiator.qpairs_mut().close(near);
    world.donors[0].target.qpairs_mut().close(far);
    assert_eq!((world.initiator.qpairs().count(), world.donors[0].target.qpairs().count()), (0, 0));
}

#[test]
fn close_delivers_sent_messages() {
    let mut world = world();
    let (near, far) = connect(&mut world, QPairConfig::messages());
    world.donors[0].target.qpairs_mut().send(world.now_ns, far, b"for nobody").unwrap();
    world.initiator.qpairs_mut().send(world.now_ns, near, b"last words").unwrap();
    world.initiator.qpairs_mut().close(near);
    assert_eq!(world.initiator.qpairs_mut().close(near), (), "twice is once");
    world.run_for(10 * MS);
    assert_eq!(donor_event(&mut world), Some(QPairEvent::Readable { qpair: far }));
    let closed = QPairEvent::Closed { qpair: far, reason: CloseReason::PeerClosed };
    assert_eq!(donor_event(&mut world), Some(closed));
    let qpairs = world.donors[0].target.qpairs_mut();
    let mut buf = [0; 64];
    assert_eq!(qpairs.recv(far, &mut buf), Ok(10));
    assert_eq!(qpairs.recv(far, &mut buf), Ok(0));
    let refused = qpairs.send(world.now_ns, far, b"hm");
    assert_eq!(refused, Err(QPairError::Closed(CloseReason::PeerClosed)));
    qpairs.close(far);
    world.run_for(10 * MS);
    assert_eq!((world.initiator.qpairs().count(), world.donors[0].target.qpairs().count()), (0, 0));
}

#[test]
fn abort_drops_all_data() {
    let mut world = world();
    let (near, far) = connect(&mut world, QPairConfig::messages());
    world.initiator.qpairs_mut().send(world.now_ns, near, b"never read").unwrap();
    world.initiator.qpairs_mut().abort(near);
    world.run_for(10 * MS);
    let aborted = QPairEvent::Closed { qpair: far, reason: CloseReason::PeerAborted };
    assert_eq!(donor_event(&mut world), Some(aborted));
    let qpairs = world.donors[0].target.qpairs_mut();
    let read = qpairs.recv(far, &mut [0; 64]);
    assert_eq!(read, Err(QPairError::Closed(CloseReason::PeerAborted)));
    qpairs.close(far);
    assert_eq!((world.initiator.qpairs().count(), world.donors[0].target.qpairs().count()), (0, 0));
}

#[test]
fn link_down_closes_qpairs() {
    let mut world = world();
    let (near, far) = connect(&mut world, QPairConfig::messages());
    world.initiator.close_peer(world.peers[0]);
    world.run_for(SECOND);
    let down =
        |qpair, reason| Some(QPairEvent::Closed { qpair, reason: CloseReason::LinkDown(reason) });
    assert_eq!(own_event(&mut world), down(near, DownReason::Closed));
    assert_eq!(donor_event(&mut world), down(far, DownReason::LinkLost));
}

#[test]
fn slow_reader_blocks_only_its_sender() {
    for credit in [CreditMode::CrmaWrite, CreditMode::InBand] {
        let mut world = world();
        let end = EndConfig { send_bytes: 8 << 10, recv_bytes: 8 << 10, ..EndConfig::default() };
        let config = QPairConfig { credit, end, ..QPairConfig::messages() };
        let (slow, slow_far) = connect(&mut world, config);
        let (quick, quick_far) = connect(&mut world, config);
        let mut sent = 0;
        for _ in 0..100 {
            if world.initiator.qpairs_mut().send(world.now_ns, slow, &[7; 1000]).is_ok() {
                sent += 1;
            }
            world.run_for(MS);
        }
        assert_eq!(sent, 16, "what both buffers hold");
        world.initiator.qpairs_mut().send(world.now_ns, quick, b"hello").unwrap();
        world.initiator.write(world.now_ns, 1, 0, &[1; 64]).unwrap();
        world.run_for(10 * MS);
        assert!(world.done.contains_key(&1), "accesses go on");
        let mut buf = [0; 1000];
        let qpairs = world.donors[0].target.qpairs_mut();
        assert_eq!(qpairs.recv(quick_far, &mut buf), Ok(5));
        for _ in 0..sent {
            while world.donors[0].target.qpairs_mut().recv(slow_far, &mut buf) != Ok(1000) {
                world.run_for(MS);
            }
        }
        let writable = QPairEvent::Writable { qpair: slow };
        assert!(std::iter::from_fn(|| own_event(&mut world)).any(|event| event == writable));
    }
}

/// A written credit is not replayed by the link: a starved sender probes for it.
#[test]
fn lost_credit_is_probed() {
    let mut world = world();
    let end = EndConfig { send_bytes: 4096, recv_bytes: 4096, ..EndConfig::default() };
    let (near, far) = connect(&mut world, QPairConfig { end, ..QPairConfig::messages() });
    while world.initiator.qpairs_mut().send(world.now_ns, near, &[1; 1000]).is_ok() {
        world.run_for(MS);
    }
    let mut buf = [0; 1000];
    while world.donors[0].target.qpairs_mut().recv(far, &mut buf).is_ok() {}
    world.network.faults.lost = 1000;
    world.transmit();
    world.network.faults.lost = 0;
    world.run_for(SECOND);
    assert!(world.initiator.qpairs().stats(near).unwrap().probes_sent > 0);
    let mut more = 0;
    while world.donors[0].target.qpairs_mut().recv(far, &mut buf).is_ok() {
        more += 1;
    }
    assert!(more > 1, "{more} went on");
}

/// Each channel is saturated all the time, and each progresses.
#[test]
fn channels_do_not_starve_each_other() {
    for window in [4, 16, 64] {
        let mut world = World::new(1, 1, window, Faults::default());
        world.donors[0].target.qpairs_mut().listen(SERVICE, 4).unwrap();
        let pairs: Vec<_> = (0..3).map(|_| connect(&mut world, QPairConfig::messages())).collect();
        let (mut token, mut there, mut back) = (0, [0; 3], [0; 3]);
        let (mut singles, mut bulk_bytes) = (0, 0);
        let end_ns = world.now_ns + 10 * MS;
        while world.now_ns < end_ns {
            for _ in 0..8 {
                let _ = world.initiator.rdma_write(world.now_ns, 1, 4096, vec![0; 50_000]);
            }
            while world.initiator.write(world.now_ns, token, 0, &[1; 2048]).is_ok() {
                token += 1;
            }
            let mut buf = [0; 4000];
            for (n, &(near, far)) in pairs.iter().enumerate() {
                while world.initiator.qpairs_mut().send(world.now_ns, near, &buf).is_ok() {}
                while world.initiator.qpairs_mut().recv(near, &mut buf).is_ok() {
                    back[n] += 1;
                }
                let qpairs = world.donors[0].target.qpairs_mut();
                while qpairs.send(world.now_ns, far, &buf).is_ok() {}
                while qpairs.recv(far, &mut buf).is_ok() {
                    there[n] += 1;
                }
            }
            world.transmit();
            world.now_ns += 10 * world::US;
            world.deliver();
            while world.initiator.poll_completion().is_some() {
                singles += 1;
            }
            while let Some(done) = world.initiator.poll_rdma_completion() {
                bulk_bytes += done.buffer.len();
            }
        }
        let frames = [singles, bulk_bytes / 4096, there.iter().sum(), back.iter().sum()];
        let most = frames.iter().max().unwrap();
        assert!(frames.iter().all(|count| count * 8 > *most), "{window}: {frames:?}");
        for ways in [there, back] {
            let spread = ways.iter().max().unwrap() - ways.iter().min().unwrap();
            assert!(spread <= 128, "{window}: {ways:?}, what the buffers hold apart");
        }
    }
}

#[test]
fn smallest_window_carries_all_channels() {
    for window in 1..=4 {
        let mut world = World::new(5, 1, window, Faults::default());
        world.run_for(10 * MS);
        world.donors[0].target.qpairs_mut().listen(SERVICE, 4).unwrap();
        let (now_ns, peer) = (world.now_ns, world.peers[0]);
        let config = QPairConfig::messages();
        let qpair = world.initiator.qpair_connect(now_ns, peer, SERVICE, config).unwrap();
        world.initiator.rdma_write(now_ns, 1, 0, vec![7; 20_000]).unwrap();
        world.initiator.read(now_ns, 2, 30_000, 8).unwrap();
        world.run_for(SECOND);
        assert_eq!(world.bulk_done.get(&1).map(Result::is_ok), Some(true), "window {window}");
        assert_eq!(world.done.get(&2), Some(&Ok(vec![0; 8])), "window {window}");
        assert!(matches!(donor_event(&mut world), Some(QPairEvent::Incoming { .. })));
        world.initiator.qpairs_mut().close(qpair);
    }
}

/// The numbers of a recipient's QPairs restart with each session. One of an earlier session that
/// the donor still holds must not shadow one of this session.
#[test]
fn abort_finds_qpair_of_this_session() {
    let mut world = world();
    let (_, old) = connect(&mut world, QPairConfig::messages());
    let peer = world.peers[0];
    world.initiator.close_peer(peer);
    world.run_for(10 * MS);
    let reason = CloseReason::LinkDown(DownReason::LinkLost);
    assert_eq!(donor_event(&mut world), Some(QPairEvent::Closed { qpair: old, reason }));

    // The donor's program has not released its handle.
    world.restart_initiator();
    let config = QPairConfig::messages();
    let near = world.initiator.qpair_connect(world.now_ns, world.peers[0], SERVICE, config);
    world.run_for(10 * MS);
    let Some(QPairEvent::Incoming { qpair: far, .. }) = donor_event(&mut world) else {
        panic!("no QPair was requested");
    };
    world.initiator.qpairs_mut().abort(near.unwrap());
    world.run_for(10 * MS);
    let gone = world.donors[0].target.qpairs_mut().accept(far, config.end);
    assert_eq!(gone, Err(QPairError::Closed(CloseReason::PeerAborted)));
}
