//! The world against closed forms, and its promises.

use std::sync::Arc;

use proptest::prelude::*;
use venice_experiment::shipped;
use venice_simkernel::units::{BitRate, Bytes, Hertz, Nanos, Picos, Share};

use super::*;

const NANO: u64 = Picos::NANO;

/// An instruction takes a nanosecond, nothing is cached.
fn config(channel: Channel) -> Config {
    let cache = CacheConfig { bytes: Bytes(0), ways: 1 };
    let frequency = Hertz(1_000_000_000);
    let processor =
        Processor { frequency, kilo_instruction_cycles: 1000, cache, ..Processor::default() };
    Config { processor, channel, ..Config::default() }
}

fn crma(crossing: u64) -> Channel {
    Channel::Crma(Crma { crossing: Picos(crossing), ..Crma::default() })
}

fn trace(accesses: &[(u64, u64, Kind)]) -> Arc<AccessTrace> {
    let access = |&(gap, line, kind)| Access { gap, line, kind };
    Arc::new(AccessTrace {
        origin: "a test".into(),
        filter: CacheConfig { bytes: Bytes(0), ways: 1 },
        pages: 16,
        instructions: accesses.iter().map(|(gap, ..)| gap).sum(),
        accesses: accesses.iter().map(access).collect(),
    })
}

fn ran(config: &Config, trace: &Arc<AccessTrace>) -> Machine {
    config.check().unwrap();
    let mut machine = Machine::new(config, trace.clone());
    machine.run_until(u64::MAX);
    assert!(machine.is_over());
    assert_eq!(machine.counts().wrong_reads, 0);
    machine
}

fn nanos(config: &Config, accesses: &[(u64, u64, Kind)]) -> u64 {
    let time = ran(config, &trace(accesses)).program_time();
    assert_eq!(time % NANO, 0);
    time / NANO
}

/// Time on two idle wires of a request and an answer: headers of 64 bytes, and what they carry.
fn wires(config: &Config, request: usize, answer: usize) -> u64 {
    config.link.model().round_trip_ns(64 + request, 64 + answer)
}

const LOAD: Kind = Kind::Load;

#[test]
fn local_load_takes_memory_latency() {
    assert_eq!(nanos(&config(Channel::Local), &[(500, 7, LOAD)]), 500 + 100);
    let all_local = Config {
        memory: Memory { local: Share(1_000_000), ..Memory::default() },
        ..config(crma(0))
    };
    assert_eq!(nanos(&all_local, &[(500, 7, LOAD)]), 500 + 100);
}

/// One access over an idle link has the sum of its parts, no more.
#[test]
fn remote_load_takes_sum_of_parts() {
    let on_chip = config(crma(0));
    assert_eq!(wires(&on_chip, 0, 64), 2 * 1400 + 103 + 205);
    assert_eq!(nanos(&on_chip, &[(500, 7, LOAD)]), 500 + wires(&on_chip, 0, 64) + 100);
    let off_chip = config(crma(300 * NANO));
    let crossings = 4 * 300;
    let expected = 500 + wires(&off_chip, 0, 64) + 100 + crossings;
    assert_eq!(nanos(&off_chip, &[(500, 7, LOAD)]), expected);
    let mut routed = config(crma(0));
    routed.link.router = Nanos(250);
    assert_eq!(nanos(&routed, &[(500, 7, LOAD)]), 500 + 2 * 250 + wires(&on_chip, 0, 64) + 100);
}

#[test]
fn message_takes_sum_of_parts() {
    let qpair =
        Qpair { crossing: Picos(300 * NANO), asynchronous: false, post: 70, poll: 30, serve: 40 };
    let config = config(Channel::Qpair(qpair));
    // A message has its length before it, the token, and line or bytes.
    let wires = wires(&config, 4 + 16, 4 + 8 + 64);
    let one = 70 + wires + 40 + 100 + 4 * 300 + 30;
    assert_eq!(nanos(&config, &[(500, 7, LOAD)]), 500 + one);
    let two = [(500, 7, LOAD), (5, 8, LOAD)];
    assert_eq!(nanos(&config, &two), 500 + one + 5 + one, "it waits for each answer");
}

/// Instructions after which the wires are idle: the handshake is over.
const START: u64 = 1000;

fn burst(count: u64) -> Vec<(u64, u64, Kind)> {
    (0..count).map(|line| (if line == 0 { START } else { 0 }, line, LOAD)).collect()
}

