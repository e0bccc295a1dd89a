//! Many QPairs over a faulty network, beside a model: each message arrives once, whole and in
//! order, whatever the readers do and whenever an end closes; and all credit returns.

use std::collections::{BTreeMap, VecDeque};

use crate::world::{Faults, RECIPIENT_ADDR, Rng, SECOND, US, World};
use proptest::prelude::*;
use venice_fabric::{
    CloseReason, CreditMode, EndConfig, LinkConfig, QPairConfig, QPairError, QPairEvent, QPairId,
    QPairKind, QPairs,
};

const DONORS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Near,
    Far,
}

impl Side {
    fn other(self) -> Self {
        if self == Self::Near { Self::Far } else { Self::Near }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Connect { donor: usize, from: Side, config: QPairConfig, accepting: EndConfig },
    Send { pair: usize, side: Side, len: usize },
    Read { pair: usize, side: Side, times: u32 },
    Access { at: u64 },
    Shutdown { pair: usize, side: Side },
    Close { pair: usize, side: Side },
    Abort { pair: usize, side: Side },
    Pause { us: u64 },
}

fn any_side() -> impl Strategy<Value = Side> {
    prop::sample::select(vec![Side::Near, Side::Far])
}

prop_compose! {
    fn any_end()(
        send_bytes in prop::sample::select(vec![4096u32, 16384]),
        recv_bytes in prop::sample::select(vec![4096u32, 16384]),
        recv_messages in prop::sample::select(vec![1u32, 3, 1000]),
        credit_every_bytes in prop::sample::select(vec![0u32, 1, 1 << 30]),
        batching in any::<bool>(),
    ) -> EndConfig {
        EndConfig {
            send_bytes,
            recv_bytes,
            recv_messages,
            credit_every_bytes,
            batching,
            ..EndConfig::default()
        }
    }
}

fn any_connect() -> impl Strategy<Value = Op> {
    let kind = prop::sample::select(vec![QPairKind::Messages, QPairKind::Stream]);
    let credit = prop::sample::select(vec![CreditMode::CrmaWrite, CreditMode::InBand]);
    let config =
        (kind, credit, any_end()).prop_map(|(kind, credit, end)| QPairConfig { kind, credit, end });
    (0..DONORS, any_side(), config, any_end())
        .prop_map(|(donor, from, config, accepting)| Op::Connect { donor, from, config, accepting })
}

fn any_op() -> impl Strategy<Value = Op> {
    let place = || (0..8usize, any_side());
    let len = prop_oneof![4 => 1..100usize, 1 => 1..5000usize, 1 => Just(16380usize)];
    prop_oneof![
        2 => any_connect(),
        12 => (place(), len).prop_map(|((pair, side), len)| Op::Send { pair, side, len }),
        8 => (place(), 1..8u32).prop_map(|((pair, side), times)| Op::Read { pair, side, times }),
        2 => (0..64u64).prop_map(|n| Op::Access { at: n * 64 }),
        1 => place().prop_map(|(pair, side)| Op::Shutdown { pair, side }),
        1 => place().prop_map(|(pair, side)| Op::Close { pair, side }),
        1 => place().prop_map(|(pair, side)| Op::Abort { pair, side }),
        4 => (0..20_000u64).prop_map(|us| Op::Pause { us }),
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

/// One end in the model.
#[derive(Debug, Default)]
struct End {
    id: Option<QPairId>,
    /// Sent by this end and not yet read by the other: messages, or bytes one by one.
    unread: VecDeque<Vec<u8>>,
    /// The actions of this end.
    has_ended: bool,
    is_released: bool,
    has_aborted: bool,
    /// The events of this end.
    is_connected: bool,
    closed: Option<CloseReason>,
}

#[derive(Debug)]
struct Pair {
    donor: usize,
    kind: QPairKind,
    credit: CreditMode,
    accepting: EndConfig,
    ends: [End; 2],
    /// Its link was cut.
    is_cut: bool,
}

impl Pair {
    fn end(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }
}

struct Checker {
    world: World,
    pairs: Vec<Pair>,
    rng: Rng,
    is_lossless: bool,
    accesses: u64,
    near_ids: BTreeMap<QPairId, usize>,
    far_ids: BTreeMap<(usize, QPairId), usize>,
}

impl Checker {
    fn new(seed: u64, window: u16, faults: Faults) -> Self {
        Self::with(seed, World::new(seed, DONORS, window, faults), faults)
    }

    /// Over a port that loses nothing and keeps the order: links without checksums and replay.
    fn reliable(seed: u64, window: u16) -> Self {
        let silence_ns = 60 * SECOND;
        let link = LinkConfig { window, silence_ns, ..LinkConfig::reliable() };
        let faults = Faults::default();
        Self::with(seed, World::with_link(seed, DONORS, link, faults), faults)
    }

    fn with(seed: u64, world: World, faults: Faults) -> Self {
        let mut checker = Self {
            world,
            pairs: Vec::new(),
            rng: Rng(seed ^ 2),
            is_lossless: faults.lost + faults.damaged == 0,
            accesses: 0,
            near_ids: BTreeMap::new(),
            far_ids: BTreeMap::new(),
        };
        checker.world.run_until(|world| {
            world.donors.iter().all(|donor| donor.target.link_stats().count() > 0)
        });
        checker
    }

    fn engine(&mut self, side: Side, donor: usize) -> &mut QPairs {
        match side {
            Side::Near => self.world.initiator.qpairs_mut(),
            Side::Far => self.world.donors[donor].target.qpairs_mut(),
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Connect { donor, from, config, accepting } => {
                self.connect(donor, from, config, accepting);
            }
            Op::Send { pair, side, len } => self.send(pair, side, len),
            Op::Read { pair, side, times } => {
                for _ in 0..times {
                    if !self.read(pair, side) {
                        break;
                    }
                }
            }
            Op::Access { at } => self.access(at),
            Op::Shutdown { pair, side } => self.shutdown(pair, side),
            Op::Close { pair, side } => self.close(pair, side, false),
            Op::Abort { pair, side } => self.close(pair, side, true),
            Op::Pause { us } => {
                let end_ns = self.world.now_ns + us * US;
                while self.world.now_ns < end_ns && self.world.step() {
                    self.collect();
                }
            }
        }
        self.collect();
    }

    fn connect(&mut self, donor: usize, from: Side, config: QPairConfig, accepting: EndConfig) {
        let service = self.pairs.len() as u32;
        self.engine(from.other(), donor).listen(service, 1).unwrap();
        let (now_ns, peer) = (self.world.now_ns, self.world.peers[donor]);
        let asked = match from {
            Side::Near => self.world.initiator.qpair_connect(now_ns, peer, service, config),
            Side::Far => {
                let target = &mut self.world.donors[donor].target;
                target.qpair_connect(now_ns, RECIPIENT_ADDR, service, config)
            }
        };
        let ends = [End::default(), End::default()];
        let QPairConfig { kind, credit, .. } = config;
        self.pairs.push(Pair { donor, kind, credit, accepting, ends, is_cut: false });
        self.learn(self.pairs.len() - 1, from, asked.expect("the link is up"));
    }

    fn learn(&mut self, at: usize, side: Side, id: QPairId) {
        let pair = &mut self.pairs[at];
        pair.end(side).id = Some(id);
        let earlier = match side {
            Side::Near => self.near_ids.insert(id, at),
            Side::Far => self.far_ids.insert((pair.donor, id), at),
        };
        assert_eq!(earlier, None, "a handle in use was given again");
    }

    fn forget(&mut self, at: usize, side: Side, id: QPairId) {
        match side {
            Side::Near => self.near_ids.remove(&id),
            Side::Far => self.far_ids.remove(&(self.pairs[at].donor, id)),
        };
    }

    /// Returns the end an operation is for, if it exists and its handle was not released.
    fn find(&mut self, pair: usize, side: Side) -> Option<(usize, QPairId)> {
        let at = pair.checked_rem(self.pairs.len())?;
        let end = self.pairs[at].end(side);
        if end.is_released {
            return None;
        }
        Some((at, end.id?))
    }

    fn send(&mut self, pair: usize, side: Side, len: usize) {
        let Some((at, id)) = self.find(pair, side) else { return };
        let (now_ns, kind, donor) = (self.world.now_ns, self.pairs[at].kind, self.pairs[at].donor);
        let bytes: Vec<u8> = (0..len).map(|_| self.rng.draw() as u8).collect();
        let engine = self.engine(side, donor);
        let outcome = match kind {
            QPairKind::Messages => engine.send(now_ns, id, &bytes).map(|()| len),
            QPairKind::Stream => engine.write(now_ns, id, &bytes),
        };
        let max_bytes = engine.max_message_bytes(id).unwrap();
        let pair = &mut self.pairs[at];
        match outcome {
            Ok(taken) => {
                let end = pair.end(side);
                assert!(!end.has_ended && !end.is_released);
                let unread = &mut end.unread;
                match kind {
                    QPairKind::Messages => unread.push_back(bytes),
                    QPairKind::Stream => unread.extend(bytes[..taken].iter().map(|&b| vec![b])),
                }
            }
            Err(QPairError::WouldBlock) => {}
            Err(QPairError::TooLong { .. }) => assert!(len > max_bytes),
            Err(QPairError::Ended) => assert!(pair.end(side).has_ended),
            Err(QPairError::Closed(reason)) => Self::check_reason(pair, side, reason),
            Err(error) => panic!("{error}"),
        }
    }

    /// Checks `reason` against the actions that can lead to it.
    fn check_reason(pair: &mut Pair, side: Side, reason: CloseReason) {
        let own_end = pair.end(side).has_ended || pair.end(side).is_released;
        let is_cut = pair.is_cut;
        let other = pair.end(side.other());
        let is_right = match reason {
            CloseReason::Finished => own_end && other.has_ended,
            CloseReason::PeerClosed => other.is_released,
            CloseReason::PeerAborted => other.has_aborted,
            CloseReason::Refused(_) => other.is_released,
            CloseReason::LinkDown(_) => is_cut,
            CloseReason::Protocol => false,
        };
        assert!(is_right, "{reason:?} without a cause");
    }

    /// Reads once; returns true if there was something.
    fn read(&mut self, pair: usize, side: Side) -> bool {
        let Some((at, id)) = self.find(pair, side) else { return false };
        let (kind, donor) = (self.pairs[at].kind, self.pairs[at].donor);
        let mut buf = vec![0; 20_000];
        let by_peek = self.rng.chance(300);
        let engine = self.engine(side, donor);
        let outcome = match kind {
            _ if by_peek => engine.peek(id).map(|(front, back)| [front, back].concat()),
            QPairKind::Messages => engine.recv(id, &mut buf).map(|len| buf[..len].to_vec()),
            QPairKind::Stream => engine.read(id, &mut buf[..777]).map(|len| buf[..len].to_vec()),
        };
        if let (true, Ok(bytes)) = (by_peek, &outcome) {
            engine.consume(id, bytes.len()).unwrap();
        }
        let pair = &mut self.pairs[at];
        let other = pair.end(side.other());
        match outcome {
            Ok(bytes) if bytes.is_empty() => {
                assert!(other.has_ended || other.is_released, "an end without a cause");
                assert!(other.unread.is_empty(), "an end that came too early");
                false
            }
            Ok(bytes) => {
                match kind {
                    QPairKind::Messages => {
                        assert!(other.unread.pop_front() == Some(bytes), "message differs");
                    }
                    QPairKind::Stream => {
                        let expected = other.unread.drain(..bytes.len()).flatten();
                        assert!(expected.eq(bytes), "bytes differ");
                    }
                }
                true
            }
            Err(QPairError::WouldBlock) => false,
            Err(QPairError::Closed(reason)) => {
                Self::check_reason(pair, side, reason);
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn access(&mut self, at: u64) {
        let now_ns = self.world.now_ns;
        let token = self.accesses;
        let taken = match token % 2 {
            0 => self.world.initiator.write(now_ns, token, at, &[token as u8; 64]),
            _ => self.world.initiator.read(now_ns, token, at, 64),
        };
        self.accesses += u64::from(taken.is_ok());
    }

    fn shutdown(&mut self, pair: usize, side: Side) {
        let Some((at, id)) = self.find(pair, side) else { return };
        let donor = self.pairs[at].donor;
        if self.engine(side, donor).shutdown(id).is_ok() {
            self.pairs[at].end(side).has_ended = true;
        }
    }

    fn close(&mut self, pair: usize, side: Side, is_abort: bool) {
        let Some((at, id)) = self.find(pair, side) else { return };
        let donor = self.pairs[at].donor;
        let is_connected = self.pairs[at].end(side).is_connected;
        let engine = self.engine(side, donor);
        if is_abort {
            engine.abort(id);
        } else {
            engine.close(id);
        }
        let late = engine.recv(id, &mut [0; 1]);
        assert_eq!(late, Err(QPairError::Unknown), "the handle was given back");
        let end = self.pairs[at].end(side);
        // A QPair that was never connected has nothing to send first.
        end.has_aborted |= is_abort || !is_connected;
        (end.is_released, end.has_ended) = (true, true);
        self.forget(at, side, id);
    }

    fn collect(&mut self) {
        while let Some(event) = self.world.initiator.qpairs_mut().poll_event() {
            self.note(Side::Near, 0, event);
        }
        for donor in 0..DONORS {
            while let Some(event) = self.world.donors[donor].target.qpairs_mut().poll_event() {
                self.note(Side::Far, donor, event);
            }
        }
    }

    fn note(&mut self, side: Side, donor: usize, event: QPairEvent) {
        if let QPairEvent::Incoming { qpair, service, kind, .. } = event {
            let at = service as usize;
            assert_eq!(self.pairs[at].kind, kind);
            self.learn(at, side, qpair);
            let (accepting, donor) = (self.pairs[at].accepting, self.pairs[at].donor);
            match self.engine(side, donor).accept(qpair, accepting) {
                Ok(()) => self.pairs[at].end(side).is_connected = true,
                Err(QPairError::Closed(reason)) => {
                    Self::check_reason(&mut self.pairs[at], side, reason);
                }
                Err(error) => panic!("{error}"),
            }
            return;
        }
        let at_of = |qpair| match side {
            Side::Near => self.near_ids[&qpair],
            Side::Far => self.far_ids[&(donor, qpair)],
        };
        match event {
            QPairEvent::Connected { qpair } => {
                let at = at_of(qpair);
                self.pairs[at].end(side).is_connected = true;
            }
            QPairEvent::Closed { qpair, reason } => {
                let at = at_of(qpair);
                Self::check_reason(&mut self.pairs[at], side, reason);
                let earlier = self.pairs[at].end(side).closed.replace(reason);
                assert_eq!(earlier, None, "closed twice");
            }
            QPairEvent::Readable { .. }
            | QPairEvent::Writable { .. }
            | QPairEvent::Incoming { .. } => {}
        }
    }

    /// Lets both ends read until everything that must arrive has arrived.
    fn drain(&mut self) {
        let give_up_ns = self.world.now_ns + 600 * SECOND;
        while self.is_anything_missing() {
            assert!(self.world.step(), "nothing left to happen");
            assert!(self.world.now_ns < give_up_ns, "10 virtual minutes and not over");
            self.collect();
            for at in 0..self.pairs.len() {
                for side in [Side::Near, Side::Far] {
                    while self.read(at, side) {}
                }
            }
        }
    }

    /// True if data that one end has sent and not aborted is unread by the other, and the other has
    /// not closed.
    fn is_anything_missing(&self) -> bool {
        self.pairs.iter().any(|pair| {
            let is_undisturbed =
                !pair.is_cut && pair.ends.iter().all(|end| !end.has_aborted && end.id.is_some());
            let owes = |from: &End, to: &End| !from.unread.is_empty() && !to.is_released;
            let [near, far] = &pair.ends;
            is_undisturbed && (owes(near, far) || owes(far, near))
        })
    }

    /// With nothing in flight, one end's outstanding bytes are the other's uncredited ones.
    fn check_credits(&mut self) {
        for at in 0..self.pairs.len() {
            let pair = &self.pairs[at];
            let is_open = |end: &End| end.is_connected && !end.is_released && end.closed.is_none();
            let is_whole = pair.ends.iter().all(is_open);
            let ids = (pair.ends[0].id, pair.ends[1].id);
            let (true, (Some(near), Some(far)), donor) = (is_whole, ids, pair.donor) else {
                continue;
            };
            let near = self.engine(Side::Near, donor).levels(near).unwrap();
            let far = self.engine(Side::Far, donor).levels(far).unwrap();
            for (from, to) in [(near, far), (far, near)] {
                assert_eq!(from.queued_bytes, 0);
                let owed_bytes = to.unread_bytes + to.uncredited_bytes;
                assert!(from.outstanding_bytes >= owed_bytes, "credit without a cause");
                // The last written credit may be lost; it is recovered when needed.
                let is_exact = self.pairs[at].credit == CreditMode::InBand || self.is_lossless;
                assert!(!is_exact || from.outstanding_bytes == owed_bytes, "credit was lost");
            }
        }
    }

    /// Checks that no credit is lost for good: every QPair carries its full capacity.
    fn fill_again(&mut self) {
        for at in 0..self.pairs.len() {
            for side in [Side::Near, Side::Far] {
                let pair = &mut self.pairs[at];
                let is_open = pair.ends.iter().all(|end| end.is_connected && !end.is_released)
                    && pair.ends.iter().all(|end| end.closed.is_none());
                let (donor, has_ended) = (pair.donor, pair.end(side).has_ended);
                let (true, false, Some(id)) = (is_open, has_ended, pair.end(side).id) else {
                    continue;
                };
                let len = self.engine(side, donor).max_message_bytes(id).unwrap();
                let before = self.pairs[at].end(side).unread.len();
                let give_up_ns = self.world.now_ns + 600 * SECOND;
                while self.pairs[at].end(side).unread.len() == before {
                    assert!(self.world.now_ns < give_up_ns, "no credit for 10 virtual minutes");
                    self.send(at, side, len);
                    self.world.run_for(20_000 * US);
                    self.collect();
                }
            }
        }
        self.drain();
    }

    fn finish(mut self) {
        self.drain();
        self.world.run_for(2 * SECOND);
        self.collect();
        self.check_credits();
        self.fill_again();
        assert_eq!(self.world.done.len() as u64, self.accesses, "accesses complete");
        for at in 0..self.pairs.len() {
            self.close(at, Side::Near, false);
            self.close(at, Side::Far, false);
        }
        self.world.run_for(20 * SECOND);
        for donor in 0..DONORS {
            assert_eq!(self.engine(Side::Far, donor).count(), 0, "far ends left over");
        }
        assert_eq!(self.engine(Side::Near, 0).count(), 0, "near ends left over");
        assert_eq!(self.world.initiator.qpairs_mut().poll_event(), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn messages_arrive_once_in_order(
        seed in any::<u64>(),
        window in prop::sample::select(vec![4u16, 8, 64]),
        faults in any_faults(),
        first in any_connect(),
        ops in prop::collection::vec(any_op(), 1..120),
    ) {
        let mut checker = Checker::new(seed, window, faults);
        checker.apply(&first);
        ops.iter().for_each(|op| checker.apply(op));
        checker.finish();
    }

    #[test]
    fn messages_arrive_once_on_reliable_port(
        seed in any::<u64>(),
        window in prop::sample::select(vec![4u16, 8, 64]),
        first in any_connect(),
        ops in prop::collection::vec(any_op(), 1..120),
    ) {
        let mut checker = Checker::reliable(seed, window);
        checker.apply(&first);
        ops.iter().for_each(|op| checker.apply(op));
        checker.finish();
    }
}
