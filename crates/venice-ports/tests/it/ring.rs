//! Tests of rings between threads and between processes: order, integrity, sleep, death, emulated
//! time.

use std::collections::VecDeque;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use proptest::prelude::*;
use venice_fabric::LinkModel;
use venice_ports::ring::{RING_FRAME_BYTES, RingConfig, RingListener, RingPort, connect_ring};
use venice_ports::{PortError, monotonic_ns};

const SECOND_NS: u64 = 1_000_000_000;
/// Longest wait of these tests.
const LIMIT_NS: u64 = 60 * SECOND_NS;

fn small() -> RingConfig {
    RingConfig { ring_bytes: 0, link: None }
}

/// Returns the bytes of frame `number`, which determines their length and content.
fn frame(number: u64) -> Vec<u8> {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let len = if number.is_multiple_of(3) { mixed % 4160 } else { mixed % 200 };
    (0..len).map(|at| (number + at * 7) as u8).collect()
}

/// Puts a frame into the ring; returns false if there is no room.
fn try_send(port: &mut RingPort, now_ns: u64, bytes: &[u8]) -> bool {
    let Some(buffer) = port.reserve().unwrap() else { return false };
    buffer[..bytes.len()].copy_from_slice(bytes);
    port.commit(now_ns, bytes.len());
    true
}

fn send(port: &mut RingPort, bytes: &[u8]) {
    let deadline_ns = monotonic_ns() + LIMIT_NS;
    while !try_send(port, monotonic_ns(), bytes) {
        port.wait(SECOND_NS);
        assert!(monotonic_ns() < deadline_ns, "no room");
    }
}

