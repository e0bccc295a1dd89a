//! A connected QPair allocates nothing, losses included.

use venice_fabric::{
    CreditMode, EndConfig, GrantedMemory, Initiator, InitiatorConfig, PeerAddr, PeerIndex,
    QPairConfig, QPairError, QPairEvent, QPairId, QPairKind, Refusal, Target, TargetConfig,
};
use venice_wire::{GrantId, GrantKey, MAX_FRAME_BYTES, NodeId};

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
    frames: u64,
    /// The two ends of each QPair.
    qpairs: Vec<(QPairId, QPairId)>,
}

impl Pair {
    fn connect(config: QPairConfig, qpairs: u32) -> Self {
        let mut initiator = Initiator::new(InitiatorConfig::new(NodeId(1), 11));
        let peer = initiator.add_peer(NodeId(2), 0);
        let mut target = Target::new(TargetConfig::new(NodeId(2), 22));
        let mut near = Vec::new();
        for service in 0..qpairs {
            target.qpairs_mut().listen(service, 1).unwrap();
            near.push(initiator.qpair_connect(0, peer, service, config).unwrap());
        }
        let ends = near.iter().map(|&near| (near, near)).collect();
        let mut pair = Self { now_ns: 0, initiator, target, peer, frames: 0, qpairs: ends };
        let mut connected = 0;
        while connected < qpairs {
            pair.move_frames();
            while let Some(event) = pair.target.qpairs_mut().poll_event() {
                if let QPairEvent::Incoming { qpair, service, .. } = event {
                    pair.target.qpairs_mut().accept(qpair, config.end).unwrap();
                    pair.qpairs[service as usize].1 = qpair;
                }
            }
            while pair.initiator.qpairs_mut().poll_event().is_some() {
                connected += 1;
            }
        }
        pair
    }

    /// Moves all pending frames, and loses every 13th.
    fn move_frames(&mut self) {
        let mut buf = [0; MAX_FRAME_BYTES];
        self.now_ns += 100_000;
        while let Some((_, len)) = self.initiator.poll_transmit(self.now_ns, &mut buf) {
            self.frames += 1;
            if !self.frames.is_multiple_of(13) {
                self.target.handle_frame(self.now_ns, PeerAddr(9), &buf[..len], &mut NoMemory);
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
    }

    /// Sends and reads both ways for `rounds` rounds; returns the bytes read.
    fn traffic(&mut self, kind: QPairKind, rounds: u32) -> usize {
        let mut buf = [7; 5000];
        let mut read = 0;
        for round in 0..rounds {
            for n in 0..self.qpairs.len() {
                let (near, far) = self.qpairs[n];
                let len = 1 + (round as usize * 331) % buf.len();
                let (now_ns, bytes) = (self.now_ns, &buf[..len]);
                let taken = match kind {
                    QPairKind::Messages => {
                        let there = self.initiator.qpairs_mut().send(now_ns, near, bytes);
                        there.and(self.target.qpairs_mut().send(now_ns, far, bytes))
                    }
                    QPairKind::Stream => {
                        let there = self.initiator.qpairs_mut().write(now_ns, near, bytes);
                        there.and(self.target.qpairs_mut().write(now_ns, far, bytes)).map(drop)
                    }
                };
                assert!(matches!(taken, Ok(()) | Err(QPairError::WouldBlock)), "{taken:?}");
            }
            self.move_frames();
            while self.initiator.qpairs_mut().poll_event().is_some() {}
            while self.target.qpairs_mut().poll_event().is_some() {}
            for n in 0..self.qpairs.len() {
                let (near, far) = self.qpairs[n];
                let (one, other) = (self.initiator.qpairs_mut(), self.target.qpairs_mut());
                let (there, back) = match kind {
                    QPairKind::Messages => (other.recv(far, &mut buf), one.recv(near, &mut buf)),
                    QPairKind::Stream => (other.read(far, &mut buf), one.read(near, &mut buf)),
                };
                read += there.unwrap_or(0) + back.unwrap_or(0);
            }
        }
        read
    }
}

#[test]
fn traffic_does_not_allocate() {
    let end = EndConfig { send_bytes: 8192, recv_bytes: 16384, ..EndConfig::default() };
    for kind in [QPairKind::Messages, QPairKind::Stream] {
        for credit in [CreditMode::CrmaWrite, CreditMode::InBand] {
            let mut pair = Pair::connect(QPairConfig { kind, credit, end }, 5);
            pair.traffic(kind, 20);
            let mut read = 0;
            let count = allocation_counter::measure(|| read = pair.traffic(kind, 500));
            assert!(read > 1 << 20, "{kind:?} {credit:?}: {read} bytes");
            assert!(pair.initiator.peer_stats(pair.peer).replayed > 0, "losses occurred");
            assert_eq!(count.count_total, 0, "{kind:?} {credit:?}: {count:?}");
        }
    }
}
