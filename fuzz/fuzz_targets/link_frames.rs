//! Well-formed frames that say anything, on a live link, to either end, between the user's own
//! calls: nothing panics, nothing is written without the key, and every access taken ends.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use venice_fabric::{PeerState, QPairEvent, QPairKind, QPairs};
use venice_fuzz::{
    ADDR, AnyFrame, HERE, KEY, Lent, LinkSetup, SERVICE, THERE, initiator, open_link, qpair, target,
};
use venice_wire::{GrantId, MAX_FRAME_BYTES};

#[derive(Arbitrary, Debug)]
enum Step {
    ToInitiator(AnyFrame),
    ToTarget(AnyFrame),
    Read { addr: u16, len: u16 },
    Post { addr: u16 },
    Bulk { addr: u16, len: u16 },
    Unmap,
    Revoke { grant: u8 },
    Connect { is_stream: bool },
    Exchange { rounds: u8 },
    Advance { us: u16 },
}

fn serve_qpairs(qpairs: &mut QPairs) {
    let mut bytes = [0; 512];
    while let Some(event) = qpairs.poll_event() {
        match event {
            QPairEvent::Incoming { qpair: id, kind, .. } => {
                let _ = qpairs.accept(id, qpair(kind).end);
            }
            QPairEvent::Connected { qpair } | QPairEvent::Writable { qpair } => {
                let _ = qpairs.send(0, qpair, &[1; 700]);
                let _ = qpairs.write(0, qpair, &[2; 100]);
            }
            QPairEvent::Readable { qpair } => {
                while qpairs.read(qpair, &mut bytes).is_ok_and(|len| len > 0) {}
                while qpairs.recv(qpair, &mut bytes).is_ok_and(|len| len > 0) {}
            }
            QPairEvent::Closed { qpair, .. } => qpairs.close(qpair),
        }
    }
}

fuzz_target!(|input: (LinkSetup, Vec<Step>)| {
    let (setup, steps) = input;
    let (mut initiator, peer) = initiator(setup.config());
    let (mut target, mut memory) = (target(setup.config()), Lent::default());
    let link = open_link(&mut initiator, peer, &mut target, &mut memory);
    initiator.map_window(0, 1 << 15, peer, 0, GrantId(1), KEY).expect("the first window");
    let (mut buf, mut now_ns, mut taken) = ([0; MAX_FRAME_BYTES], 1_000, 0u64);
    for step in steps.into_iter().take(64) {
        match step {
            Step::ToInitiator(frame) => {
                if let Some(len) = frame.emit(THERE, HERE, link, &mut buf) {
                    initiator.handle_frame(now_ns, peer, &buf[..len]);
                }
            }
            Step::ToTarget(frame) => {
                if let Some(len) = frame.emit(HERE, THERE, link, &mut buf) {
                    target.handle_frame(now_ns, ADDR, &buf[..len], &mut memory);
                }
            }
            Step::Read { addr, len } => {
                let read = initiator.read(now_ns, taken, addr.into(), len.into());
                taken += u64::from(read.is_ok());
            }
            Step::Post { addr } => drop(initiator.post(now_ns, addr.into(), &[5; 9])),
            Step::Bulk { addr, len } => {
                drop(initiator.rdma_write(now_ns, 0, addr.into(), vec![6; len.into()]));
            }
            Step::Unmap => drop(initiator.unmap_window(0)),
            Step::Revoke { grant } => drop(target.revoke(now_ns, GrantId(grant.into()))),
            Step::Connect { is_stream } => {
                let kind = if is_stream { QPairKind::Stream } else { QPairKind::Messages };
                let _ = initiator.qpair_connect(now_ns, peer, SERVICE, qpair(kind));
                let _ = target.qpair_connect(now_ns, ADDR, SERVICE, qpair(kind));
            }
            Step::Exchange { rounds } => {
                for _ in 0..rounds % 4 {
                    // Bounded: an end that is told nonsense may have much to say.
                    for _ in 0..64 {
                        let Some((_, len)) = initiator.poll_transmit(now_ns, &mut buf) else {
                            break;
                        };
                        target.handle_frame(now_ns, ADDR, &buf[..len], &mut memory);
                    }
                    for _ in 0..64 {
                        let Some((_, len)) = target.poll_transmit(now_ns, &mut buf) else { break };
                        initiator.handle_frame(now_ns, peer, &buf[..len]);
                    }
                    serve_qpairs(initiator.qpairs_mut());
                    serve_qpairs(target.qpairs_mut());
                }
            }
            Step::Advance { us } => {
                now_ns += u64::from(us) * 1_000;
                initiator.handle_timeout(now_ns);
                target.handle_timeout(now_ns);
            }
        }
    }
    initiator.close_peer(peer);
    assert!(matches!(initiator.peer_state(peer), PeerState::Down { .. }));
    let mut over = 0;
    while initiator.poll_completion().is_some() {
        over += 1;
    }
    assert_eq!(over, taken, "every access ends, once");
    while initiator.poll_rdma_completion().is_some() {}
    assert!(!initiator.has_rdma_outstanding());
});
