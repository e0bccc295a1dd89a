//! Under any network faults every access completes, every read returns the latest earlier write,
//! and every write is carried out once and in order.

use crate::world::{Faults, LENT_BYTES, Rng, SECOND, US, World};
use proptest::prelude::*;
use venice_fabric::{AccessError, Atomic, DownReason, FabricError, LinkConfig, PeerState};

const DONORS: usize = 2;
/// Bulk transfers use the middle of the mapped space, around the border between the donors'
/// mappings; single accesses avoid it.
const BULK: std::ops::Range<u64> = LENT_BYTES - 24 * 1024..LENT_BYTES + 24 * 1024;

#[derive(Clone, Debug)]
enum Op {
    Read { at: u64, len: u32 },
    Write { at: u64, len: u32 },
    Post { at: u64, len: u32 },
    Fence,
    FetchAdd { at: u64, add: u64 },
    CompareSwap { at: u64, fits: bool, new: u64 },
    BulkRead { at: u64, len: u32 },
    BulkWrite { at: u64, len: u32 },
    Pause { us: u64 },
}

fn any_len() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 1..64u32, 1 => Just(4096u32)]
}

fn any_op() -> impl Strategy<Value = Op> {
    // Few addresses, so that accesses collide; on both sides of the bulk range.
    let place = (any::<bool>(), 0..8u64)
        .prop_map(|(high, n)| if high { BULK.end + n * 16 } else { n * 16 });
    let bulk_at = (0..24u64).prop_map(|n| BULK.start + n * 1000);
    prop_oneof![
        4 => (place.clone(), any_len()).prop_map(|(at, len)| Op::Read { at, len }),
        4 => (place.clone(), any_len()).prop_map(|(at, len)| Op::Write { at, len }),
        3 => (place.clone(), any_len()).prop_map(|(at, len)| Op::Post { at, len }),
        1 => Just(Op::Fence),
        2 => (place.clone(), any::<u64>()).prop_map(|(at, add)| Op::FetchAdd { at, add }),
        2 => (place.clone(), any::<bool>(), any::<u64>())
            .prop_map(|(at, fits, new)| Op::CompareSwap { at, fits, new }),
        1 => (bulk_at.clone(), 1..20_000u32).prop_map(|(at, len)| Op::BulkRead { at, len }),
        1 => (bulk_at, 1..20_000u32).prop_map(|(at, len)| Op::BulkWrite { at, len }),
        1 => (0..20_000u64).prop_map(|us| Op::Pause { us }),
    ]
}

prop_compose! {
    fn any_faults()(
        lost in prop_oneof![Just(0), Just(20), Just(300)],
        repeated in prop_oneof![Just(0), Just(200)],
        delayed in prop_oneof![Just(0), Just(50), Just(500)],
        damaged in prop_oneof![Just(0), Just(50)],
        stale in prop_oneof![Just(0), Just(100)],
    ) -> Faults {
        Faults { lost, repeated, delayed, damaged, stale }
    }
}

/// Drives a world and a flat model of its mapped space side by side.
struct Checker {
    world: World,
    model: Vec<u8>,
    rng: Rng,
    next_token: u64,
    /// The expected result of each access.
    expected: Vec<(u64, Vec<u8>)>,
    expected_bulk: Vec<(u64, Vec<u8>)>,
    /// Single writes in the order given, by donor: remote address and bytes.
    written: [Vec<(u64, Vec<u8>)>; DONORS],
}

