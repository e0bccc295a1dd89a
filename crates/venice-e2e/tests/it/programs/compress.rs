//! Compressed pages (`venice run --compress`): every byte is right whatever is done to the pages of
//! which there is a compressed copy, some come from there, and what does not pay is given up.

use std::time::Duration;

use venice_e2e::programs::compare::{PROGRAM_LIMIT, same_output};
use venice_e2e::programs::{Busy, CProgram, Outcome, Port, Rack, redis};
use venice_e2e::programs::{kill_now, paged_mode_is_missing};

const LIMIT: Duration = Duration::from_secs(120);
const OPTIONS: [&str; 7] =
    ["--local", "16MiB", "--remote", "768MiB", "--stats", "--compress", "25%"];

/// Runs `tests/c/NAME.c` both ways.
fn same_with_compression(test: &str, name: &str, port: Port, arguments: &[&str]) {
    if paged_mode_is_missing(test) {
        return;
    }
    let program = CProgram::compile(name);
    let venice = same_output(Rack::shared(port), &OPTIONS, &program.command(arguments));
    println!("{}", venice.stderr);
    assert!(kept(&venice) > 100, "{}", venice.stderr);
}

fn kept(outcome: &Outcome) -> u64 {
    outcome.number_before(" pages kept (")
}

fn hits(outcome: &Outcome) -> u64 {
    outcome.number_before(" faults answered from there")
}

macro_rules! same_with_compression {
    ($($test:ident: $name:literal $port:ident $($argument:literal)*;)*) => {
        $(#[test]
        fn $test() {
            same_with_compression(stringify!($test), $name, Port::$port, &[$($argument),*]);
        })*
    };
}

same_with_compression! {
    forks_keep_their_own: "fork_cow" Shm;
    forks_of_forks_keep_their_own: "fork_chain" Udp;
    children_of_a_bare_system_call: "fork_bare" Shm;
    mremap_moves_far_pages: "mremap" Udp;
    madvise_drops_far_pages: "madvise" Udp;
    map_fixed_and_munmap_over_far_pages: "map_fixed" Shm;
}

/// Most of 64 MiB is away, in the pool about as much as is local.
fn faults_are_answered_from_there(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let program = CProgram::compile("random_reads");
    let command = program.command(&["16384", "60000"]);
    let outcome = Rack::shared(port).run(&OPTIONS, &command).finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    println!("{}", outcome.stderr);
    assert!(hits(&outcome) > 100, "{}", outcome.stderr);
    let (_, pages_in) = outcome.stderr.split_once("venice: pages in ").expect("the summary");
    let pages_in: u64 = pages_in.split(' ').next().unwrap().parse().unwrap();
    let from_pool = outcome.number_before(" pages brought in\n");
    let far = outcome.number_before(" far; hit ratio");
    assert!(pages_in >= far + from_pool, "{pages_in}: {}", outcome.stderr);
}

#[test]
fn faults_are_answered_from_there_over_shm() {
    faults_are_answered_from_there("faults_are_answered_from_there_over_shm", Port::Shm);
}

#[test]
fn faults_are_answered_from_there_over_udp() {
    faults_are_answered_from_there("faults_are_answered_from_there_over_udp", Port::Udp);
}

#[test]
fn noise_is_given_up() {
    if paged_mode_is_missing("noise_is_given_up") {
        return;
    }
    let program = CProgram::compile("noise");
    let command = program.command(&["16384", "20000"]);
    let outcome = Rack::shared(Port::Udp).run(&OPTIONS, &command).finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    assert!(kept(&outcome) < 100, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("--compress was given up for a while"), "{}", outcome.stderr);
}

/// The pool makes room where what is in it has nowhere else to go: a program that goes on without
/// compression goes on with it.
fn far_memory_is_nearly_full(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let program = CProgram::compile("random_reads");
    // 74 MiB of 64 MiB far and 16 MiB here, of which half may be the pool.
    let command = program.command(&["18944", "30000"]);
    let options = ["--local", "16MiB", "--remote", "64MiB", "--copies", "1", "--stats"];
    let options = [&options[..], &["--compress", "50%"]].concat();
    let outcome = Rack::shared(port).run(&options, &command).finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    println!("{}", outcome.stderr);
    assert!(outcome.stderr.contains(" times as far memory was used up"), "{}", outcome.stderr);
    // What stays for want of room is not packed over and over.
    let left = outcome.number_before(" pages kept (");
    assert!(left < 18944 + 30000, "{}", outcome.stderr);
}

