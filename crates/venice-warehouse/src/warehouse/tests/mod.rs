mod checkpoints;
mod queueing;
mod ranks;

use venice_experiment::outcome::CauseRow;
use venice_simkernel::units::{BitRate, Picos};

use super::*;
use crate::records::Drop;

const SECOND: u64 = Picos::SECOND;

fn config(text: &str) -> Config {
    toml::from_str(text).unwrap()
}

fn ran(config: &Config, threads: usize) -> Warehouse {
    let mut warehouse = Warehouse::new(config, threads).unwrap();
    // Stops on the way change nothing.
    for stop in [SECOND / 1000, SECOND / 100, 1000 * SECOND] {
        warehouse.advance(stop);
    }
    assert!(warehouse.is_over());
    warehouse
}

const MEMCACHED: &str = r#"
[topology]
kind = "clos"
hosts-per-rack = 4
racks-per-array = 3
arrays = 2
[application]
kind = "memcached"
servers-per-rack = 1
requests = 40
think = { kind = "exponential", mean = 100.0 }
"#;

fn memcached(transport: &str) -> Config {
    config(&format!("{MEMCACHED}transport = \"{transport}\""))
}

/// A datagram there and back, with all costs by hand: the only packet in the world waits for nothing.
#[test]
fn echo_takes_sum_of_costs() {
    let config = config(
        r#"
        [topology]
        kind = "single"
        hosts = 2
        [application]
        kind = "echo"
        bytes = "64B"
        datagrams = 10
        "#,
    );
    let warehouse = ran(&config, 1);
    let (server, kernel) = (&config.server, &config.server.kernel.values);
    let time_of = |instructions: u32| u64::from(instructions) * 250;
    // 130 bytes with all headers, preamble and gap.
    let line = BitRate(1_000_000_000).time_of(130);
    let dma = server.nic.dma_latency.0;
    let network = dma + 2 * 50 * Picos::NANO + Picos::MICRO + line + dma;
    let copy = 64 * kernel.copy_kilobyte / 1000;
    let send = copy + kernel.udp_send;
    let arrives = kernel.idle_exit.0 + time_of(kernel.interrupt + kernel.udp_receive);
    let wakes = time_of(kernel.wake_up + kernel.system_call + copy);
    // The thread that waits ran last on its core. It sends after 500 instructions of its own.
    let calls = time_of(500 + kernel.system_call + kernel.send_call + send);
    let expected = calls + network + arrives + wakes + calls + network + arrives + wakes;
    // The first call of the client is before the clock that it reads.
    let records = warehouse.records();
    let latencies = records.latencies(0).unwrap();
    assert_eq!(latencies.len(), 10);
    let most = latencies.max() * 1000;
    let difference = most.abs_diff(expected);
    assert!(difference < 5 * Picos::MICRO / 1000 * 4, "{most} ps, expected {expected} ps");
}

#[test]
fn threads_change_nothing() {
    for transport in ["udp", "tcp"] {
        let config = memcached(transport);
        let alone = ran(&config, 1);
        for threads in [2, 3, 6] {
            let parts = ran(&config, threads);
            assert_eq!(parts.outcome(), alone.outcome(), "{transport}, {threads} threads");
        }
        let other = Config { seed: 1, ..config };
        assert_ne!(ran(&other, 1).outcome().trace_hash, alone.outcome().trace_hash);
    }
}

#[test]
fn packets_are_conserved() {
    for transport in ["udp", "tcp"] {
        let mut warehouse = Warehouse::new(&memcached(transport), 2).unwrap();
        for stop in 1..40 {
            warehouse.advance(stop * SECOND / 2000);
            let records = warehouse.records();
            let dropped: u64 = Drop::ALL.map(|cause| records.dropped(cause)).iter().sum();
            let fate = records.delivered() + dropped + warehouse.in_flight();
            assert_eq!(fate, records.made(), "{transport}");
        }
    }
}

#[test]
fn all_requests_are_answered() {
    for transport in ["udp", "tcp"] {
        let config = memcached(transport);
        let outcome = ran(&config, 1).outcome();
        assert_eq!(outcome.counts["done"], 18 * 40);
        assert_eq!(outcome.counts["failed"], 0);
        assert_eq!(outcome.value("latency.count").unwrap().0, 720.0);
        let hops = ["local", "one_hop", "two_hop"];
        let medians = hops.map(|hop| outcome.value(&format!("latency.{hop}.p50")).unwrap().0);
        assert!(medians.is_sorted(), "{medians:?}");
    }
}

/// Stages are the whole latency, and nothing is followed for ever.
#[test]
fn stages_add_up() {
    for transport in ["udp", "tcp"] {
        let warehouse = ran(&memcached(transport), 2);
        let outcome = warehouse.outcome();
        let sum = |row: &CauseRow| row.stages.iter().map(|(_, time)| time).sum::<f64>();
        let all: f64 = outcome.causes.iter().map(|row| sum(row) * row.count as f64).sum();
        let requests: u64 = outcome.causes.iter().map(|row| row.count).sum();
        assert_eq!(requests, 720, "{transport}");
        let mean = outcome.value("latency.mean").unwrap().0;
        assert!((all / 720.0 / mean - 1.0).abs() < 0.01, "{transport}: {all}, mean {mean}");
        assert_eq!(warehouse.followed(), 0, "{transport}");
    }
    let quiet = Config { explain: false, ..memcached("tcp") };
    assert_eq!(ran(&quiet, 1).outcome().causes, []);
}

