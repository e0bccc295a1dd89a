//! Tests against a hostile peer, which writes anything anywhere in the shared memory at any time:
//! an error, no panic, no endless call.

use std::os::fd::{AsFd, OwnedFd};

use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use venice_fabric::{QPairError, QPairKind};

use super::super::QPairSocketError;
use super::super::shared::Wait;
use super::record::Record;
use super::socket::{Pipe, PipeWatcher};
use crate::PortError;
use crate::ring::algorithm::RingMemory;
use crate::ring::memory::{self, SharedRing};
use crate::ring::{RING_FRAME_BYTES, RingPort};

struct Victim {
    pipe: Pipe,
    /// Ring that the victim writes, then ring that it reads.
    shared: [SharedRing; 2],
    _socket: OwnedFd,
}

impl Victim {
    fn new(kind: QPairKind) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let lines = memory::lines_for(0);
        let fd = memory::create(lines).unwrap();
        let port = RingPort::new(ours, fd.as_fd(), lines, None, true).unwrap();
        let (read, write) = memory::map(fd.as_fd(), lines, false).unwrap();
        let pipe = Pipe::new(port, kind).unwrap();
        Self { pipe, shared: [write, read], _socket: theirs }
    }

    /// Publishes a record in the ring that the victim reads.
    fn publish(&self, line: u64, tag: u64, len: u64) {
        self.shared[1].set_tag(line, tag);
        self.shared[1].publish_word(line, 1 << 63 | len);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Word { ring: usize, line: u64, word: u64 },
    Tag { line: u64, tag: u64 },
    Head(u64),
    Deaf,
    Send(usize),
    Receive(usize),
    Arm,
}

fn tag() -> impl Strategy<Value = u64> {
    let length = prop_oneof![Just(1usize), 1..20_000usize, Just(1 << 30)];
    prop_oneof![
        4 => length.prop_map(|length| Record::First(length).tag()),
        4 => 2..=8u64,
        1 => any::<u64>(),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let line = prop_oneof![0..4u64, 0..1024u64];
    let word = prop_oneof![
        (0..=RING_FRAME_BYTES as u64 + 1).prop_map(|len| 1 << 63 | len),
        any::<u64>(),
        Just(0)
    ];
    prop_oneof![
        3 => (0..2usize, line.clone(), word)
            .prop_map(|(ring, line, word)| Step::Word { ring, line, word }),
        3 => (line, tag()).prop_map(|(line, tag)| Step::Tag { line, tag }),
        1 => prop_oneof![0..2000u64, any::<u64>()].prop_map(Step::Head),
        1 => Just(Step::Deaf),
        4 => (1..100_000usize).prop_map(Step::Send),
        4 => (0..30_000usize).prop_map(Step::Receive),
        1 => Just(Step::Arm),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn hostile_records_never_panic(
        is_stream: bool,
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let kind = if is_stream { QPairKind::Stream } else { QPairKind::Messages };
        let victim = Victim::new(kind);
        let watcher = PipeWatcher::default();
        let Victim { pipe, shared, .. } = &victim;
        for step in steps {
            let done = match step {
                Step::Word { ring, line, word } => {
                    shared[ring].publish_word(line % shared[ring].lines(), word);
                    Ok(())
                }
                Step::Tag { line, tag } => {
                    shared[1].set_tag(line % shared[1].lines(), tag);
                    Ok(())
                }
                Step::Head(head) => {
                    shared[0].publish_head(head);
                    Ok(())
                }
                Step::Deaf => {
                    shared[0].set_deaf();
                    Ok(())
                }
                Step::Send(len) if is_stream => pipe.write(Wait::Never, &vec![7; len]).map(drop),
                Step::Send(len) => pipe.send(Wait::Never, &vec![7; len]),
                Step::Receive(len) if is_stream => {
                    pipe.read(Wait::Never, &mut vec![0; len]).map(drop)
                }
                Step::Receive(0) => pipe.recv_vec(Wait::Never).map(drop),
                Step::Receive(len) => pipe.recv(Wait::Never, &mut vec![0; len]).map(drop),
                Step::Arm => {
                    pipe.arm(&watcher);
                    pipe.attend(&watcher);
                    Ok(())
                }
            };
            let is_reported = matches!(
                done,
                Ok(())
                    | Err(QPairSocketError::WouldBlock)
                    | Err(QPairSocketError::Port(PortError::RingBroken))
                    | Err(QPairSocketError::QPair(
                        QPairError::Closed(_) | QPairError::BufferTooSmall { .. }
                    ))
            );
            prop_assert!(is_reported, "{:?}", done);
        }
    }
}

fn is_broken(outcome: Result<usize, QPairSocketError>) -> bool {
    matches!(outcome, Err(QPairSocketError::Port(PortError::RingBroken)))
}

#[test]
fn overlong_piece_breaks_pipe() {
    let victim = Victim::new(QPairKind::Messages);
    victim.publish(0, Record::First(10).tag(), 4);
    victim.publish(1, Record::More.tag(), 7);
    assert!(is_broken(victim.pipe.recv(Wait::Never, &mut [0; 64])));
    assert!(is_broken(victim.pipe.recv(Wait::Never, &mut [0; 64])), "for good");
}

#[test]
fn piece_without_message_breaks_pipe() {
    for (tag, len) in
        [(Record::More.tag(), 4), (Record::First(4).tag(), 5), (Record::First(4).tag(), 0), (0, 4)]
    {
        let victim = Victim::new(QPairKind::Messages);
        victim.publish(0, tag, len);
        assert!(is_broken(victim.pipe.recv(Wait::Never, &mut [0; 64])), "{tag} {len}");
    }
}

/// A sender that stops in the middle does not hold a polled call up, and its part is kept.
#[test]
fn stopped_sender_blocks_nothing() {
    let victim = Victim::new(QPairKind::Messages);
    victim.publish(0, Record::First(10).tag(), 4);
    let mut message = [9; 10];
    for _ in 0..2 {
        let stopped = victim.pipe.recv(Wait::Never, &mut message);
        assert!(matches!(stopped, Err(QPairSocketError::WouldBlock)), "{stopped:?}");
    }
    victim.publish(1, Record::More.tag(), 6);
    let mut message = [9; 12];
    assert_eq!(victim.pipe.recv(Wait::Never, &mut message).unwrap(), 10);
    assert_eq!(message, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9]);
}

/// A named length that never comes costs what came, and the message is whole once it has come.
#[test]
fn named_length_allocates_nothing() {
    let victim = Victim::new(QPairKind::Messages);
    victim.publish(0, Record::First(1 << 30).tag(), 1);
    let stopped = victim.pipe.recv_vec(Wait::Never);
    assert!(matches!(stopped, Err(QPairSocketError::WouldBlock)), "{stopped:?}");
    assert!(victim.pipe.partial_bytes() < 1 << 16);

    let victim = Victim::new(QPairKind::Messages);
    victim.publish(0, Record::First(10).tag(), 4);
    assert!(matches!(victim.pipe.recv_vec(Wait::Never), Err(QPairSocketError::WouldBlock)));
    victim.publish(1, Record::More.tag(), 6);
    assert_eq!(victim.pipe.recv_vec(Wait::Never).unwrap(), Some(vec![0; 10]));
}
