//! The send window alone: credits, replays, acknowledgements, payloads kept elsewhere.

use venice_wire::{Channel, Frame, NodeId, Opcode};

use super::*;

fn window_with(frames: u32) -> SendWindow {
    let mut window = SendWindow::new(8, true);
    window.open(8);
    for n in 0..frames {
        window.stage()[0] = n as u8;
        let header = HeaderRepr::new(Channel::Crma, Opcode::Write, NodeId(1), NodeId(2));
        window.push(header, 1);
    }
    window
}

/// Sends all that can be sent at `now_ns`; returns the positions.
fn send_all(window: &mut SendWindow, now_ns: u64) -> Vec<u32> {
    let mut sent = Vec::new();
    let mut buf = [0; 128];
    while let Some((sequence, is_replay)) = window.next() {
        let len = window.emit(sequence, now_ns, |_| (), |_, _| (), &mut buf).unwrap();
        let frame = Frame::parse(&buf[..len]).unwrap();
        assert_eq!(frame.sequence(), sequence);
        assert_eq!(frame.payload(), [sequence.0 as u8]);
        assert_eq!(frame.flags() & REPLAY_FLAG != 0, is_replay);
        sent.push(sequence.0);
    }
    sent
}

#[test]
fn external_payload_is_requested_per_send() {
    let mut window = SendWindow::new(8, true);
    let header = HeaderRepr::new(Channel::Rdma, Opcode::Write, NodeId(1), NodeId(2));
    window.push_asked_for(HeaderRepr { transaction: 5, ..header }, 3);
    let mut buf = [0; 128];
    for n in 0..2 {
        let (sequence, _) = window.next().unwrap();
        let lender = |transaction, room: &mut [u8]| room.fill(transaction as u8 + n);
        let len = window.emit(sequence, 0, |_| (), lender, &mut buf).unwrap();
        assert_eq!(Frame::parse(&buf[..len]).unwrap().payload(), [5 + n; 3]);
        window.replay_ends();
    }
}

#[test]
fn credits_bound_frames_in_flight() {
    let mut window = window_with(6);
    window.open(4);
    assert_eq!(send_all(&mut window, 0), [0, 1, 2, 3]);
    assert_eq!(window.acknowledge(Sequence(2), 9).unwrap().frames, 2);
    assert_eq!(send_all(&mut window, 0), [4, 5]);
}

/// On a reliable port a slot is free once its frame is sent, and credits still bound the frames in
/// flight.
#[test]
fn sent_frame_is_freed_without_replay() {
    let mut window = SendWindow::new(4, false);
    window.open(2);
    let header = HeaderRepr::new(Channel::Crma, Opcode::Write, NodeId(1), NodeId(2));
    for n in 0..4 {
        window.stage()[0] = n;
        window.push(header, 1);
    }
    assert_eq!(window.room(), 0);
    assert_eq!(send_all(&mut window, 0), [0, 1]);
    assert_eq!(window.room(), 2);
    window.replay_missing(Sequence(0), 0, 99, 5);
    assert_eq!(send_all(&mut window, 99), [] as [u32; 0]);
    for n in 4..6 {
        window.stage()[0] = n;
        window.push(header, 1);
    }
    assert_eq!(window.acknowledge(Sequence(2), 9).unwrap().frames, 2);
    assert_eq!(send_all(&mut window, 0), [2, 3]);
    window.acknowledge(Sequence(4), 9).unwrap();
    assert_eq!(send_all(&mut window, 0), [4, 5]);
}

#[test]
fn kept_frame_stays_until_acknowledged() {
    let mut window = window_with(2);
    assert_eq!(window.next_kept(2), None, "too short");
    let sequence = window.next_kept(1).unwrap();
    assert!(window.kept(sequence.plus(1)).is_none(), "not sent yet");
    let len = window.emit_in_place(sequence, 0, |header| header.ack = Sequence(7)).unwrap();
    let frame = Frame::parse(window.kept(sequence).unwrap().head).unwrap();
    assert_eq!(
        (frame.as_bytes().len(), frame.ack(), frame.payload()),
        (len, Sequence(7), &[0][..])
    );
    window.replay_ends();
    assert_eq!(window.next_kept(1), None, "replays come first");
    assert_eq!(send_all(&mut window, 0), [0, 1], "and are the same bytes");
    window.acknowledge(Sequence(1), 0);
    assert!(window.kept(sequence).is_none());
}

#[test]
fn replayed_frames_give_no_rtt() {
    let mut window = window_with(2);
    send_all(&mut window, 100);
    assert_eq!(window.acknowledge(Sequence(1), 130).unwrap().round_trip_ns, Some(30));
    window.replay_ends();
    assert_eq!(send_all(&mut window, 200), [1]);
    assert_eq!(window.acknowledge(Sequence(2), 230).unwrap().round_trip_ns, None);
}

#[test]
fn invalid_acknowledgements_are_ignored() {
    let mut window = window_with(4);
    assert_eq!(window.acknowledge(Sequence(1), 0), None, "nothing was sent yet");
    send_all(&mut window, 0);
    assert!(window.acknowledge(Sequence(3), 0).is_some());
    assert_eq!(window.acknowledge(Sequence(2), 0), None);
    assert_eq!(window.acknowledge(Sequence(5), 0), None);
    assert_eq!(window.room(), 7);
}

#[test]
fn nak_replays_missing_frames() {
    let mut window = window_with(8);
    send_all(&mut window, 0);
    window.acknowledge(Sequence(1), 0);
    // 1 is missing, 2 and 4 arrived, 3 is missing, 5 and later are unknown.
    window.replay_missing(Sequence(1), 0b101, 10, 5);
    assert_eq!(send_all(&mut window, 10), [1, 3]);
    window.replay_missing(Sequence(1), 0b101, 12, 5);
    assert_eq!(send_all(&mut window, 12), [] as [u32; 0], "those are in flight");
    window.replay_missing(Sequence(1), 0, 99, 5);
    assert_eq!(send_all(&mut window, 99), [1, 2, 3, 4, 5, 6, 7]);
}
