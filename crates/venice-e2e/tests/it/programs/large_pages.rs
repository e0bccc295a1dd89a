//! Pages of 64 KiB (`venice run --page-size 64k`, or by a program's advice): every byte is right
//! after any operation on parts of them, and several pages of 4 KiB come at once.

use std::time::Duration;

use venice_e2e::programs::compare::{PROGRAM_LIMIT, same_output};
use venice_e2e::programs::{Busy, CProgram, Outcome, Port, Rack};
use venice_e2e::programs::{kill_now, paged_mode_is_missing};

const LIMIT: Duration = Duration::from_secs(120);
const OPTIONS: [&str; 7] =
    ["--local", "16MiB", "--remote", "768MiB", "--stats", "--page-size", "64k"];
/// Options with room for two large pages in each of a process's sweep chunks at a time, and little
/// more.
const TIGHT: [&str; 7] = ["--local", "8MiB", "--remote", "128MiB", "--stats", "--page-size", "64k"];

/// Returns the pages that `--stats` counts as come beside another of their large page.
#[track_caller]
fn came_beside(outcome: &Outcome) -> u64 {
    let said = " pages brought in with a large page";
    let number = outcome.stderr.lines().find_map(|line| line.strip_suffix(said));
    let number = number.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no such line in {}", outcome.stderr))
}

/// Runs `tests/c/NAME.c` both ways.
fn same_by_large_pages(test: &str, name: &str, port: Port, options: &[&str]) {
    if paged_mode_is_missing(test) {
        return;
    }
    let program = CProgram::compile(name);
    // Arguments: pages of a thread, and of the longest run.
    let arguments: &[&str] = if name == "large_pages" { &["3072", "70"] } else { &[] };
    let venice = same_output(Rack::shared(port), options, &program.command(arguments));
    println!("{}", venice.stderr);
    assert!(came_beside(&venice) > 100, "{}", venice.stderr);
}

macro_rules! same_by_large_pages {
    ($($test:ident: $name:literal $port:ident $options:ident;)*) => {
        $(#[test]
        fn $test() {
            same_by_large_pages(stringify!($test), $name, Port::$port, &$options);
        })*
    };
}

same_by_large_pages! {
    operations_on_parts: "large_pages" Shm TIGHT;
    operations_on_parts_over_udp: "large_pages" Udp TIGHT;
    nested_forks_keep_their_memory: "fork_chain" Shm OPTIONS;
    bare_fork_system_call: "fork_bare" Shm OPTIONS;
    mremap_moves_far_pages: "mremap" Shm OPTIONS;
    madvise_drops_far_pages: "madvise" Shm OPTIONS;
    map_fixed_and_munmap_over_far_pages: "map_fixed" Shm OPTIONS;
}

#[test]
fn large_pages_work_coded() {
    let options = [&TIGHT[..], &["--coding", "2+1"]].concat();
    for port in [Port::Shm, Port::Udp] {
        same_by_large_pages("large_pages_work_coded", "large_pages", port, &options);
    }
}

#[test]
fn large_pages_are_served_in_thread() {
    let options = [&TIGHT[..], &["--faults", "in-thread"]].concat();
    let test = "large_pages_are_served_in_thread";
    same_by_large_pages(test, "large_pages", Port::Shm, &options);
}

/// Runs one order of touches, with pages of one size.
fn faults(order: &str, size: &str) -> u64 {
    let program = CProgram::compile("trends");
    let options =
        ["--local", "16MiB", "--remote", "256MiB", "--stats", "--read-ahead", "off", "--page-size"];
    let options = [&options[..], &[size]].concat();
    let outcome =
        Rack::shared(Port::Shm).run(&options, &program.command(&[order])).finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    let number = outcome
        .stderr
        .split_once("venice: faults ")
        .and_then(|(_, said)| said.split_once(':').and_then(|(number, _)| number.parse().ok()));
    number.unwrap_or_else(|| panic!("no faults in {}", outcome.stderr))
}

#[test]
fn sequential_reads_fault_once_a_large_page() {
    if paged_mode_is_missing("sequential_reads_fault_once_a_large_page") {
        return;
    }
    let (small, large) = (faults("backwards", "4k"), faults("backwards", "64k"));
    assert!(large * 10 < small, "{large} faults, by small pages {small}");
}

