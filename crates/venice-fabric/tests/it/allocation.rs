//! Moving frames on open links allocates nothing: the code also runs where it must not.

use venice_fabric::{
    GrantedMemory, Initiator, InitiatorConfig, PeerAddr, PeerIndex, PeerState, Refusal, Target,
    TargetConfig,
};
use venice_wire::{GrantId, GrantKey, MAX_FRAME_BYTES, NodeId};

/// Memory whose pages all read the same.
struct Zeros;

impl GrantedMemory for Zeros {
    fn read(&mut self, _: GrantId, _: GrantKey, _: u64, into: &mut [u8]) -> Result<(), Refusal> {
        into.fill(0);
        Ok(())
    }

    fn write(&mut self, _: GrantId, _: GrantKey, addr: u64, _: &[u8]) -> Result<(), Refusal> {
        if addr == 0 { Err(Refusal::ReadOnly) } else { Ok(()) }
    }
}

struct Pair {
    now_ns: u64,
    initiator: Initiator,
    target: Target,
    peer: PeerIndex,
    frames: u64,
    completions: u64,
}

impl Pair {
    fn new() -> Self {
        let mut initiator = Initiator::new(InitiatorConfig::new(NodeId(1), 11));
        let peer = initiator.add_peer(NodeId(2), 0);
        initiator.map_window(0, 1 << 30, peer, 0, GrantId(1), GrantKey(1)).unwrap();
        let target = Target::new(TargetConfig::new(NodeId(2), 22));
        Self { now_ns: 0, initiator, target, peer, frames: 0, completions: 0 }
    }

    /// Moves all pending frames, and loses every 13th.
    fn move_frames(&mut self) {
        let mut buf = [0; MAX_FRAME_BYTES];
        self.now_ns += 100_000;
        while let Some((_, len)) = self.initiator.poll_transmit(self.now_ns, &mut buf) {
            self.frames += 1;
            if !self.frames.is_multiple_of(13) {
                self.target.handle_frame(self.now_ns, PeerAddr(9), &buf[..len], &mut Zeros);
            }
        }
        while let Some((_, len)) = self.target.poll_transmit(self.now_ns, &mut buf) {
            self.frames += 1;
            if !self.frames.is_multiple_of(13) {
                self.initiator.handle_frame(self.now_ns, self.peer, &buf[..len]);
            }
        }
        self.initiator.handle_timeout(self.now_ns);
        self.target.handle_timeout(self.now_ns);
        while self.initiator.poll_completion().is_some() {
            self.completions += 1;
        }
    }

    fn traffic(&mut self, accesses: u64, buffer: Vec<u8>) -> Vec<u8> {
        self.initiator.rdma_write(self.now_ns, 0, 4096, buffer).unwrap();
        let start = self.completions;
        let mut taken = 0;
        let mut back = None;
        for _ in 0..10 * accesses {
            if self.completions - start == accesses && back.is_some() {
                break;
            }
            if taken < accesses {
                let access = match taken % 3 {
                    0 => self.initiator.read(self.now_ns, taken, taken * 8, 4096),
                    _ => self.initiator.write(self.now_ns, taken, taken / 3 * 3 * 8, &[1; 512]),
                };
                taken += u64::from(access.is_ok());
            }
            if taken == accesses || taken % 5 == 0 {
                self.move_frames();
            }
            back = back.or_else(|| self.initiator.poll_rdma_completion());
        }
        assert_eq!(self.completions - start, accesses, "all complete in time");
        back.expect("the bulk transfer too").buffer
    }
}

/// A recipient that meets many donors: a gone donor keeps far less than its buffers.
#[test]
fn gone_donors_free_their_buffers() {
    let mut initiator = Initiator::new(InitiatorConfig::new(NodeId(1), 11));
    let mut meet = |donor: u32| {
        let peer = initiator.add_peer(NodeId(donor), 0);
        initiator.close_peer(peer);
        assert!(initiator.is_peer_gone(peer));
        assert_eq!(initiator.poll_transmit(0, &mut [0; MAX_FRAME_BYTES]), None);
    };
    let one = allocation_counter::measure(|| meet(2));
    let hundred = allocation_counter::measure(|| (3..103).for_each(&mut meet));
    assert!(one.bytes_current > 100_000, "its buffers stay until the next donor: {one:?}");
    assert!(hundred.bytes_current < one.bytes_current, "{hundred:?} beside {one:?}");
}

#[test]
fn traffic_does_not_allocate() {
    let mut pair = Pair::new();
    (0..100).for_each(|_| pair.move_frames());
    assert_eq!(pair.initiator.peer_state(pair.peer), PeerState::Up);
    let mut buffer = pair.traffic(100, vec![0; 100_000]);
    let replayed_before = pair.initiator.peer_stats(pair.peer).replayed;
    let count = allocation_counter::measure(|| {
        let lent = std::mem::take(&mut buffer);
        buffer = pair.traffic(2000, lent);
    });
    assert!(pair.initiator.peer_stats(pair.peer).replayed > replayed_before, "losses occurred");
    assert_eq!(count.count_total, 0, "{count:?}");
}
