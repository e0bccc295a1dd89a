//! Tests against a hostile peer, which writes anything anywhere in the shared memory at any time:
//! no panic, no fault.

use std::os::fd::AsFd;

use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use venice_fabric::LinkModel;

use super::algorithm::{Flag, RingMemory};
use super::memory::{self, SharedRing};
use super::port::{RING_FRAME_BYTES, RingPort};
use crate::{PortError, monotonic_ns};

/// A port, and the memory it shares with a peer that may break every rule.
struct Victim {
    port: RingPort,
    /// Ring that the victim writes, then ring that it reads.
    shared: [SharedRing; 2],
    _socket: std::os::fd::OwnedFd,
}

impl Victim {
    fn new() -> Self {
        Self::over(None)
    }

    fn over(link: Option<LinkModel>) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let lines = memory::lines_for(0);
        let fd = memory::create(lines).unwrap();
        let port = RingPort::new(ours, fd.as_fd(), lines, link, true).unwrap();
        let (read, write) = memory::map(fd.as_fd(), lines, false).unwrap();
        Self { port, shared: [write, read], _socket: theirs }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Word { ring: usize, line: u64, word: u64 },
    Head { ring: usize, head: u64 },
    Flag { ring: usize, raised: bool },
    Send(usize),
    Receive,
    Sleep,
}

/// Generates words that look like records, of likely and unlikely lengths, and arbitrary ones.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0..=RING_FRAME_BYTES as u64 + 1).prop_map(|len| 1 << 63 | len),
        any::<u64>(),
        Just(0)
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let line = prop_oneof![0..4u64, 0..1024u64];
    let head = prop_oneof![0..2000u64, any::<u64>()];
    prop_oneof![
        3 => (0..2usize, line, word()).prop_map(|(ring, line, word)| Step::Word { ring, line, word }),
        1 => (0..2usize, head).prop_map(|(ring, head)| Step::Head { ring, head }),
        1 => (0..2usize, any::<bool>()).prop_map(|(ring, raised)| Step::Flag { ring, raised }),
        4 => (0..=RING_FRAME_BYTES).prop_map(Step::Send),
        4 => Just(Step::Receive),
        1 => Just(Step::Sleep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn hostile_writes_never_panic(steps in proptest::collection::vec(step(), 1..200)) {
        let mut victim = Victim::new();
        for step in steps {
            let done = match step {
                Step::Word { ring, line, word } => {
                    victim.shared[ring].publish_word(line % victim.shared[ring].lines(), word);
                    Ok(())
                }
                Step::Head { ring, head } => {
                    victim.shared[ring].publish_head(head);
                    Ok(())
                }
                Step::Flag { ring, raised } => {
                    victim.shared[ring].set_flag(Flag::ReaderSleeps, raised);
                    victim.shared[ring].set_flag(Flag::WriterSleeps, raised);
                    Ok(())
                }
                Step::Send(len) => victim.port.reserve().map(|room| room.is_some()).map(|is_room| {
                    if is_room {
                        victim.port.commit(0, len);
                        victim.port.announce();
                    }
                }),
                Step::Receive => victim.port.receive(0).map(drop),
                Step::Sleep => {
                    victim.port.prepare_wait();
                    victim.port.finish_wait();
                    Ok(())
                }
            };
            prop_assert!(matches!(done, Ok(()) | Err(PortError::RingBroken)), "{:?}", done);
        }
    }
}

#[test]
fn reader_ahead_of_writer_breaks_ring() {
    let mut victim = Victim::new();
    victim.shared[0].publish_head(5);
    // The writer knows of room for a whole lap; after that it reads the position.
    let mut sent = 0;
    let error = loop {
        match victim.port.reserve() {
            Ok(Some(_)) => victim.port.commit(0, RING_FRAME_BYTES),
            Ok(None) => victim.shared[0].publish_head(1 << 40),
            Err(error) => break error,
        }
        sent += 1;
        assert!(sent < 100);
    };
    assert!(matches!(error, PortError::RingBroken));
}

#[test]
fn oversized_record_breaks_ring() {
    let mut victim = Victim::new();
    victim.shared[1].publish_word(0, 1 << 63 | (RING_FRAME_BYTES as u64 + 1));
    assert!(matches!(victim.port.receive(0), Err(PortError::RingBroken)));
    victim.shared[1].publish_word(0, 1 << 63 | 5);
    assert!(matches!(victim.port.receive(0), Err(PortError::RingBroken)));
}

/// The frame would never come, and the end behind it would never be seen.
#[test]
fn late_delivery_time_breaks_ring() {
    for (later_ns, is_broken) in [(1000, false), (60_000_000_000, true), (u64::MAX, true)] {
        let victim = Victim::over(Some(LinkModel::PAPER));
        let at_ns = monotonic_ns().saturating_add(later_ns);
        // SAFETY: the second word of a record's head, in memory that is mapped.
        unsafe { victim.shared[1].line_ptr(0).add(8).cast::<u64>().write(at_ns) };
        victim.shared[1].publish_word(0, 1 << 63 | 5);
        let Victim { mut port, _socket: socket, .. } = victim;
        drop(socket);
        port.look_for_end();
        assert_eq!(matches!(port.receive(0), Err(PortError::RingBroken)), is_broken, "{later_ns}");
    }
}