/// `--page-size` applies where the program gives no advice.
#[test]
fn advice_overrides_page_size() {
    if paged_mode_is_missing("advice_overrides_page_size") {
        return;
    }
    let program = CProgram::compile("advised_size");
    let beside = |size: &str, advice: &str| {
        let options = ["--local", "16MiB", "--remote", "256MiB", "--stats", "--read-ahead", "off"];
        let options = [&options[..], &["--page-size", size]].concat();
        let command = program.command(&[advice]);
        let outcome = Rack::shared(Port::Shm).run(&options, &command).finish(PROGRAM_LIMIT);
        outcome.expect_code(0);
        if outcome.stderr.contains("with a large page") { came_beside(&outcome) } else { 0 }
    };
    assert!(beside("64k", "nothing") > 4000 && beside("advised", "huge") > 4000);
    assert!(beside("64k", "no huge") < 1000 && beside("advised", "nothing") < 1000);
    assert_eq!(beside("4k", "huge"), 0, "nobody asked for large pages");
}

/// A program that has used up its far memory gets an error, and does not wait for room for a whole
/// large page at every touch.
#[test]
fn program_without_room_gets_an_error() {
    if paged_mode_is_missing("program_without_room_gets_an_error") {
        return;
    }
    let program = CProgram::compile("fill");
    for size in ["4k", "64k"] {
        let options = ["--local", "16MiB", "--remote", "32MiB", "--page-size", size];
        let running = Rack::shared(Port::Shm).run(&options, &program.command(&["128"]));
        let outcome = running.finish(PROGRAM_LIMIT);
        let told = outcome.stderr.contains("far memory is used up");
        assert!(told && outcome.stdout.is_empty(), "{size}: {}", outcome.stderr);
    }
}

fn program_survives(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let rack = Rack::start(port, 128);
    let mut busy = Busy::start_with(&rack, "80MiB", 2, &["--page-size", "64k"]);
    kill_now(rack.agent_pid("node2"));
    busy.wait_for_replicas(&rack, "node2");
    let said = busy.stop();
    assert!(said.contains("node node2 died"), "{said}");
}

#[test]
fn program_survives_a_dead_donor_over_shm() {
    program_survives("program_survives_a_dead_donor_over_shm", Port::Shm);
}

#[test]
fn program_survives_a_dead_donor_over_udp() {
    program_survives("program_survives_a_dead_donor_over_udp", Port::Udp);
}

/// A large page is partly lost: a touch of that part raises an error, and none waits forever.
#[test]
fn lost_only_replica_raises_an_error() {
    if paged_mode_is_missing("lost_only_replica_raises_an_error") {
        return;
    }
    for port in [Port::Shm, Port::Udp] {
        let rack = Rack::start(port, 128);
        let busy = Busy::start_with(&rack, "96MiB", 1, &["--page-size", "64k"]);
        let donor = rack.json(&["grants"])[0]["donor"].as_str().expect("a donor").to_string();
        kill_now(rack.agent_pid(&donor));
        let outcome = busy.running.finish(LIMIT);
        outcome.expect_code(128 + 7);
        let names = |line: &str| line.contains(&donor) && line.contains("region");
        assert!(outcome.stderr.lines().any(names), "{}", outcome.stderr);
    }
}

/// Unsupported options are refused before anything is borrowed.
#[test]
fn unsupported_modes_are_refused() {
    if paged_mode_is_missing("unsupported_modes_are_refused") {
        return;
    }
    let program = CProgram::compile("keep_busy");
    for (options, says) in [
        (&["--page-size", "64k", "--mode", "window"][..], "--mode paged"),
        (&["--page-size", "64k", "--mode", "swap"], "--mode paged"),
        (&["--page-size", "1g"], "4k, advised, 64k, advised-2m, 2m"),
    ] {
        let outcome = Rack::shared(Port::Shm).run(options, &program.command(&[])).finish(LIMIT);
        outcome.expect_code(125);
        assert!(outcome.stderr.contains(says), "{options:?}: {}", outcome.stderr);
    }
}