/// Loads within the window share the way; the wire back is their bottleneck.
#[test]
fn near_misses_are_pipelined() {
    let config = config(crma(0));
    let one = wires(&config, 0, 64) + 100;
    for count in 1..=6 {
        let loads = burst(count);
        // 128 bytes at 5 Gb/s are 204.8 ns; those of the first are in `one`, rounded up.
        let expected = (one * 10 - 2 + (count - 1) * 2048).div_ceil(10);
        let took = nanos(&config, &loads) - START;
        assert!(took.abs_diff(expected) <= 1, "{count}: {took}, expected {expected}");
    }
    let waits = "the seventh waits for a fill buffer";
    assert_eq!(nanos(&config, &burst(7)), START + 2 * one, "{waits}");
}

#[test]
fn far_misses_wait_for_each_other() {
    let config = config(crma(0));
    let one = wires(&config, 0, 64) + 100;
    let pair = |gap: u64| nanos(&config, &[(START, 1, LOAD), (gap, 2, LOAD)]) - START;
    assert_eq!(pair(33), one + 1 + one);
    assert!(pair(32).abs_diff(one + 205) <= 1, "{}", pair(32));
}

#[test]
fn stores_do_not_stop_program() {
    let config = config(crma(0));
    let one = wires(&config, 0, 64) + 100;
    let store = [(START, 1, Kind::Store), (50_000, 2, LOAD)];
    assert_eq!(nanos(&config, &store), START + 50_000 + one);
    let write_back = [(START, 1, Kind::WriteBack), (50_000, 1, LOAD)];
    assert_eq!(nanos(&config, &write_back), START + 50_000 + one);
}

#[test]
fn requests_overlap_as_program_allows() {
    let costs = Qpair { asynchronous: true, post: 10, poll: 10, serve: 10, ..Qpair::default() };
    let qpair = |independent| Config {
        program: Program { independent, ..Program::default() },
        ..config(Channel::Qpair(costs))
    };
    let loads: Vec<_> = (0..64).map(|line| (1000, line, LOAD)).collect();
    let times = [1, 2, 8, 64].map(|independent| nanos(&qpair(independent), &loads));
    assert!(times.is_sorted_by(|more, less| more >= less) && times[0] > 3 * times[2], "{times:?}");
    // All but the last are hidden behind the program's own work.
    let work = 64 * (1000 + 10 + 10);
    assert!(times[3] < work + 5000, "{times:?}, work {work}");
}

#[test]
fn fault_takes_sum_of_parts() {
    let rate = BitRate(32_768_000_000);
    let swap = Swap { fault: 2000, request: Picos(9 * Picos::MICRO), rate };
    let mut config = config(Channel::Swap(swap));
    config.memory.local = Share(500_000);
    // Pages 1, 3 and so on are local. A page is a microsecond on the wire.
    let (near, far) = (LINES_OF_PAGE, 0);
    assert_eq!(nanos(&config, &[(500, near, LOAD)]), 500 + 100);
    let fault = 2000 + 1000 + 9000;
    assert_eq!(nanos(&config, &[(500, far, LOAD)]), 500 + fault + 100);
    let once = 500 + fault + 100 + 500 - 32 + 100;
    assert_eq!(nanos(&config, &[(500, far, LOAD), (500, 1, LOAD)]), once, "the page stays");
    // Of eight local pages the one used least recently leaves, written first if it is dirty.
    let mut stores: Vec<_> = (0..8).map(|page| (200, (2 * page + 1) * near, Kind::Store)).collect();
    stores.push((200, far, LOAD));
    let machine = ran(&config, &trace(&stores));
    assert_eq!(machine.program_time() / NANO, 9 * 200 + fault + 1000 + 100);
    let counts = machine.counts();
    assert_eq!((counts.pages_in, counts.pages_out, counts.local_fills), (1, 1, 9));
}

/// The greatest times that can be set, at which the fabric replays frames in vain.
#[test]
fn longest_delays_are_survived() {
    let longest = Picos(1000 * Picos::MICRO);
    let loads: Vec<_> = (0..20).map(|line| (10, line, LOAD)).collect();
    let crma = Channel::Crma(Crma { crossing: longest, ..Crma::default() });
    let costs = Qpair { crossing: longest, serve: 1_000_000, ..Qpair::default() };
    for channel in
        [crma, Channel::Qpair(costs), Channel::Qpair(Qpair { asynchronous: true, ..costs })]
    {
        let mut config = config(channel);
        config.link =
            Link { rate: BitRate(1_000_000), latency: Nanos(1_000_000), router: Nanos(1_000_000) };
        config.memory.latency = longest;
        assert_eq!(ran(&config, &trace(&loads)).counts().remote_fills, 20);
    }
}