/// Waits for a frame; returns `None` at the end of the other side.
fn receive(port: &mut RingPort) -> Option<Vec<u8>> {
    let deadline_ns = monotonic_ns() + LIMIT_NS;
    loop {
        match port.receive(monotonic_ns()) {
            Ok(Some(bytes)) => return Some(bytes.to_vec()),
            Ok(None) => port.wait(SECOND_NS),
            Err(PortError::Closed) => return None,
            Err(error) => panic!("{error}"),
        }
        assert!(monotonic_ns() < deadline_ns, "no frame");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Burst(usize),
    Receive(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..=RING_FRAME_BYTES).prop_map(Step::Send),
        4 => (0..300usize).prop_map(Step::Send),
        1 => (0..200usize).prop_map(Step::Burst),
        4 => (0..40usize).prop_map(Step::Receive),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Frames come out whole and in order, over many laps and at every length.
    #[test]
    fn ring_behaves_like_queue(steps in steps()) {
        let (mut first, mut second) = RingPort::pair(&small()).unwrap();
        let mut queue = VecDeque::new();
        let mut number = 0;
        for step in steps {
            let (sends, len) = match step {
                Step::Send(len) => (1, len),
                Step::Burst(count) => (count, 64),
                Step::Receive(count) => {
                    for _ in 0..count {
                        let received = second.receive(0).unwrap().map(<[u8]>::to_vec);
                        prop_assert_eq!(received, queue.pop_front());
                    }
                    continue;
                }
            };
            for _ in 0..sends {
                number += 1;
                let bytes: Vec<u8> = (0..len).map(|at| (number + at) as u8).collect();
                if try_send(&mut first, 0, &bytes) {
                    queue.push_back(bytes);
                } else {
                    let queued: usize = queue.iter().map(|bytes: &Vec<u8>| bytes.len() + 80).sum();
                    prop_assert!(queued + 2 * RING_FRAME_BYTES > 32 << 10, "the ring has no room");
                }
            }
            first.announce();
        }
        while let Some(bytes) = queue.pop_front() {
            prop_assert_eq!(second.receive(0).unwrap(), Some(bytes.as_slice()));
        }
        prop_assert_eq!(second.receive(0).unwrap(), None);
    }
}

/// Sends in both directions at once, with sleeps on both sides.
#[test]
fn two_threads_lose_no_frames() {
    const FRAMES: u64 = 100_000;
    let (mut first, mut second) = RingPort::pair(&small()).unwrap();
    let echo = std::thread::spawn(move || {
        while let Some(bytes) = receive(&mut second) {
            send(&mut second, &bytes);
        }
        second.announce();
    });
    let (mut sent, mut received) = (0, 0);
    while received < FRAMES {
        // The number outstanding is limited: otherwise both sides could wait for room.
        while sent < FRAMES && sent - received < 4 && try_send(&mut first, 0, &frame(sent)) {
            sent += 1;
        }
        assert_eq!(receive(&mut first), Some(frame(received)), "frame {received}");
        received += 1;
    }
    drop(first);
    echo.join().unwrap();
}

#[test]
fn end_follows_last_frame() {
    let (mut first, mut second) = RingPort::pair(&small()).unwrap();
    send(&mut first, b"last words");
    drop(first);
    // A process that another test is starting shares the socket until its exec.
    for _ in 0..1000 {
        second.look_for_end();
        if second.is_peer_gone() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(second.is_peer_gone());
    assert_eq!(receive(&mut second).unwrap(), b"last words");
    assert_eq!(receive(&mut second), None);
    // The other side no longer reads; the call must not fail for that.
    send(&mut second, b"too late");
    second.announce();
}

/// Child process of the tests below; no test of its own.
#[test]
fn child() {
    let Ok(path) = std::env::var("VENICE_RING_CHILD") else { return };
    let mut port = connect_ring(Path::new(&path)).unwrap();
    for number in 0.. {
        send(&mut port, &frame(number));
        if number % 16 == 0 {
            port.announce();
        }
    }
}

fn start_child(path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ring::child", "--nocapture"])
        .env("VENICE_RING_CHILD", path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// A sender killed at any moment leaves whole frames, in order, then an end.
#[test]
fn killed_sender_leaves_whole_frames() {
    let dir = tempfile::tempdir().unwrap();
    let listener = RingListener::bind(&dir.path().join("ring.sock"), small()).unwrap();
    for round in 0..5u64 {
        let mut child = start_child(listener.path());
        let mut port = listener.accept(LIMIT_NS).unwrap().expect("the child connects");
        for number in 0..20_000 + round * 777 {
            assert_eq!(receive(&mut port), Some(frame(number)));
        }
        child.kill().unwrap();
        let mut number = 20_000 + round * 777;
        while let Some(bytes) = receive(&mut port) {
            assert_eq!(bytes, frame(number));
            number += 1;
        }
        child.wait().unwrap();
    }
}

/// A sender that waits for room detects the death of its receiver.
#[test]
fn killed_receiver_ends_wait_for_room() {
    let dir = tempfile::tempdir().unwrap();
    let listener = RingListener::bind(&dir.path().join("ring.sock"), small()).unwrap();
    let mut child = start_child(listener.path());
    let mut port = listener.accept(LIMIT_NS).unwrap().expect("the child connects");
    // The child never reads.
    while try_send(&mut port, 0, &[7; 4000]) {}
    child.kill().unwrap();
    child.wait().unwrap();
    let deadline_ns = monotonic_ns() + LIMIT_NS;
    while !port.is_peer_gone() {
        port.wait(SECOND_NS);
        assert!(monotonic_ns() < deadline_ns);
    }
}

#[test]
fn listener_offers_its_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ring.sock");
    assert!(matches!(connect_ring(&path), Err(PortError::NoAgent { .. })));
    let config = RingConfig { ring_bytes: 1 << 20, link: Some(LinkModel::PAPER) };
    let listener = RingListener::bind(&path, config).unwrap();
    assert!(listener.try_accept().unwrap().is_none());
    let connecting = std::thread::spawn(move || connect_ring(&path).unwrap());
    let mut accepted = listener.accept(LIMIT_NS).unwrap().unwrap();
    let mut connected = connecting.join().unwrap();
    assert_eq!(connected.link(), Some(&LinkModel::PAPER));
    assert_eq!(accepted.link(), Some(&LinkModel::PAPER));
    send(&mut accepted, b"there");
    send(&mut connected, b"back");
    assert_eq!(receive(&mut connected).unwrap(), b"there");
    assert_eq!(receive(&mut accepted).unwrap(), b"back");
}

/// On the emulated link a frame comes at its time, not before, and frames keep the wire's rate.
#[test]
fn emulated_link_delays_frames() {
    let config = RingConfig { link: Some(LinkModel::PAPER), ..small() };
    let (mut first, mut second) = RingPort::pair(&config).unwrap();
    assert_eq!(second.next_delivery_ns(), None);
    // 125 bytes are 200 ns on the wire; it is free again at 1200.
    assert!(try_send(&mut first, 1000, &[1; 125]));
    assert!(try_send(&mut first, 1100, &[2; 125]));
    assert_eq!(second.next_delivery_ns(), Some(1000 + 200 + 1400));
    assert_eq!(second.receive(2599).unwrap(), None);
    assert_eq!(second.receive(2600).unwrap(), Some([1; 125].as_slice()));
    assert_eq!(second.receive(2600).unwrap(), None);
    assert_eq!(second.next_delivery_ns(), Some(2800));
    assert_eq!(second.receive(2800).unwrap(), Some([2; 125].as_slice()));
    assert_eq!(second.next_delivery_ns(), None);
}
