//! Whatever the network does, every access completes, every read brings what was written before
//! it, and every write is carried out once and in order.

mod world;

use proptest::prelude::*;
use venice_fabric::{AccessError, DownReason, FabricError, PeerState};
use world::{Faults, LENT_BYTES, Rng, SECOND, US, World};

const DONORS: usize = 2;
/// Bulk transfers have the middle of the window space, around the place where the donors' windows
/// meet; single accesses keep out of it.
const BULK: std::ops::Range<u64> = LENT_BYTES - 24 * 1024..LENT_BYTES + 24 * 1024;

#[derive(Clone, Debug)]
enum Op {
    Read { at: u64, len: u32 },
    Write { at: u64, len: u32 },
    BulkRead { at: u64, len: u32 },
    BulkWrite { at: u64, len: u32 },
    Pause { us: u64 },
}

fn any_len() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 1..64u32, 1 => Just(4096u32)]
}

fn any_op() -> impl Strategy<Value = Op> {
    // Few places, so that accesses meet each other; on both sides of the bulk range.
    let place = (any::<bool>(), 0..8u64)
        .prop_map(|(high, n)| if high { BULK.end + n * 16 } else { n * 16 });
    let bulk_at = (0..24u64).prop_map(|n| BULK.start + n * 1000);
    prop_oneof![
        4 => (place.clone(), any_len()).prop_map(|(at, len)| Op::Read { at, len }),
        4 => (place, any_len()).prop_map(|(at, len)| Op::Write { at, len }),
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

/// Drives a world and a flat model of its window space side by side.
struct Checker {
    world: World,
    model: Vec<u8>,
    rng: Rng,
    next_token: u64,
    /// What each access is to bring.
    expected: Vec<(u64, Vec<u8>)>,
    expected_bulk: Vec<(u64, Vec<u8>)>,
    /// Single writes in the order given, by donor: remote address and bytes.
    written: [Vec<(u64, Vec<u8>)>; DONORS],
}

impl Checker {
    fn new(seed: u64, window: u16, faults: Faults) -> Self {
        Self {
            world: World::new(seed, DONORS, window, faults),
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
        self.slice(at, len).copy_from_slice(&bytes);
        self.expected.push((token, Vec::new()));
        let (donor, remote_addr) = (at / LENT_BYTES, at % LENT_BYTES);
        self.written[donor as usize].push((remote_addr, bytes));
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
        panic!("10 virtual minutes and not taken");
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
        let outstanding = self.expected.len();
        self.world.run_until(|world| world.done.len() == outstanding);
        for (token, bytes) in self.expected {
            assert_eq!(self.world.done[&token], Ok(bytes), "access {token}");
        }
        for (token, bytes) in self.expected_bulk {
            assert_eq!(self.world.bulk_done[&token], Ok(bytes), "bulk transfer {token}");
        }
        // Long enough for any late frame to do its harm.
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
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn every_access_is_right(
        seed in any::<u64>(),
        window in prop::sample::select(vec![4u16, 8, 64]),
        faults in any_faults(),
        ops in prop::collection::vec(any_op(), 1..60),
    ) {
        let mut checker = Checker::new(seed, window, faults);
        ops.iter().for_each(|op| checker.apply(op));
        checker.finish();
    }

    /// The donor's new life has the same grant and key, so a frame of the old life that is taken
    /// for one of the new shows as a write nobody made.
    #[test]
    fn a_restarted_donor_is_noticed_and_never_confused(
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

    /// Frames of the old recipient come late, and the new one is on the same address.
    #[test]
    fn a_restarted_recipient_is_never_confused(
        seed in any::<u64>(),
        faults in any_faults(),
        steps in 0..40u64,
    ) {
        let mut world = World::new(seed, 1, 8, faults);
        for n in 0..8 {
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