impl Checker {
    fn new(seed: u64, link: LinkConfig, faults: Faults) -> Self {
        let link = LinkConfig { silence_ns: 60 * SECOND, ..link };
        Self {
            world: World::with_link(seed, DONORS, link, faults),
            model: vec![0; DONORS * LENT_BYTES as usize],
            rng: Rng(seed ^ 1),
            next_token: 0,
            expected: Vec::new(),
            expected_bulk: Vec::new(),
            written: [const { Vec::new() }; DONORS],
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Read { at, len } => self.read(at, len),
            Op::Write { at, len } => self.write(at, len),
            Op::Post { at, len } => self.post(at, len),
            Op::Fence => self.fence(),
            Op::FetchAdd { at, add } => self.atomic(at, Atomic::FetchAdd(add)),
            Op::CompareSwap { at, fits, new } => {
                let expected = self.word(at).wrapping_add(u64::from(!fits));
                self.atomic(at, Atomic::CompareSwap { expected, new });
            }
            Op::BulkRead { at, len } => self.bulk(at, len, false),
            Op::BulkWrite { at, len } => self.bulk(at, len, true),
            Op::Pause { us } => self.world.run_for(us * US),
        }
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    fn slice(&mut self, at: u64, len: u32) -> &mut [u8] {
        &mut self.model[at as usize..][..len as usize]
    }

    fn fresh_bytes(&mut self, len: u32) -> Vec<u8> {
        (0..len).map(|_| self.rng.draw() as u8).collect()
    }

    fn read(&mut self, at: u64, len: u32) {
        let token = self.token();
        self.until_taken(|world| world.initiator.read(world.now_ns, token, at, len));
        let expected = self.slice(at, len).to_vec();
        self.expected.push((token, expected));
    }

    fn write(&mut self, at: u64, len: u32) {
        let (token, bytes) = (self.token(), self.fresh_bytes(len));
        self.until_taken(|world| world.initiator.write(world.now_ns, token, at, &bytes));
        self.expected.push((token, Vec::new()));
        self.note_written(at, bytes);
    }

    fn post(&mut self, at: u64, len: u32) {
        let bytes = self.fresh_bytes(len);
        self.until_taken(|world| world.initiator.post(world.now_ns, at, &bytes));
        self.note_written(at, bytes);
    }

    fn note_written(&mut self, at: u64, bytes: Vec<u8>) {
        self.slice(at, bytes.len() as u32).copy_from_slice(&bytes);
        let (donor, remote_addr) = (at / LENT_BYTES, at % LENT_BYTES);
        self.written[donor as usize].push((remote_addr, bytes));
    }

    fn fence(&mut self) {
        let token = self.token();
        self.until_taken(|world| world.initiator.fence(world.now_ns, token));
        self.expected.push((token, Vec::new()));
    }

    fn word(&mut self, at: u64) -> u64 {
        u64::from_le_bytes(self.slice(at, 8).try_into().unwrap())
    }

    fn atomic(&mut self, at: u64, atomic: Atomic) {
        let token = self.token();
        self.until_taken(|world| match atomic {
            Atomic::FetchAdd(add) => world.initiator.fetch_add(world.now_ns, token, at, add),
            Atomic::CompareSwap { expected, new } => {
                world.initiator.compare_swap(world.now_ns, token, at, expected, new)
            }
        });
        let old = self.word(at);
        self.expected.push((token, old.to_le_bytes().to_vec()));
        if let Some(new) = atomic.apply(old) {
            self.note_written(at, new.to_le_bytes().to_vec());
        }
    }

    fn until_taken(&mut self, mut access: impl FnMut(&mut World) -> Result<(), FabricError>) {
        let give_up_ns = self.world.now_ns + 600 * SECOND;
        while self.world.now_ns < give_up_ns {
            match access(&mut self.world) {
                Ok(()) => return,
                Err(FabricError::WouldBlock) => assert!(self.world.step()),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("not accepted in 10 virtual minutes");
    }

    /// Bulk transfers are not ordered among themselves: one at a time.
    fn bulk(&mut self, at: u64, len: u32, is_write: bool) {
        self.finish_bulk();
        let len = len.min((BULK.end - at) as u32);
        let (token, now_ns) = (self.token(), self.world.now_ns);
        let bytes = self.fresh_bytes(len);
        let initiator = &mut self.world.initiator;
        if is_write {
            initiator.rdma_write(now_ns, token, at, bytes.clone()).unwrap();
            self.slice(at, len).copy_from_slice(&bytes);
        } else {
            initiator.rdma_read(now_ns, token, at, bytes).unwrap();
        }
        let expected = self.slice(at, len).to_vec();
        self.expected_bulk.push((token, expected));
    }

    fn finish_bulk(&mut self) {
        let outstanding = self.expected_bulk.len();
        self.world.run_until(|world| world.bulk_done.len() == outstanding);
    }

    fn finish(mut self) {
        self.finish_bulk();
        self.fence();
        let outstanding = self.expected.len();
        self.world.run_until(|world| world.done.len() == outstanding);
        for (token, bytes) in self.expected {
            assert_eq!(self.world.done[&token], Ok(bytes), "access {token}");
        }
        for (token, bytes) in self.expected_bulk {
            assert_eq!(self.world.bulk_done[&token], Ok(bytes), "bulk transfer {token}");
        }
        // Long enough for any late frame to arrive.
        self.world.run_for(SECOND);
        for (n, donor) in self.world.donors.iter().enumerate() {
            let half = &self.model[n * LENT_BYTES as usize..][..LENT_BYTES as usize];
            assert!(donor.memory.bytes == half, "memory of donor {n}");
            let is_single =
                |(at, _): &&(u64, Vec<u8>)| !BULK.contains(&(at + n as u64 * LENT_BYTES));
            let singles: Vec<_> = donor.memory.written.iter().filter(is_single).collect();
            assert!(singles.into_iter().eq(&self.written[n]), "writes of donor {n}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn accesses_match_model(
        seed in any::<u64>(),
        window in prop::sample::select(vec![4u16, 8, 64]),
        faults in any_faults(),
        ops in prop::collection::vec(any_op(), 1..60),
    ) {
        let link = LinkConfig { window, ..LinkConfig::default() };
        let mut checker = Checker::new(seed, link, faults);
        ops.iter().for_each(|op| checker.apply(op));
        checker.finish();
    }

    /// Like over sealed datagrams: no checksum, because nothing damaged gets this far.
    #[test]
    fn accesses_match_model_without_checksums(
        seed in any::<u64>(),
        window in prop::sample::select(vec![4u16, 64]),
        faults in any_faults(),
        ops in prop::collection::vec(any_op(), 1..60),
    ) {
        let link = LinkConfig { window, checksum: false, ..LinkConfig::default() };
        let mut checker = Checker::new(seed, link, Faults { damaged: 0, ..faults });
        ops.iter().for_each(|op| checker.apply(op));
        checker.finish();
    }

    /// Like over a ring in shared memory: no replay either, and no unnecessary frame.
    #[test]
    fn accesses_match_model_on_reliable_port(
        seed in any::<u64>(),
        window in prop::sample::select(vec![4u16, 8, 64]),
        ops in prop::collection::vec(any_op(), 1..60),
    ) {
        let link = LinkConfig { window, ..LinkConfig::reliable() };
        let mut checker = Checker::new(seed, link, Faults::default());
        ops.iter().for_each(|op| checker.apply(op));
        for &peer in &checker.world.peers {
            let stats = checker.world.initiator.peer_stats(peer);
            prop_assert_eq!((stats.replayed, stats.naks_sent, stats.replay_timeouts), (0, 0, 0));
            prop_assert_eq!((stats.duplicates, stats.early, stats.overruns), (0, 0, 0));
        }
        checker.finish();
    }

    /// The donor's new session has the same grant and key, so a frame of the old session that is
    /// accepted shows as an unexpected write.
    #[test]
    fn restarted_donor_is_detected(
        seed in any::<u64>(),
        faults in any_faults(),
        before in 0..40u64,
        steps in 0..60u64,
    ) {
        let mut world = World::new(seed, 1, 8, faults);
        world.run_until(|world| world.initiator.peer_state(world.peers[0]) == PeerState::Up);
        let mut taken = 0;
        for n in 0..before {
            let access = if n % 3 == 0 {
                world.initiator.read(world.now_ns, n, n * 64, 64)
            } else {
                world.initiator.write(world.now_ns, n, n * 64, &[n as u8 + 1; 64])
            };
            taken += u64::from(access.is_ok());
            if n % 4 == 0 {
                world.step();
            }
        }
        (0..steps).for_each(|_| { world.step(); });
        world.restart_donor(0);
        let down = PeerState::Down { reason: DownReason::Restarted };
        world.run_until(|world| world.initiator.peer_state(world.peers[0]) == down);
        prop_assert_eq!(world.done.len() as u64, taken, "all complete at once");
        for outcome in world.done.values() {
            let failed = Err(AccessError::PeerDown(DownReason::Restarted));
            prop_assert!(outcome.is_ok() || *outcome == failed);
        }
        let refused = world.initiator.read(world.now_ns, 999, 0, 8);
        prop_assert_eq!(refused, Err(FabricError::PeerDown(DownReason::Restarted)));
        world.run_for(SECOND);
        prop_assert!(world.donors[0].memory.written.is_empty());
    }

    /// Frames of the old recipient arrive late, and the new one uses the same address.
    #[test]
    fn restarted_recipient_is_distinguished(
        seed in any::<u64>(),
        faults in any_faults(),
        steps in 0..40u64,
    ) {
        let mut world = World::new(seed, 1, 8, faults);
        for n in 0..4 {
            world.initiator.write(world.now_ns, n, n * 64, &[0xaa; 64]).unwrap();
        }
        (0..steps).for_each(|_| { world.step(); });
        world.done.clear();
        world.restart_initiator();
        world.initiator.write(world.now_ns, 100, 0, &[0xbb; 1024]).unwrap();
        world.run_until(|world| world.done.contains_key(&100));
        let written_then = world.donors[0].memory.written.len();
        world.run_for(SECOND);
        prop_assert_eq!(world.donors[0].memory.written.len(), written_then);
        prop_assert!(world.donors[0].memory.bytes[..1024] == [0xbb; 1024]);
        world.initiator.read(world.now_ns, 101, 0, 1024).unwrap();
        world.run_until(|world| world.done.contains_key(&101));
        prop_assert_eq!(world.done.get(&101), Some(&Ok(vec![0xbb; 1024])));
    }
}