fn channels() -> [Channel; 6] {
    let qpair = |asynchronous| Channel::Qpair(Qpair { asynchronous, ..Qpair::default() });
    let alone = Crma { accesses: 1, ..Crma::default() };
    [
        Channel::Local,
        crma(0),
        Channel::Crma(alone),
        qpair(false),
        qpair(true),
        Channel::Swap(Swap::default()),
    ]
}

fn any_accesses() -> impl Strategy<Value = Vec<(u64, u64, Kind)>> {
    let kind = prop_oneof![3 => Just(LOAD), 1 => Just(Kind::Store), 1 => Just(Kind::WriteBack)];
    prop::collection::vec((0..200u64, 0..16 * LINES_OF_PAGE, kind), 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Time does not change what a program asks; reads return what was written last; a run is the same
    /// again, and with stops on the way.
    #[test]
    fn any_program_runs_repeatably(accesses in any_accesses(), local in 0..=4u32) {
        let trace = trace(&accesses);
        let fills = accesses.iter().filter(|(.., kind)| *kind != Kind::WriteBack).count() as u64;
        for channel in channels() {
            let mut config = config(channel);
            config.memory.local = Share(local * 250_000);
            let machine = ran(&config, &trace);
            let counts = machine.counts();
            prop_assert_eq!(counts.local_fills + counts.remote_fills, fills);
            let mut again = Machine::new(&config, trace.clone());
            (0..100).for_each(|step| again.run_until(step * 7 * Picos::MICRO));
            again.run_until(u64::MAX);
            prop_assert_eq!(again.trace_hash(), machine.trace_hash());
            prop_assert_eq!(again.program_time(), machine.program_time());
            prop_assert_eq!(again.events(), machine.events());
        }
    }
}

#[test]
fn traces_with_differences_hash_apart() {
    let hash = |line: u64| ran(&config(crma(0)), &trace(&[(5, line, LOAD)])).trace_hash();
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}

fn outcome(config: &Config) -> Outcome {
    let mut world = RemoteAccess::new(config, 1).unwrap();
    for stop in [0, Picos::MICRO, 50 * Picos::MICRO] {
        world.advance(stop);
        assert!(!world.is_over() && world.now() <= stop);
    }
    world.advance(u64::MAX);
    assert!(world.is_over());
    world.outcome()
}

fn shipped_program(trace: &str) -> Config {
    let program = Program { trace: trace.into(), accesses: 2000, ..Program::default() };
    let cache = CacheConfig { bytes: Bytes(32 << 10), ways: 8 };
    let processor = Processor { cache, ..Processor::default() };
    Config { program, processor, ..Config::default() }
}

#[test]
fn shipped_traces_run() {
    for (name, _) in TRACES {
        let far = outcome(&shipped_program(name));
        assert!(far.value("slowdown").unwrap().0 > 1.5, "{name}");
        assert_eq!(far.counts["accesses"], 2000, "{name}");
        assert_eq!(far.counts["wrong_reads"], 0, "{name}");
        assert_eq!(far, outcome(&shipped_program(name)), "{name}");
        let near = Config { channel: Channel::Local, ..shipped_program(name) };
        assert_eq!(outcome(&near).value("slowdown").unwrap().0, 1.0, "{name}");
    }
}

#[test]
fn unusable_traces_name_their_key() {
    let error = |config: &Config| RemoteAccess::check(config).unwrap_err().to_string();
    let missing = error(&shipped_program("/nowhere/at.trace"));
    assert!(missing.starts_with("program.trace: /nowhere/at.trace: "), "{missing}");
    assert!(missing.contains("pagerank, berkeleydb"), "{missing}");
    let other = error(&shipped_program(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")));
    assert!(other.contains("not an access trace"), "{other}");
    let mut small = shipped_program("pagerank");
    small.processor.cache.bytes = Bytes(16 << 10);
    assert!(error(&small).starts_with("processor.cache.bytes: 16KiB: "), "{}", error(&small));
}

#[test]
fn shipped_experiments_are_whole() {
    shipped::check::<RemoteAccess>().unwrap();
}
