//! Every byte and every message arrives exactly once and in order, over any network and with any
//! settings, and every connection ends.

use proptest::prelude::*;
use venice_tcp::{Config, Congestion, Floor, LossDetection, Reduction, State};

use crate::pair::{Faults, Pair};

const MS: u64 = 1_000_000;

fn any_config() -> impl Strategy<Value = Config> {
    let base = prop_oneof![
        Just(Config::linux_2_6_39()),
        Just(Config::linux_3_5()),
        Just(Config::linux_today()),
        Just(Config::rfc()),
    ];
    let congestion =
        prop_oneof![Just(Congestion::NewReno), Just(Congestion::Cubic), Just(Congestion::Dctcp)];
    let detection = prop_oneof![
        Just(LossDetection::DuplicateThreshold),
        Just(LossDetection::Forward),
        Just(LossDetection::Rack)
    ];
    let reduction = prop_oneof![
        Just(Reduction::Immediate),
        Just(Reduction::RateHalving),
        Just(Reduction::Proportional)
    ];
    let minimum = prop_oneof![Just(MS), Just(10 * MS), Just(40 * MS), Just(200 * MS)];
    let tick = prop_oneof![Just(1), Just(MS), Just(4 * MS), Just(10 * MS)];
    let switches = proptest::array::uniform8(any::<bool>());
    let sizes = (88..1_500u16, 1..20u16, 1_500..100_000u32, 1_500..100_000u32);
    let delayed = (1..4u8, 0..17u8, any::<bool>());
    (base, congestion, detection, reduction, minimum, tick, switches, sizes, delayed).prop_map(
        |(base, congestion, loss_detection, reduction, minimum, tick, switches, sizes, delayed)| {
            let [sack, timestamps, ecn, nagle, restart, early, probe, floor] = switches;
            let mut config = Config {
                congestion,
                loss_detection,
                reduction,
                sack,
                timestamps,
                ecn: ecn || congestion == Congestion::Dctcp,
                nagle,
                restart_after_idle: restart,
                early_retransmit: early,
                tail_loss_probe: probe,
                mss: sizes.0,
                initial_window: sizes.1,
                receive_buffer: sizes.2,
                send_buffer: sizes.3,
                // Time-outs double from the least on: half a minute of loss must not end all.
                data_retries: 30,
                syn_retries: 30,
                ..base
            };
            config.rto.minimum_ns = minimum;
            config.rto.maximum_ns = 4_000 * MS;
            config.rto.granularity_ns = tick;
            config.rto.floor = if floor { Floor::Variation } else { Floor::Timeout };
            config.delayed_ack.segments = delayed.0;
            config.delayed_ack.quick = delayed.1;
            if delayed.2 {
                // The trap: data waits for an acknowledgment as long as for its retransmission.
                config.delayed_ack.timeout_ns = minimum;
            }
            config.check().expect("valid");
            config
        },
    )
}

/// Messages that one end writes, and what came of them at the other.
struct Traffic {
    sizes: Vec<u32>,
    written: usize,
    rest: u32,
    bytes: u64,
    messages: u64,
}

impl Traffic {
    fn new(sizes: Vec<u32>) -> Self {
        let rest = sizes.first().copied().unwrap_or_default();
        Self { sizes, written: 0, rest, bytes: 0, messages: 0 }
    }

    fn write(&mut self, pair: &mut Pair, end: usize) {
        let config = pair.configs[end].clone();
        if !pair.end(end).is_connected() {
            return;
        }
        while self.written < self.sizes.len() {
            let connection = pair.end(end);
            let taken = connection.write(self.rest, self.written as u64, &config);
            self.rest -= taken;
            if self.rest > 0 {
                return;
            }
            self.written += 1;
            self.rest = self.sizes.get(self.written).copied().unwrap_or_default();
        }
        pair.end(end).close();
    }

    fn read(&mut self, pair: &mut Pair, end: usize) {
        let config = pair.configs[end].clone();
        let connection = pair.end(end);
        self.bytes += u64::from(connection.read(u32::MAX, &config));
        while let Some(tag) = connection.next_message() {
            assert_eq!(tag, self.messages, "each message once and in order");
            self.messages += 1;
            let due: u64 = self.sizes[..self.messages as usize].iter().map(|&b| u64::from(b)).sum();
            assert!(self.bytes >= due, "a message came before its bytes");
        }
    }

    fn is_over(&self) -> bool {
        self.messages as usize == self.sizes.len()
            && self.bytes == self.sizes.iter().map(|&bytes| u64::from(bytes)).sum::<u64>()
    }
}

fn any_faults() -> impl Strategy<Value = Faults> {
    let share = prop_oneof![Just(0), Just(10_000), Just(100_000), Just(300_000)];
    (share.clone(), share.clone(), share.clone(), share).prop_map(
        |(lost, duplicated, reordered, marked)| Faults { lost, duplicated, reordered, marked },
    )
}

fn any_sizes() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![1..300u32, 1..20_000u32, 50_000..200_000u32], 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn messages_arrive_once_in_order(
        configs in [any_config(), any_config()],
        faults in any_faults(),
        sizes in [any_sizes(), any_sizes()],
        isn in any::<u32>(),
        seed in any::<u64>(),
    ) {
        let [mut one, mut other] = configs;
        // Both ends of a DCTCP connection are set up for it.
        if (one.congestion == Congestion::Dctcp) != (other.congestion == Congestion::Dctcp) {
            other.congestion = one.congestion;
            other.ecn = one.ecn;
        }
        one.time_wait_ns = 1_000 * MS;
        other.time_wait_ns = 1_000 * MS;
        let mut pair = Pair::new([one, other], isn, seed);
        pair.stop_log();
        pair.faults = faults;
        let mut traffic = sizes.map(Traffic::new);
        while let Some(end) = pair.step() {
            prop_assert!(pair.steps < 1_000_000, "it does not end");
            if pair.ends[end].is_none() {
                continue;
            }
            let [from, to] = if end == 0 { [0, 1] } else { [1, 0] };
            traffic[from].write(&mut pair, end);
            traffic[to].read(&mut pair, end);
            pair.flush(end);
        }
        prop_assert!(traffic.iter().all(Traffic::is_over), "at {} ms", pair.now / MS);
        for end in 0..2 {
            // The last acknowledgment of a FIN may be lost for good: the peer is gone.
            prop_assert_eq!(pair.end(end).state(), State::Closed);
        }
    }
}