#[test]
fn far_memory_is_nearly_full_over_shm() {
    far_memory_is_nearly_full("far_memory_is_nearly_full_over_shm", Port::Shm);
}

#[test]
fn far_memory_is_nearly_full_over_udp() {
    far_memory_is_nearly_full("far_memory_is_nearly_full_over_udp", Port::Udp);
}

/// `venice limit` takes no more than there is room for with an empty pool.
#[test]
fn a_smaller_budget_takes_the_pool() {
    if paged_mode_is_missing("a_smaller_budget_takes_the_pool") {
        return;
    }
    let rack = Rack::of(Port::Udp, 2, 64);
    let more = ["--local", "40MiB", "--compress", "50%"];
    let mut busy = Busy::start_with(&rack, "48MiB", 1, &more);
    let pid = rack.json(&["ps"])[0]["pid"].as_u64().unwrap().to_string();
    let limit = |size: &str| rack.venice(&["limit", &pid, "--local", size]);
    let refused = limit("12MiB");
    let said = String::from_utf8_lossy(&refused.stderr).to_string();
    assert!(said.contains("of its far memory"), "{said}");
    let output = limit("30MiB");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::thread::sleep(Duration::from_secs(3));
    busy.expect_running();
    println!("{}", busy.stop());
}

/// What was written anew is never answered by what was there before, with a donor's death in between.
fn a_donor_dies(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let rack = Rack::start(port, 128);
    let mut busy = Busy::start_with(&rack, "80MiB", 2, &["--compress", "40%"]);
    let row = &rack.json(&["ps"])[0];
    assert!(row["compressed"]["pages"].as_u64().unwrap() > 0, "{row}");
    kill_now(rack.agent_pid("node2"));
    busy.wait_for_both_copies(&rack, "node2");
    let said = busy.stop();
    assert!(said.contains("node node2 died") && said.contains(" pages kept ("), "{said}");
}

#[test]
fn a_donor_dies_over_shm() {
    a_donor_dies("a_donor_dies_over_shm", Port::Shm);
}

#[test]
fn a_donor_dies_over_udp() {
    a_donor_dies("a_donor_dies_over_udp", Port::Udp);
}

#[test]
fn redis_finds_every_value() {
    if paged_mode_is_missing("redis_finds_every_value") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let rack = Rack::of(Port::Udp, 2, 128);
    let options = ["--local", "16MiB", "--remote", "96MiB", "--stats", "--compress", "25%"];
    let server = rack.run(&options, &redis::server(dir.path()));
    let mut client = redis::Client::connect(&redis::socket(dir.path()));
    let keys: Vec<u64> = (0..30_000).collect();
    client.set_all(&keys, 1);
    client.check_all(&keys, |_| 1);
    client.set_all(&keys[..10_000], 2);
    client.check_all(&keys, |key| if key < 10_000 { 2 } else { 1 });
    client.shut_down();
    let outcome = server.finish(LIMIT);
    outcome.expect_code(0);
    println!("{}", outcome.stderr);
}

/// What cannot be is said before anything is borrowed.
#[test]
fn what_cannot_be_is_refused() {
    if paged_mode_is_missing("what_cannot_be_is_refused") {
        return;
    }
    let program = CProgram::compile("keep_busy");
    for (more, says) in [
        (&["--compress", "64MiB"][..], "from 1% to 50%"),
        (&["--compress", "0%"], "from 1% to 50%"),
        (&["--compress", "51%"], "from 1% to 50%"),
        (&["--compress", "25%", "--mode", "window"], "--mode paged"),
        (&["--compress", "25%", "--mode", "swap"], "--mode paged"),
        (&["--compress", "25%", "--page-size", "64k"], "--page-size 4k"),
        (&["--compress", "25%", "--page-size", "advised-2m"], "--page-size 4k"),
        (&["--compress", "25%", "--faults", "in-thread"], "--faults handler"),
    ] {
        let outcome = Rack::shared(Port::Shm).run(more, &program.command(&[])).finish(LIMIT);
        outcome.expect_code(2);
        assert!(outcome.stderr.contains(says), "{more:?}: {}", outcome.stderr);
    }
}
