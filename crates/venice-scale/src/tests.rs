//! The world against closed forms, and its promises.

use proptest::prelude::*;
use venice_experiment::shipped;
use venice_simkernel::units::{Bytes, Picos, Share};

use super::*;

const MICRO: u64 = Picos::MICRO;

fn ran(config: &Config) -> RackScale {
    let mut world = RackScale::new(config, 1).unwrap();
    world.advance(u64::MAX);
    assert!(world.is_over());
    world
}

fn value(outcome: &Outcome, name: &str) -> f64 {
    outcome.value(name).unwrap_or_else(|| panic!("no {name}")).0
}

/// A rack without recipients.
fn idle(nodes: u32) -> Config {
    let recipients = Recipients { share: Share(0), ..Recipients::default() };
    Config { nodes, recipients, ..Config::default() }
}

/// The last node borrows, and reads for a while.
fn reading(nodes: u32, reads: Reads) -> Config {
    let recipients = Recipients {
        share: Share(1_000_000 / nodes + 1),
        every: Picos(1000 * Picos::SECOND),
        hold: Picos(1000 * Picos::SECOND),
        first: Picos(Picos::SECOND),
        ..Recipients::default()
    };
    let duration = Picos(reads.during.0 + Picos::SECOND / 100);
    Config { nodes, recipients, reads, duration, ..Config::default() }
}

/// One read on idle links: each hop takes the bytes' time and the latency, there and back.
#[test]
fn far_read_takes_its_hops() {
    for hops in 1..=6 {
        let reads = Reads {
            every: Picos(100 * MICRO),
            during: Picos(5000 * MICRO),
            donors: Donors::Distant,
            hops,
            ..Reads::default()
        };
        let outcome = ran(&reading(27, reads)).outcome();
        let expected = u64::from(hops) * (102_400 + 204_800 + 2 * 1_400_000) + 100_000;
        let expected_us = expected as f64 / 1e6;
        let median = value(&outcome, "read.p50");
        assert!((median / expected_us - 1.0).abs() < 0.002, "{hops}: {median}, {expected_us}");
        assert!(value(&outcome, "reads") > 20.0);
        assert_eq!(outcome.counts["reads"], outcome.counts["reads_done"]);
    }
}

/// Requests and answers each pass one link. With fixed times of both the wait of the two together is
/// that at the slower link alone (Friedman 1965): M/D/1.
#[test]
fn link_is_m_d_1() {
    let line_ns = 204.8;
    for load in [0.3, 0.6, 0.8] {
        let every = (line_ns * 1000.0 / load) as u64;
        let reads = Reads {
            every: Picos(every),
            during: Picos(200_000 * MICRO),
            donors: Donors::Random,
            ..Reads::default()
        };
        let outcome = ran(&reading(2, reads)).outcome();
        let wait_ns = load * line_ns / (2.0 * (1.0 - load));
        let expected_us = (102.4 + line_ns + 2.0 * 1400.0 + 100.0 + wait_ns) / 1000.0;
        let wait_us = value(&outcome, "read.mean") - expected_us + wait_ns / 1000.0;
        assert!((wait_us * 1000.0 / wait_ns - 1.0).abs() < 0.05, "{load}: {wait_us}, {wait_ns}");
        let busiest = value(&outcome, "link_busiest");
        assert!((busiest / (100.0 * load) - 1.0).abs() < 0.02, "{load}: {busiest}");
    }
}

/// Without requests the processor has reports, and looks at all nodes four times an interval.
#[test]
fn heartbeats_fill_their_share() {
    let config = idle(200);
    let outcome = ran(&config).outcome();
    let Cost { call, report, look_node, .. } = config.monitor.cost;
    let each = (call.0 + report.0) as f64 + 4.0 * look_node.0 as f64;
    let expected = 100.0 * 200.0 * each / Picos::SECOND as f64;
    let found = value(&outcome, "utilization");
    assert!((found / expected - 1.0).abs() < 0.02, "{found}, expected {expected}");
    assert_eq!(outcome.counts["mistaken"], 0);
}

/// The first grant: four messages, two calls, the logic between them, and the record of the numbers of
/// grants. That of the grant itself is made while the donor is called.
#[test]
fn grant_takes_sum_of_parts() {
    let mut config = reading(2, Reads::default());
    (config.warm_up, config.duration) = (Picos(0), Picos(3 * Picos::SECOND));
    config.recipients.slabs = 1;
    let outcome = ran(&config).outcome();
    assert_eq!(outcome.counts["granted"], 1);
    let Cost { call, request, request_node, result, write, .. } = config.monitor.cost;
    let processor = 2 * call.0 + request.0 + 2 * request_node.0 + result.0;
    let record = write.0 + config.monitor.write.0;
    let messages = 4 * config.hosts.message.0;
    let found = value(&outcome, "allocation.max");
    let least = (messages + processor + record) as f64 / 1e9;
    assert!((least..least + 0.05).contains(&found), "{found}, at least {least}");
}

