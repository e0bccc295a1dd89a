//! Scenarios of the simulator over real ports keep every promise, and the checkers detect broken
//! ones here too.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use venice_e2e::racks::fit;
use venice_e2e::racks::plan::Port;
use venice_e2e::racks::rack::{Outcome, Run, run};
use venice_sim::checkers::Checker;
use venice_sim::rack::Sabotage;
use venice_sim::scenario::{Impairment, Kind, Scenario};

/// The seeds include every kind of fault, sealed and plain.
const UDP_SEEDS: [u64; 8] = [1, 5, 8, 9, 12, 22, 28, 38];

/// Returns the same seeds between nodes that relay: a square, a cube, a star.
fn relayed() -> [Scenario; 8] {
    let shapes = ["mesh:2x2", "router", "mesh:2x2x2"].into_iter().cycle();
    let mut shapes = UDP_SEEDS.into_iter().zip(shapes);
    UDP_SEEDS.map(|_| {
        let (seed, shape) = shapes.next().expect("as many as seeds");
        fit::relayed(seed, shape).expect("a topology")
    })
}

/// A rack of real processes has deadlines: two at a time would miss some on few processors.
static PLAYS: Mutex<()> = Mutex::new(());

fn play(
    scenario: Scenario,
    port: Port,
    sabotage: Option<Sabotage>,
    ignored: &[Checker],
) -> Outcome {
    let program = Path::new(env!("CARGO_BIN_EXE_venice-rack-test"));
    let _alone = PLAYS.lock().unwrap_or_else(PoisonError::into_inner);
    run(&Run { scenario, port, program, sabotage, ignored }).expect("a rack on this machine")
}

fn keep_every_promise(port: Port, scenarios: impl IntoIterator<Item = Scenario>) {
    let mut kinds = BTreeSet::new();
    for scenario in scenarios {
        let outcome = play(scenario, port, None, &[]);
        println!("{outcome}");
        assert!(outcome.is_ok(), "{outcome}");
        // A good part must succeed under any faults.
        let asked =
            u64::from(outcome.scenario.workload.accesses * u32::from(outcome.scenario.nodes));
        assert!(outcome.total() > asked / 8, "{outcome}");
        kinds.extend(outcome.succeeded.into_keys());
    }
    for kind in [
        Kind::BulkWrite,
        Kind::CompareSwap,
        Kind::FetchAdd,
        Kind::Message,
        Kind::Post,
        Kind::Stream,
    ] {
        assert!(kinds.contains(kind.name()), "no {} among {kinds:?}", kind.name());
    }
}

/// Runs seeds until `checker` is the first to find the bug; the `ignored` ones are ignored.
fn assert_found_by(sabotage: Sabotage, port: Port, checker: Checker, ignored: &[Checker]) {
    assert_found_in((0..5).map(|seed| fit::scenario(seed, port)), sabotage, port, checker, ignored);
}

fn assert_found_in(
    scenarios: impl Iterator<Item = Scenario>,
    sabotage: Sabotage,
    port: Port,
    checker: Checker,
    ignored: &[Checker],
) {
    let mut others = Vec::new();
    for scenario in scenarios {
        let outcome = play(scenario, port, Some(sabotage), ignored);
        if let Some(notes) = &outcome.notes {
            let _ = std::fs::remove_dir_all(notes);
        }
        match outcome.violations.first() {
            Some(found) if found.checker == checker => return,
            Some(found) => others.push(found.checker),
            None => {}
        }
    }
    panic!("{sabotage:?} is found by {others:?}, not by {checker:?}");
}

fn lacks_root(test: &str) -> bool {
    let lacks = !rustix::process::geteuid().is_root();
    if lacks {
        println!("SKIPPED: {test}: needs root");
    }
    lacks
}

#[test]
fn racks_over_rings() {
    keep_every_promise(Port::Ring, (0..6).map(|seed| fit::scenario(seed, Port::Ring)));
}

#[test]
fn racks_over_shm() {
    keep_every_promise(Port::Shm, (2..10).map(|seed| fit::scenario(seed, Port::Shm)));
}

#[test]
fn racks_over_udp_between_namespaces() {
    if !lacks_root("racks_over_udp_between_namespaces") {
        keep_every_promise(Port::Udp, UDP_SEEDS.map(|seed| fit::scenario(seed, Port::Udp)));
    }
}

#[test]
fn racks_with_relays() {
    if !lacks_root("racks_with_relays") {
        keep_every_promise(Port::Udp, relayed());
    }
}

#[test]
fn racks_over_udp_with_af_xdp() {
    if !lacks_root("racks_over_udp_with_af_xdp") {
        keep_every_promise(Port::Xdp, UDP_SEEDS.map(|seed| fit::scenario(seed, Port::Xdp)));
    }
}

#[test]
fn udp_seeds_have_every_fault() {
    for scenarios in [UDP_SEEDS.map(|seed| fit::scenario(seed, Port::Udp)), relayed()] {
        let has = |name: &str| {
            scenarios.iter().any(|it| it.faults.iter().any(|fault| fault.name() == name))
        };
        for name in ["cut", "isolate", "crash", "kill-recipient", "freeze", "revoke", "storm"] {
            assert!(has(name), "{name}");
        }
        let impaired = scenarios.iter().filter(|it| it.impairment != Impairment::default());
        assert!(impaired.count() >= 4);
    }
}

#[test]
fn answered_write_without_execution() {
    assert_found_by(Sabotage::DropWrite, Port::Ring, Checker::Executions, &[]);
    assert_found_by(Sabotage::DropWrite, Port::Ring, Checker::History, &[Checker::Executions]);
}

#[test]
fn flipped_bit_in_memory() {
    assert_found_by(Sabotage::FlipBit, Port::Ring, Checker::History, &[]);
}

#[test]
fn atomic_executed_twice() {
    assert_found_by(Sabotage::RepeatAtomic, Port::Ring, Checker::Counters, &[]);
}

#[test]
fn read_of_another_reads_bytes() {
    assert_found_by(Sabotage::SwapReads, Port::Shm, Checker::History, &[]);
}

#[test]
fn swapped_messages() {
    assert_found_by(Sabotage::SwapMessages, Port::Ring, Checker::Conversations, &[]);
}

#[test]
fn swapped_stream_bytes() {
    assert_found_by(Sabotage::SwapBytes, Port::Ring, Checker::Streams, &[]);
}

#[test]
fn early_end_of_stream() {
    assert_found_by(Sabotage::EarlyEnd, Port::Ring, Checker::Streams, &[]);
}

#[test]
fn sabotage_is_found_over_udp() {
    if !lacks_root("sabotage_is_found_over_udp") {
        assert_found_by(Sabotage::DropWrite, Port::Udp, Checker::Executions, &[]);
    }
}

#[test]
fn sabotage_is_found_over_relays() {
    if !lacks_root("sabotage_is_found_over_relays") {
        let scenarios = (0..5).map(|seed| fit::relayed(seed, "mesh:2x2").expect("a topology"));
        let sabotage = Sabotage::FlipBit;
        assert_found_in(scenarios, sabotage, Port::Udp, Checker::History, &[]);
    }
}
