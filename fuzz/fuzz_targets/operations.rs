//! Operations of a user on both ends over a network that does what it likes, against a model of the
//! memory: every access that was taken ends once and brings what was there, both tables agree in
//! the end.
#![no_main]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use venice_fabric::{
    Atomic, FabricError, Initiator, PeerIndex, PeerState, RdmaDirection, ScatterGather, Target,
    WindowRange,
};
use venice_fuzz::{ADDR, KEY, LENT_BYTES, Lent, LinkSetup, initiator, open_link, target};
use venice_wire::{GrantId, MAX_FRAME_BYTES};

/// Single accesses keep to the lower half, which the model knows; bulk transfers to the upper.
const MODEL_BYTES: u64 = LENT_BYTES / 2;
/// Another window, which comes and goes.
const SECOND: u64 = 1 << 20;

#[derive(Arbitrary, Debug)]
enum Op {
    Read {
        at: u16,
        len: u16,
    },
    Write {
        at: u16,
        len: u16,
        byte: u8,
    },
    Post {
        at: u16,
        len: u16,
        byte: u8,
    },
    Fence,
    Atomic {
        at: u16,
        add: u64,
        is_swap: bool,
        fits: bool,
    },
    Bulk {
        at: u16,
        lens: [u16; 3],
        is_write: bool,
    },
    MapSecond {
        grant: u8,
    },
    UnmapSecond,
    ReadSecond,
    Revoke {
        grant: u8,
    },
    /// Moves frames: of those under way to one end so many, the nth of them first.
    Move {
        to_target: bool,
        count: u8,
        nth: u8,
    },
    Lose {
        to_target: bool,
        nth: u8,
    },
    Repeat {
        to_target: bool,
        nth: u8,
    },
    Damage {
        to_target: bool,
        nth: u8,
        at: u16,
        bit: u8,
    },
    Advance {
        us: u16,
    },
}

struct World {
    setup: LinkSetup,
    now_ns: u64,
    initiator: Initiator,
    peer: PeerIndex,
    target: Target,
    memory: Lent,
    /// Frames under way: to the initiator, to the target.
    ways: [VecDeque<Vec<u8>>; 2],
    model: Vec<u8>,
    next_token: u64,
    /// What is to come, by token; `None`: nobody knows.
    expected: BTreeMap<u64, Option<Vec<u8>>>,
    bulk_outstanding: usize,
    revoked: BTreeSet<u64>,
}