#[test]
fn dead_nodes_are_noticed() {
    let deaths = Deaths { count: 5, first: Picos(0), every: Picos(100_000 * MICRO) };
    let recipients = Recipients {
        every: Picos(4 * Picos::SECOND),
        hold: Picos(3 * Picos::SECOND),
        ..Recipients::default()
    };
    let config = Config { nodes: 40, deaths, recipients, ..Config::default() };
    let outcome = ran(&config).outcome();
    let counts = &outcome.counts;
    assert_eq!((counts["deaths"], counts["noticed"], counts["mistaken"]), (5, 5, 0));
    // Up to one interval has passed since the last report; the look comes four times an interval.
    let (least, most) = (value(&outcome, "revocation.p50"), value(&outcome, "revocation.max"));
    assert!(least > 2.0 && most < 3.5, "{least} to {most}");
}

/// A Monitor Node that is too slow takes living nodes for dead, and the measurement says so.
#[test]
fn overload_is_seen() {
    let mut config = idle(100);
    config.monitor.cost.call = Picos(15_000 * MICRO);
    let outcome = ran(&config).outcome();
    assert!(value(&outcome, "utilization") > 99.0);
    assert!(outcome.counts["queue"] > 50, "{:?}", outcome.counts);
}

fn any_config() -> impl Strategy<Value = Config> {
    let shape = prop_oneof![Just(Shape::Mesh), Just(Shape::Torus), Just(Shape::Router)];
    let times = (100..5000u64, 1..100u64, 0..4u32, 1..80u32);
    (2..40u32, any::<u64>(), shape, times).prop_map(|(nodes, seed, shape, times)| {
        let (every_ms, part, deaths, slabs) = times;
        let every = Picos(every_ms * 1000 * MICRO);
        Config {
            seed,
            nodes,
            warm_up: Picos(Picos::SECOND),
            duration: Picos(5 * Picos::SECOND),
            fabric: Fabric { shape, ..Fabric::default() },
            recipients: Recipients {
                every,
                hold: Picos((every.0 * part / 100).max(1000 * MICRO)),
                slabs,
                ..Recipients::default()
            },
            reads: Reads { every: Picos(MICRO), ..Reads::default() },
            deaths: Deaths {
                count: deaths.min(nodes - 1),
                first: Picos(0),
                every: Picos(90_000 * MICRO),
            },
            ..Config::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Every request is granted, refused, waiting, or given up with its node; every line comes back; no
    /// living node is taken for dead, every death is noticed. A run is the same again, with stops too.
    #[test]
    fn nothing_is_lost(config in any_config()) {
        let world = ran(&config);
        let outcome = world.outcome();
        let counts = &outcome.counts;
        let ended = counts["granted"] + counts["refused"] + counts["abandoned"] + counts["waiting"];
        prop_assert_eq!(counts["requests"], ended);
        prop_assert_eq!(counts["reads"], counts["reads_done"]);
        prop_assert_eq!(counts["mistaken"], 0);
        prop_assert_eq!(counts["noticed"], counts["deaths"]);
        let mut again = RackScale::new(&config, 3).unwrap();
        for step in 0..20 {
            again.advance(step * 210_000 * MICRO);
        }
        again.advance(u64::MAX);
        prop_assert_eq!(again.outcome(), outcome);
    }
}

#[test]
fn seeds_give_other_runs() {
    let hash = |seed| ran(&Config { seed, nodes: 10, ..Config::default() }).outcome().trace_hash;
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}

#[test]
fn near_donors_beat_random() {
    let paths = |donors| {
        let reads = Reads { every: Picos(2 * MICRO), donors, ..Reads::default() };
        let config = reading(64, reads);
        let recipients = Recipients { share: Share(500_000), ..config.recipients };
        ran(&Config { recipients, ..config }).outcome()
    };
    let (near, random) = (paths(Donors::Granted), paths(Donors::Random));
    assert!(value(&near, "distance") < 2.0);
    assert!(value(&random, "read.mean") > 1.5 * value(&near, "read.mean"));
}

#[test]
fn size_of_messages_counts() {
    let mut config = idle(30);
    config.hosts.message_bytes = Bytes(64 << 10);
    let (large, usual) = (ran(&config).outcome(), ran(&idle(30)).outcome());
    assert!(value(&large, "heartbeat.p50") > value(&usual, "heartbeat.p50"));
}

/// The same numbers on any machine: a change of them is a change of what is simulated.
#[test]
fn small_run_keeps_its_numbers() {
    let deaths = Deaths { count: 2, first: Picos(0), every: Picos(500_000 * MICRO) };
    let reads = Reads { every: Picos(2 * MICRO), ..Reads::default() };
    let recipients = Recipients {
        every: Picos(2 * Picos::SECOND),
        hold: Picos(Picos::SECOND),
        ..Recipients::default()
    };
    let config = Config { nodes: 30, deaths, reads, recipients, ..Config::default() };
    let outcome = ran(&config).outcome();
    let names = ["requests", "granted", "noticed", "messages", "writes", "reads", "packets"];
    let found = names.map(|name| outcome.counts[name]);
    assert_eq!(found, [72, 72, 2, 1469, 438, 870, 13_616], "{names:?}");
}

#[test]
fn shipped_experiments_are_whole() {
    shipped::check::<RackScale>().unwrap();
}
