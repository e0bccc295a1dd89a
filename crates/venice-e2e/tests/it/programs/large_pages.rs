//! Pages of 64 KiB (`venice run --page-size 64k`, or by what a program says): every byte is
//! right whatever is done to parts of them, and several of 4 KiB come at once.

use std::time::Duration;

use venice_e2e::programs::compare::{PROGRAM_LIMIT, same_output};
use venice_e2e::programs::{Busy, CProgram, Outcome, Port, Rack};
use venice_e2e::programs::{kill_now, paged_mode_is_missing};

const LIMIT: Duration = Duration::from_secs(120);
const OPTIONS: [&str; 7] =
    ["--local", "16MiB", "--remote", "768MiB", "--stats", "--page-size", "64k"];
/// Room for two large pages in each of a process's windows at a time, and little more.
const TIGHT: [&str; 7] = ["--local", "8MiB", "--remote", "128MiB", "--stats", "--page-size", "64k"];

/// Pages that `--stats` counts as come beside another of their large page.
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
    // Pages of a thread, and of the longest run.
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
    whatever_is_done_to_parts_of_them: "large_pages" Shm TIGHT;
    whatever_is_done_to_parts_of_them_over_udp: "large_pages" Udp TIGHT;
    forks_of_forks_keep_their_own: "fork_chain" Shm OPTIONS;
    children_of_a_bare_system_call: "fork_bare" Shm OPTIONS;
    mremap_moves_far_pages: "mremap" Shm OPTIONS;
    madvise_drops_far_pages: "madvise" Shm OPTIONS;
    map_fixed_and_munmap_over_far_pages: "map_fixed" Shm OPTIONS;
}

#[test]
fn they_lie_in_fragments_too() {
    let options = [&TIGHT[..], &["--coding", "2+1"]].concat();
    for port in [Port::Shm, Port::Udp] {
        same_by_large_pages("they_lie_in_fragments_too", "large_pages", port, &options);
    }
}

#[test]
fn they_are_served_in_the_thread_too() {
    let options = [&TIGHT[..], &["--faults", "in-thread"]].concat();
    let test = "they_are_served_in_the_thread_too";
    same_by_large_pages(test, "large_pages", Port::Shm, &options);
}

/// What one order of touches comes to, by pages of one size.
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
fn in_order_there_is_a_fault_for_each_large_page() {
    if paged_mode_is_missing("in_order_there_is_a_fault_for_each_large_page") {
        return;
    }
    let (small, large) = (faults("backwards", "4k"), faults("backwards", "64k"));
    assert!(large * 10 < small, "{large} faults, by small pages {small}");
}

/// `--page-size` is for what the program says nothing of.
#[test]
fn what_the_program_says_of_its_memory_comes_first() {
    if paged_mode_is_missing("what_the_program_says_of_its_memory_comes_first") {
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

/// One that has used up what there is far away is told so, and does not wait for room for a whole
/// large page at every touch.
#[test]
fn a_program_without_room_is_told() {
    if paged_mode_is_missing("a_program_without_room_is_told") {
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

fn a_donor_dies(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let rack = Rack::start(port, 128);
    let mut busy = Busy::start_with(&rack, "80MiB", 2, &["--page-size", "64k"]);
    kill_now(rack.agent_pid("node2"));
    busy.wait_for_both_copies(&rack, "node2");
    let said = busy.stop();
    assert!(said.contains("node node2 died"), "{said}");
}

#[test]
fn a_donor_dies_over_shm() {
    a_donor_dies("a_donor_dies_over_shm", Port::Shm);
}

#[test]
fn a_donor_dies_over_udp() {
    a_donor_dies("a_donor_dies_over_udp", Port::Udp);
}

/// A large page of which some are lost: who touches those is told, and nobody waits for ever.
#[test]
fn the_only_copy_dies_and_the_program_is_told() {
    if paged_mode_is_missing("the_only_copy_dies_and_the_program_is_told") {
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

/// What cannot be is said before anything is borrowed.
#[test]
fn they_are_of_the_paged_mode() {
    if paged_mode_is_missing("they_are_of_the_paged_mode") {
        return;
    }
    let program = CProgram::compile("keep_busy");
    for (options, says) in [
        (&["--page-size", "64k", "--mode", "window"][..], "--mode paged"),
        (&["--page-size", "64k", "--mode", "swap"], "--mode paged"),
        (&["--page-size", "1g"], "4k, advised, 64k, advised-2m, 2m"),
    ] {
        let outcome = Rack::shared(Port::Shm).run(options, &program.command(&[])).finish(LIMIT);
        outcome.expect_code(2);
        assert!(outcome.stderr.contains(says), "{options:?}: {}", outcome.stderr);
    }
}