impl World {
    fn new(setup: LinkSetup) -> Self {
        let (mut initiator, peer) = initiator(setup.config());
        let (mut target, mut memory) = (target(setup.config()), Lent::default());
        open_link(&mut initiator, peer, &mut target, &mut memory);
        initiator.map_window(0, LENT_BYTES, peer, 0, GrantId(1), KEY).expect("the first window");
        Self {
            setup,
            now_ns: 1_000,
            initiator,
            peer,
            target,
            memory,
            ways: [VecDeque::new(), VecDeque::new()],
            model: vec![0; MODEL_BYTES as usize],
            next_token: 0,
            expected: BTreeMap::new(),
            bulk_outstanding: 0,
            revoked: BTreeSet::new(),
        }
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    fn slice(&mut self, at: u16, len: u16) -> (u64, &mut [u8]) {
        let len = u64::from(len % 4096) + 1;
        let at = u64::from(at) % (MODEL_BYTES - len);
        (at, &mut self.model[at as usize..][..len as usize])
    }

    fn took(
        &mut self,
        token: u64,
        taken: Result<(), FabricError>,
        outcome: Option<Vec<u8>>,
    ) -> bool {
        match taken {
            Ok(()) => assert_eq!(self.expected.insert(token, outcome), None),
            Err(FabricError::WouldBlock | FabricError::NotMapped { .. }) => {}
            Err(FabricError::Revoked { .. } | FabricError::Unaligned { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        taken.is_ok()
    }

    fn apply(&mut self, op: Op) {
        let (now_ns, token) = (self.now_ns, self.token());
        match op {
            Op::Read { at, len } => {
                let (at, bytes) = self.slice(at, len);
                let bytes = bytes.to_vec();
                let taken = self.initiator.read(now_ns, token, at, bytes.len() as u32);
                self.took(token, taken, Some(bytes));
            }
            Op::Write { at, len, byte } => {
                let (at, bytes) = self.slice(at, len);
                let bytes = vec![byte; bytes.len()];
                let taken = self.initiator.write(now_ns, token, at, &bytes);
                if self.took(token, taken, Some(Vec::new())) {
                    self.model[at as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
            }
            Op::Post { at, len, byte } => {
                let (at, bytes) = self.slice(at, len);
                let bytes = vec![byte; bytes.len()];
                if self.initiator.post(now_ns, at, &bytes).is_ok() {
                    self.model[at as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
            }
            Op::Fence => {
                self.fence();
            }
            Op::Atomic { at, add, is_swap, fits } => self.atomic(token, at, add, is_swap, fits),
            Op::Bulk { at, lens, is_write } => self.bulk(token, at, lens, is_write),
            Op::MapSecond { grant } => {
                let grant = u64::from(grant % 3) + 2;
                let _ = self.initiator.map_window(SECOND, 64, self.peer, 0, GrantId(grant), KEY);
            }
            Op::UnmapSecond => drop(self.initiator.unmap_window(SECOND)),
            Op::ReadSecond => {
                let taken = self.initiator.read(now_ns, token, SECOND, 8);
                self.took(token, taken, None);
            }
            Op::Revoke { grant } => {
                let grant = u64::from(grant % 3) + 2;
                self.target.revoke(now_ns, GrantId(grant));
                self.revoked.insert(grant);
            }
            Op::Move { to_target, count, nth } => {
                self.transmit();
                for _ in 0..count % 16 {
                    self.deliver(to_target, nth);
                }
            }
            Op::Lose { to_target, nth } => drop(self.pick(to_target, nth)),
            Op::Repeat { to_target, nth } => {
                if let Some(frame) = self.pick(to_target, nth) {
                    let way = &mut self.ways[usize::from(to_target)];
                    way.push_back(frame.clone());
                    way.push_front(frame);
                }
            }
            Op::Damage { to_target, nth, at, bit } => {
                if self.setup.checksum
                    && let Some(mut frame) = self.pick(to_target, nth)
                {
                    let at = usize::from(at) % frame.len();
                    frame[at] ^= 1 << (bit % 8);
                    self.ways[usize::from(to_target)].push_back(frame);
                }
            }
            Op::Advance { us } => self.advance(u64::from(us) * 1_000),
        }
    }

    fn fence(&mut self) -> bool {
        let token = self.token();
        let taken = self.initiator.fence(self.now_ns, token);
        self.took(token, taken, Some(Vec::new()))
    }

    fn atomic(&mut self, token: u64, at: u16, add: u64, is_swap: bool, fits: bool) {
        let at = u64::from(at) % (MODEL_BYTES - 8) & !7;
        let word = self.model[at as usize..][..8].try_into().expect("eight bytes");
        let old = u64::from_le_bytes(word);
        let now_ns = self.now_ns;
        let (atomic, taken) = if is_swap {
            let expected = old.wrapping_add(u64::from(!fits));
            let taken = self.initiator.compare_swap(now_ns, token, at, expected, add);
            (Atomic::CompareSwap { expected, new: add }, taken)
        } else {
            (Atomic::FetchAdd(add), self.initiator.fetch_add(now_ns, token, at, add))
        };
        if self.took(token, taken, Some(word.to_vec()))
            && let Some(new) = atomic.apply(old)
        {
            self.model[at as usize..][..8].copy_from_slice(&new.to_le_bytes());
        }
    }

    fn bulk(&mut self, token: u64, at: u16, lens: [u16; 3], is_write: bool) {
        let lens = lens.map(|len| u64::from(len) % 5000);
        let at = MODEL_BYTES + u64::from(at) % 1000;
        let ranges = lens.map(|len_bytes| WindowRange { window_addr: at, len_bytes }).to_vec();
        let mut left = lens.iter().sum::<u64>() as usize;
        let first = left / 3;
        left -= first;
        let lists = ScatterGather { ranges, segments: vec![vec![1; first], vec![2; left]] };
        let direction = if is_write { RdmaDirection::Write } else { RdmaDirection::Read };
        let taken = self.initiator.rdma_submit(self.now_ns, token, direction, lists);
        self.bulk_outstanding += usize::from(taken.is_ok());
    }

    /// On a reliable port frames stay in order; else the nth is taken.
    fn pick(&mut self, to_target: bool, nth: u8) -> Option<Vec<u8>> {
        if !self.setup.replay {
            return None;
        }
        let way = &mut self.ways[usize::from(to_target)];
        let nth = usize::from(nth) % way.len().max(1);
        way.remove(nth)
    }

    fn deliver(&mut self, to_target: bool, nth: u8) {
        let frame =
            self.pick(to_target, nth).or_else(|| self.ways[usize::from(to_target)].pop_front());
        let Some(frame) = frame else { return };
        if to_target {
            self.target.handle_frame(self.now_ns, ADDR, &frame, &mut self.memory);
        } else {
            self.initiator.handle_frame(self.now_ns, self.peer, &frame);
        }
        self.collect();
    }

    fn transmit(&mut self) {
        let mut buf = [0; MAX_FRAME_BYTES];
        while let Some((_, len)) = self.initiator.poll_transmit(self.now_ns, &mut buf) {
            self.ways[1].push_back(buf[..len].to_vec());
        }
        while let Some((_, len)) = self.target.poll_transmit(self.now_ns, &mut buf) {
            self.ways[0].push_back(buf[..len].to_vec());
        }
    }

    fn advance(&mut self, duration_ns: u64) {
        self.now_ns += duration_ns;
        self.initiator.handle_timeout(self.now_ns);
        self.target.handle_timeout(self.now_ns);
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(done) = self.initiator.poll_completion() {
            let expected = self.expected.remove(&done.token).expect("taken, and not over yet");
            if let Some(bytes) = expected {
                assert_eq!(done.result, Ok(()), "access {}", done.token);
                assert!(done.data == bytes, "access {} brought something else", done.token);
            }
        }
        while let Some(done) = self.initiator.poll_rdma_completion() {
            assert_eq!(done.result, Ok(()));
            self.bulk_outstanding -= 1;
        }
    }

    /// A good network from here on: all comes to an end.
    fn finish(mut self) {
        let mut is_fenced = false;
        for _ in 0..2_000 {
            // Posted writes tell of their end by a fence only.
            is_fenced = is_fenced || self.fence();
            self.transmit();
            while !self.ways.iter().all(VecDeque::is_empty) {
                self.deliver(true, 0);
                self.deliver(false, 0);
            }
            self.advance(5_000_000);
            let is_over = is_fenced && self.expected.is_empty() && self.bulk_outstanding == 0;
            if is_over && self.agree() {
                break;
            }
        }
        assert_eq!(self.initiator.peer_state(self.peer), PeerState::Up);
        assert!(self.expected.is_empty() && self.bulk_outstanding == 0, "all is over");
        assert!(self.agree(), "both tables agree");
        assert!(self.memory.0[..MODEL_BYTES as usize] == self.model, "what was written is there");
        if !self.setup.replay {
            let stats = self.initiator.peer_stats(self.peer);
            assert_eq!((stats.replayed, stats.overruns, stats.duplicates), (0, 0, 0));
        }
    }

    fn agree(&self) -> bool {
        let there: BTreeSet<_> = self.target.mappings().map(|mapping| mapping.grant).collect();
        let opened = self.initiator.mappings().filter(|window| window.is_open);
        let here: BTreeSet<_> = opened.map(|window| window.grant).collect();
        there == here && there.iter().all(|grant| !self.revoked.contains(&grant.0))
    }
}

fuzz_target!(|input: (LinkSetup, Vec<Op>)| {
    let (setup, ops) = input;
    let mut world = World::new(setup);
    for op in ops.into_iter().take(200) {
        world.apply(op);
    }
    world.finish();
});
