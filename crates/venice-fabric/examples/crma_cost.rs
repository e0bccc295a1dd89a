//! What one CRMA access costs in both state machines together, without any port between them:
//! nanoseconds for request and answer, the donor's copy of the bytes included.
//!
//! `cargo run --release -p venice-fabric --example crma_cost`

use std::hint::black_box;
use std::time::Instant;

use venice_fabric::{
    GrantedMemory, Initiator, InitiatorConfig, LinkConfig, PeerAddr, PeerIndex, Refusal, Target,
    TargetConfig,
};
use venice_wire::{GrantId, GrantKey, MAX_FRAME_BYTES, NodeId};

/// Few enough for a batch to fit between two interruptions, on a machine that others use too.
const BATCH: u32 = 1_600;
const BATCHES: usize = 200;

fn main() {
    println!(
        "{:36} {:>8} {:>8} {:>8}",
        "ns per access, best of 200 batches", "CRC", "no CRC", "reliable"
    );
    for (name, len) in [("64 B", 64), ("4 KiB", 4096)] {
        row(&format!("read {name}"), |pair, n| pair.read(n, len));
        row(&format!("write {name}"), |pair, n| pair.write(n, len));
    }
    row("fetch-add", |pair, n| {
        pair.initiator.fetch_add(pair.now_ns, n, 0, 1).unwrap();
        pair.until_answered();
    });
    row("posted 64 B, 32 with a fence", Pair::posts);
}

fn row(name: &str, mut access: impl FnMut(&mut Pair, u64)) {
    let links = [
        LinkConfig::default(),
        LinkConfig { checksum: false, ..LinkConfig::default() },
        LinkConfig::reliable(),
    ];
    let cells = links.map(|link| best_ns(link, &mut access));
    println!("{name:36} {:8.0} {:8.0} {:8.0}", cells[0], cells[1], cells[2]);
}

fn best_ns(link: LinkConfig, access: &mut impl FnMut(&mut Pair, u64)) -> f64 {
    let mut pair = Pair::new(link);
    (0..BATCHES).map(|_| pair.measure_ns(access)).fold(f64::INFINITY, f64::min)
}

/// A slab of plain memory, cheap to reach.
struct Slab(Vec<u8>);

impl GrantedMemory for Slab {
    fn read(&mut self, _: GrantId, _: GrantKey, addr: u64, into: &mut [u8]) -> Result<(), Refusal> {
        let from = self.0.get(addr as usize..).and_then(|from| from.get(..into.len()));
        into.copy_from_slice(from.ok_or(Refusal::OutOfRange)?);
        Ok(())
    }

    fn write(&mut self, _: GrantId, _: GrantKey, addr: u64, from: &[u8]) -> Result<(), Refusal> {
        let into = self.0.get_mut(addr as usize..).and_then(|into| into.get_mut(..from.len()));
        into.ok_or(Refusal::OutOfRange)?.copy_from_slice(from);
        Ok(())
    }
}

/// Both ends, and a wire without length.
struct Pair {
    now_ns: u64,
    initiator: Initiator,
    target: Target,
    memory: Slab,
    peer: PeerIndex,
    frame: Box<[u8; MAX_FRAME_BYTES]>,
}

impl Pair {
    fn new(link: LinkConfig) -> Self {
        let config = InitiatorConfig::new(NodeId(1), 1);
        let mut initiator = Initiator::new(InitiatorConfig { link: link.clone(), ..config });
        let peer = initiator.add_peer(NodeId(2), 0);
        initiator.map_window(0, 1 << 20, peer, 0, GrantId(1), GrantKey(1)).unwrap();
        let target = Target::new(TargetConfig { link, ..TargetConfig::new(NodeId(2), 2) });
        let memory = Slab(vec![7; 1 << 20]);
        let frame = Box::new([0; MAX_FRAME_BYTES]);
        let mut pair = Self { now_ns: 0, initiator, target, memory, peer, frame };
        pair.read(0, 64);
        pair
    }

    fn measure_ns(&mut self, access: &mut impl FnMut(&mut Self, u64)) -> f64 {
        let start = Instant::now();
        (0..BATCH).for_each(|n| access(self, u64::from(n)));
        start.elapsed().as_nanos() as f64 / f64::from(BATCH)
    }

    fn read(&mut self, token: u64, len: u32) {
        let addr = token * 4096 % (1 << 20);
        self.initiator.read(self.now_ns, token, addr, len).unwrap();
        self.until_answered();
    }

    fn write(&mut self, token: u64, len: u32) {
        const BYTES: [u8; 4096] = [3; 4096];
        let addr = token * 4096 % (1 << 20);
        self.initiator.write(self.now_ns, token, addr, &BYTES[..len as usize]).unwrap();
        self.until_answered();
    }

    /// One of 32 posted writes; the last of them waits for all.
    fn posts(&mut self, n: u64) {
        self.initiator.post(self.now_ns, n * 64 % (1 << 20), &[5; 64]).unwrap();
        if n % 32 == 31 {
            self.initiator.fence(self.now_ns, n).unwrap();
            self.until_answered();
        }
    }

    fn until_answered(&mut self) {
        loop {
            self.now_ns += 100;
            while let Some((_, len)) =
                self.initiator.poll_transmit(self.now_ns, &mut self.frame[..])
            {
                let (frame, memory) = (&self.frame[..len], &mut self.memory);
                self.target.handle_frame(self.now_ns, PeerAddr(1), frame, memory);
            }
            while let Some((_, len)) = self.target.poll_transmit(self.now_ns, &mut self.frame[..]) {
                self.initiator.handle_frame(self.now_ns, self.peer, &self.frame[..len]);
            }
            if let Some(done) = self.initiator.poll_completion() {
                assert_eq!(done.result, Ok(()));
                black_box(done.data);
                return;
            }
        }
    }
}
