//! What a QPair message costs: nanoseconds for both engines together, back to back in memory, no
//! port in between.
//!
//! ```text
//! cargo run --release -p venice-fabric --example qpair_cost
//! ```

use std::time::Instant;

use venice_fabric::{
    CreditMode, EndConfig, GrantedMemory, Initiator, InitiatorConfig, LinkConfig, PeerAddr,
    PeerIndex, QPairConfig, QPairEvent, QPairId, Refusal, Target, TargetConfig,
};
use venice_wire::{GrantId, GrantKey, MAX_FRAME_BYTES, NodeId};

const MESSAGES: u64 = 16_384;
const RUNS: usize = 31;

struct NoMemory;

impl GrantedMemory for NoMemory {
    fn read(&mut self, _: GrantId, _: GrantKey, _: u64, _: &mut [u8]) -> Result<(), Refusal> {
        Err(Refusal::UnknownGrant)
    }

    fn write(&mut self, _: GrantId, _: GrantKey, _: u64, _: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::UnknownGrant)
    }
}

struct Pair {
    now_ns: u64,
    initiator: Initiator,
    target: Target,
    peer: PeerIndex,
    near: QPairId,
    far: QPairId,
    buf: Box<[u8]>,
    frames: u64,
}

impl Pair {
    fn connect(link: LinkConfig, credit: CreditMode) -> Self {
        let mut initiator = Initiator::new(InitiatorConfig {
            link: link.clone(),
            ..InitiatorConfig::new(NodeId(1), 1)
        });
        let mut target = Target::new(TargetConfig { link, ..TargetConfig::new(NodeId(2), 2) });
        target.qpairs_mut().listen(1, 1).expect("nobody else listens");
        let peer = initiator.add_peer(NodeId(2), 0);
        let config = QPairConfig { credit, ..QPairConfig::messages() };
        let near = initiator.qpair_connect(0, peer, 1, config).expect("there is room");
        let buf = vec![0; MAX_FRAME_BYTES].into();
        let mut pair = Self { now_ns: 0, initiator, target, peer, near, far: near, buf, frames: 0 };
        loop {
            pair.move_frames();
            let qpairs = pair.target.qpairs_mut();
            if let Some(QPairEvent::Incoming { qpair, .. }) = qpairs.poll_event() {
                qpairs.accept(qpair, EndConfig::default()).expect("it waits");
                pair.far = qpair;
            }
            if pair.initiator.qpairs_mut().poll_event().is_some() {
                return pair;
            }
        }
    }

    fn move_frames(&mut self) {
        let Self { now_ns, initiator, target, peer, buf, .. } = self;
        *now_ns += 100;
        while let Some((_, len)) = initiator.poll_transmit(*now_ns, buf) {
            self.frames += 1;
            target.handle_frame(*now_ns, PeerAddr(1), &buf[..len], &mut NoMemory);
        }
        while let Some((_, len)) = target.poll_transmit(*now_ns, buf) {
            self.frames += 1;
            initiator.handle_frame(*now_ns, *peer, &buf[..len]);
        }
    }

    /// Sends `MESSAGES` messages, `batch` at a time; returns nanoseconds a message.
    fn one_way(&mut self, len: usize, batch: u64) -> f64 {
        let (message, mut into) = (vec![7; len], vec![0; len]);
        let start = Instant::now();
        for _ in 0..MESSAGES / batch {
            for _ in 0..batch {
                let qpairs = self.initiator.qpairs_mut();
                qpairs.send(self.now_ns, self.near, &message).expect("there is room");
            }
            self.move_frames();
            let mut read = 0;
            while self.target.qpairs_mut().recv(self.far, &mut into).is_ok() {
                read += 1;
            }
            assert_eq!(read, batch);
            while self.target.qpairs_mut().poll_event().is_some() {}
        }
        start.elapsed().as_nanos() as f64 / MESSAGES as f64
    }

    /// Sends one message at a time there and back; returns nanoseconds a message.
    fn ping_pong(&mut self, len: usize) -> f64 {
        let (message, mut into) = (vec![7; len], vec![0; len]);
        let start = Instant::now();
        for _ in 0..MESSAGES / 2 {
            let qpairs = self.initiator.qpairs_mut();
            qpairs.send(self.now_ns, self.near, &message).expect("there is room");
            self.move_frames();
            let qpairs = self.target.qpairs_mut();
            qpairs.recv(self.far, &mut into).expect("it has arrived");
            qpairs.send(self.now_ns, self.far, &message).expect("there is room");
            self.move_frames();
            self.initiator.qpairs_mut().recv(self.near, &mut into).expect("it has arrived");
        }
        start.elapsed().as_nanos() as f64 / MESSAGES as f64
    }
}

/// The median of all runs, and the best: on a busy machine the one that was left in peace.
fn measure(mut run: impl FnMut() -> f64) -> String {
    let mut runs: Vec<f64> = (0..RUNS).map(|_| run()).collect();
    runs.sort_by(f64::total_cmp);
    format!("{:.0} / {:.0}", runs[RUNS / 2], runs[0])
}

fn main() {
    println!(
        "ns a message, both ends together: median / best of {RUNS} runs of {MESSAGES} messages"
    );
    println!("link, credits            bytes      ping-pong     one by one      64 a time");
    for (link_name, link) in
        [("replayed", LinkConfig::default()), ("reliable", LinkConfig::reliable())]
    {
        for (credit_name, credit) in
            [("CRMA write", CreditMode::CrmaWrite), ("in band", CreditMode::InBand)]
        {
            for len in [64, 1024] {
                let mut pair = Pair::connect(link.clone(), credit);
                let ping_pong = measure(|| pair.ping_pong(len));
                let single = measure(|| pair.one_way(len, 1));
                let batched = measure(|| pair.one_way(len, 64));
                let name = format!("{link_name}, {credit_name}");
                println!("{name:<24} {len:>5} {ping_pong:>14} {single:>14} {batched:>14}");
            }
        }
    }
}
