//! One stream over several channels and a faulty network: every byte is delivered once and in
//! order, whichever channel its segment used, and a slow reader blocks the writer.

use crate::world::{Faults, LENT_BYTES, Rng, SECOND, US, World};
use proptest::prelude::*;
use venice_fabric::{
    AccessError, CloseReason, Completion, DownReason, EndConfig, QPairConfig, QPairEvent, QPairId,
    RdmaCompletion,
    adaptive::{
        AdaptiveReceiver, AdaptiveSender, ChannelKind, ChoiceEvent, ChooserConfig, Pattern,
        StreamConfig, StreamError,
    },
};

const SERVICE: u32 = 4;
/// First token of the sender.
const TOKENS: u64 = 7 << 40;

prop_compose! {
    fn any_faults()(
        lost in prop_oneof![Just(0), Just(20), Just(200)],
        repeated in prop_oneof![Just(0), Just(200)],
        delayed in prop_oneof![Just(0), Just(50), Just(500)],
        stale in prop_oneof![Just(0), Just(100)],
    ) -> Faults {
        Faults { lost, repeated, delayed, damaged: 0, stale }
    }
}

prop_compose! {
    fn any_config()(
        window_segments in prop::sample::select(vec![2u16, 5, 64]),
        inline_bytes in prop::sample::select(vec![16u32, 700, 3000]),
        segment_bytes in prop::sample::select(vec![100u32, 4096, 20_000]),
        landing_bytes in prop::sample::select(vec![0u64, 5000, LENT_BYTES]),
    ) -> StreamConfig {
        StreamConfig { window_segments, inline_bytes, segment_bytes, landing_bytes }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write { len: usize, hint: Option<Pattern> },
    Read { len: usize },
    Pause { us: u64 },
}

fn any_op() -> impl Strategy<Value = Op> {
    let hint = prop::sample::select(vec![None, Some(Pattern::Sequential), Some(Pattern::Random)]);
    let len = prop_oneof![2 => 1..64usize, 2 => 64..5000usize, 1 => Just(20_000usize)];
    prop_oneof![
        6 => (len, hint).prop_map(|(len, hint)| Op::Write { len, hint }),
        3 => (1..30_000usize).prop_map(|len| Op::Read { len }),
        3 => (0..5000u64).prop_map(|us| Op::Pause { us }),
    ]
}

struct Stream {
    world: World,
    near: QPairId,
    far: QPairId,
    sender: AdaptiveSender,
    receiver: AdaptiveReceiver,
    /// Written and not yet read.
    written: Vec<u8>,
    read: usize,
    choices: Vec<ChoiceEvent>,
    rng: Rng,
    /// The writer has released its QPair.
    is_released: bool,
}

impl Stream {
    fn new(seed: u64, faults: Faults, config: StreamConfig, chooser: ChooserConfig) -> Self {
        let mut world = World::new(seed, 1, 16, faults);
        world.donors[0].target.qpairs_mut().listen(SERVICE, 1).unwrap();
        let end = EndConfig { send_bytes: 8192, recv_bytes: 8192, ..EndConfig::default() };
        let asked = QPairConfig { end, ..QPairConfig::messages() };
        let near = world.initiator.qpair_connect(world.now_ns, world.peers[0], SERVICE, asked);
        let near = near.unwrap();
        let (mut far, mut is_connected) = (None, false);
        while far.is_none() || !is_connected {
            assert!(world.step());
            let qpairs = world.donors[0].target.qpairs_mut();
            if let Some(QPairEvent::Incoming { qpair, .. }) = qpairs.poll_event() {
                qpairs.accept(qpair, end).unwrap();
                far = Some(qpair);
            }
            let event = world.initiator.qpairs_mut().poll_event();
            is_connected |= event == Some(QPairEvent::Connected { qpair: near });
        }
        let far = far.unwrap();
        Self {
            sender: AdaptiveSender::new(config, chooser, near, 0, TOKENS),
            receiver: AdaptiveReceiver::new(config, far),
            world,
            near,
            far,
            written: Vec::new(),
            read: 0,
            choices: Vec::new(),
            rng: Rng(seed ^ 3),
            is_released: false,
        }
    }

    fn step(&mut self) -> Result<(), StreamError> {
        assert!(self.world.step(), "nothing left to happen");
        self.handle()
    }

    fn handle(&mut self) -> Result<(), StreamError> {
        let Self { world, sender, receiver, .. } = self;
        while let Some((token, outcome)) = world.done.pop_first() {
            let result = outcome.map(|_| ());
            assert!(sender.handle_completion(&Completion { token, result, data: &[] }));
        }
        while let Some((token, outcome)) = world.bulk_done.pop_first() {
            let (result, buffer) = match outcome {
                Ok(buffer) => (Ok(()), buffer),
                Err(error) => (Err(error), Vec::new()),
            };
            let completion = RdmaCompletion { token, result, buffer, lists: Default::default() };
            assert!(sender.handle_rdma_completion(completion).is_none());
        }
        if !self.is_released {
            sender.handle(world.now_ns, &mut world.initiator)?;
        }
        receiver.handle(world.now_ns, world.donors[0].target.qpairs_mut())?;
        self.choices.extend(std::iter::from_fn(|| sender.poll_choice()));
        Ok(())
    }

    /// Writes at most one segment; returns true if anything was taken.
    fn write(&mut self, len: usize, hint: Option<Pattern>) -> bool {
        let bytes: Vec<u8> = (0..len).map(|_| self.rng.draw() as u8).collect();
        let world = &mut self.world;
        match self.sender.write(world.now_ns, &mut world.initiator, &bytes, hint) {
            Ok(taken) => {
                assert!((1..=len).contains(&taken));
                self.written.extend_from_slice(&bytes[..taken]);
                true
            }
            Err(StreamError::WouldBlock) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Reads once; `None` if nothing is available.
    fn read(&mut self, len: usize) -> Option<usize> {
        let mut buf = vec![0; len];
        let landing = &self.world.donors[0].memory.bytes;
        let from_landing = |offset: u64, into: &mut [u8]| {
            into.copy_from_slice(&landing[offset as usize..][..into.len()]);
        };
        match self.receiver.read(&mut buf, from_landing) {
            Ok(len) => {
                assert!(self.written[self.read..][..len] == buf[..len], "bytes differ");
                self.read += len;
                Some(len)
            }
            Err(StreamError::WouldBlock) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Ends the stream and reads to its end. `leaves_early`: the writer does not wait for that, and
    /// releases its QPair once all segments are announced.
    fn finish(&mut self, leaves_early: bool) {
        self.sender.finish();
        let give_up_ns = self.world.now_ns + 600 * SECOND;
        let mut has_ended = false;
        while !has_ended || !(self.is_released || self.sender.is_done()) {
            assert!(self.world.now_ns < give_up_ns, "10 virtual minutes and not over");
            if leaves_early && !self.is_released && self.sender.is_announced() {
                self.world.initiator.qpairs_mut().close(self.near);
                self.is_released = true;
            }
            self.step().unwrap();
            while let Some(len) = self.read(10_000).filter(|_| !has_ended) {
                has_ended = len == 0;
            }
            self.handle().unwrap();
        }
        assert_eq!(self.read, self.written.len(), "all of it");
        let world = &mut self.world;
        let late = self.sender.write(world.now_ns, &mut world.initiator, &[1], None);
        assert_eq!(late, Err(StreamError::Ended));
        world.initiator.qpairs_mut().close(self.near);
        world.run_for(SECOND);
        world.donors[0].target.qpairs_mut().close(self.far);
        assert_eq!(self.read(10), Some(0), "the end stays the end");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]

    #[test]
    fn bytes_arrive_once_in_order(
        seed in any::<u64>(),
        faults in any_faults(),
        config in any_config(),
        explore_percent in prop::sample::select(vec![0u32, 2, 80]),
        ops in prop::collection::vec(any_op(), 1..150),
        leaves_early in any::<bool>(),
    ) {
        let chooser = ChooserConfig { explore_percent, seed, ..ChooserConfig::default() };
        let mut stream = Stream::new(seed, faults, config, chooser);
        for op in &ops {
            match *op {
                Op::Write { len, hint } => {
                    stream.write(len, hint);
                }
                Op::Read { len } => {
                    stream.read(len);
                }
                Op::Pause { us } => {
                    let end_ns = stream.world.now_ns + us * US;
                    while stream.world.now_ns < end_ns {
                        stream.step().unwrap();
                    }
                }
            }
            stream.handle().unwrap();
        }
        stream.finish(leaves_early);
    }
}

#[test]
fn segments_overtake_across_channels() {
    let config = StreamConfig { landing_bytes: LENT_BYTES, ..StreamConfig::default() };
    let chooser = ChooserConfig { explore_percent: 60, ..ChooserConfig::default() };
    let mut stream = Stream::new(9, Faults::default(), config, chooser);
    for n in 0..3000 {
        while !stream.write(50 + n % 300, Some(Pattern::Sequential)) {
            stream.step().unwrap();
            while stream.read(10_000).is_some() {}
        }
    }
    stream.finish(false);
    for channel in ChannelKind::ALL {
        let taken = stream.choices.iter().filter(|choice| choice.channel == channel).count();
        assert!(taken > 10, "{channel:?} {taken} times");
        assert!(stream.sender.chooser().estimate(channel, 300).is_some());
    }
    assert!(stream.receiver.early_segments() > 10);
}

#[test]
fn slow_reader_blocks_writer() {
    let config = StreamConfig { window_segments: 8, ..StreamConfig::default() };
    let mut stream = Stream::new(9, Faults::default(), config, ChooserConfig::default());
    let mut taken = 0;
    for _ in 0..1000 {
        taken += u32::from(stream.write(100, None));
        stream.step().unwrap();
    }
    assert_eq!(taken, 8, "the window");
    assert_eq!(stream.read(1000), Some(800));
    stream.handle().unwrap();
    (0..10).for_each(|_| stream.step().unwrap());
    assert!(stream.write(100, None), "room again");
    stream.finish(false);
}

#[test]
fn dead_donor_ends_stream() {
    let config = StreamConfig { landing_bytes: LENT_BYTES, ..StreamConfig::default() };
    let mut stream = Stream::new(9, Faults::default(), config, ChooserConfig::default());
    (0..20).for_each(|_| {
        stream.write(3000, None);
    });
    stream.world.initiator.close_peer(stream.world.peers[0]);
    stream.world.collect();
    let error = stream.handle().unwrap_err();
    let reason = DownReason::Closed;
    let expected = [
        StreamError::Failed(AccessError::PeerDown(reason)),
        StreamError::Closed(CloseReason::LinkDown(reason)),
    ];
    assert!(expected.contains(&error), "{error}");
    let world = &mut stream.world;
    let late = stream.sender.write(world.now_ns, &mut world.initiator, &[1], None);
    assert_eq!(late, Err(error), "it stays so");
}