/// All packets of a host's link, both ways, in the order of time.
#[test]
fn link_is_captured_whole() {
    let config = memcached("tcp");
    let run = |threads: usize, link: &str| {
        let mut warehouse = Warehouse::new(&config, threads).unwrap();
        warehouse.capture(link).unwrap();
        warehouse.advance(1000 * SECOND);
        (warehouse.captured(), warehouse.outcome())
    };
    let ((file, count), outcome) = run(1, "host:1");
    assert_eq!(outcome, ran(&config, 1).outcome(), "a capture changes nothing");
    // Each request and answer, its acknowledgment, and the handshakes.
    assert!(count > 100, "{count}");
    assert_eq!(run(3, "host:1").0, (file, count));
    assert_eq!(run(1, "switch:0.1").0.1, count, "the same link by its other end");
    assert!(run(2, "switch:0.4").0.1 > count, "the link from the rack upwards");
    let error =
        |link: &str| Warehouse::new(&config, 1).unwrap().capture(link).unwrap_err().to_string();
    for link in ["host:99", "switch:0.9", "switch:77.0", "rack:1"] {
        assert!(error(link).contains(link), "{}", error(link));
    }
}

/// Maps of queues agree with the counters, and change nothing else, on any number of threads.
#[test]
fn heatmaps_agree_with_counters() {
    let plain = memcached("tcp");
    let config = Config { heatmap: Picos(Picos::MICRO), ..plain.clone() };
    let outcome = ran(&config, 1).outcome();
    assert_eq!(ran(&config, 3).outcome(), outcome);
    let [levels, switches] = &outcome.heatmaps[..] else { panic!("{:?}", outcome.heatmaps) };
    let names: Vec<&str> = levels.rows.iter().map(|row| &*row.name).collect();
    assert_eq!(names, ["tor", "array", "datacenter"]);
    let columns = levels.rows[0].values.len();
    assert!((128..=256).contains(&columns), "{columns}");
    let end = columns as f64 * levels.column_s;
    assert!((0.98..=1.0).contains(&(outcome.virtual_ps as f64 / 1e12 / end)), "{end}");
    let fullest = &outcome.queues[0];
    assert!(fullest.most_bytes > 0 && fullest.queued <= fullest.packets, "{fullest:?}");
    for row in &switches.rows {
        let most = *row.values.iter().max().unwrap();
        let counted = outcome.queues.iter().find(|queue| queue.name == row.name);
        assert!(counted.is_some_and(|queue| queue.most_bytes <= most), "{row:?}");
    }
    assert!(outcome.queues.is_sorted_by_key(|queue| std::cmp::Reverse(queue.most_bytes)));
    let expected = ran(&plain, 1).outcome();
    assert_eq!(Outcome { heatmaps: Vec::new(), ..outcome }, expected);
}

#[test]
fn incast_collapses_and_recovers() {
    let goodput = |servers: u32, rto_ns: u64| {
        let mut config = config("topology = { kind = 'single', hosts = 25 }");
        let incast = crate::application::Incast { servers, iterations: 8, ..Default::default() };
        config.application = crate::application::Application::Incast(incast);
        config.tcp.values.rto.minimum_ns = rto_ns;
        config.tcp.values.rto.granularity_ns = 1_000_000;
        ran(&config, 1).outcome().value("goodput").unwrap().0
    };
    const LINUX: u64 = 200_000_000;
    let [one, eight, many] = [1, 8, 24].map(|servers| goodput(servers, LINUX));
    assert!(one > 700.0, "{one}");
    assert!(eight < one / 4.0, "{eight} of {one}");
    assert!(many > 1.3 * eight, "{many} of {eight}");
    assert!(goodput(8, 1_000_000) > 3.0 * eight);
}

#[test]
fn impossible_values_name_their_key() {
    let error = |text: &str| match toml::from_str::<Config>(text) {
        Ok(config) => Warehouse::check(&config).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    for (text, named) in [
        ("server.cores = 0", "server.cores: 0: must be 1 to 64"),
        ("server.nic.interrupt-core = 3", "server.nic.interrupt-core"),
        ("server.kernel.futex = 1000000000", "server.kernel.futex"),
        ("server.kernel.preset = 'linux-9'", "must be one of linux-2.6.39, linux-3.5.7"),
        ("server.kernel.sloth = 1", "sloth"),
        ("topology = { kind = 'single', hosts = 3 }", "topology: 3 hosts: must be 9 hosts or more"),
        ("topology.arrays = 0", "topology.arrays"),
        ("tcp.mss = 1", "tcp.mss: 1: must be at least 88 bytes"),
        ("tcp.rto.maximum-ns = 1", "tcp.rto.maximum-ns: 1: must be from rto.minimum-ns"),
        ("application = { kind = 'incast', servers = 70000 }", "application.servers"),
        (
            "application = { kind = 'memcached', servers-per-rack = 31 }",
            "application.servers-per-rack",
        ),
        ("application = { kind = 'memcached', workers = 0 }", "application.workers"),
        (
            "application = { kind = 'memcached', think = { kind = 'exponential', mean = -1.0 } }",
            "think.mean",
        ),
    ] {
        let said = error(text);
        assert!(said.contains(named), "{text}: {said}");
    }
}

#[test]
fn shipped_experiments_can_run() {
    venice_experiment::shipped::check::<Warehouse>().unwrap();
}
