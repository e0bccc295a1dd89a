//! Pages of 2 MiB (`venice run --page-size 2m`, or by a program's advice): every byte is right
//! after any operation on parts of them, and they move whole.

use std::process::Command;
use std::time::Duration;

use venice_e2e::programs::compare::{PROGRAM_LIMIT, same_output};
use venice_e2e::programs::{Busy, CProgram, Outcome, Port, Rack};
use venice_e2e::programs::{kill_now, paged_mode_is_missing};
use venice_memory::paged::huge_pages;

const LIMIT: Duration = Duration::from_secs(120);
const OPTIONS: [&str; 7] =
    ["--local", "32MiB", "--remote", "768MiB", "--stats", "--page-size", "2m"];

/// True if the kernel lacks huge pages or paged memory; see [`paged_mode_is_missing`].
fn are_missing(test: &str) -> bool {
    if let Err(none) = huge_pages::check_available() {
        println!("SKIPPED: {test}: {none}");
        return true;
    }
    paged_mode_is_missing(test)
}

/// Counts of `--stats`: huge pages brought in whole or to small ones, faults that brought in a part
/// of one, huge pages evicted.
#[derive(Debug, PartialEq, Eq)]
struct Counted {
    came: u64,
    in_part: u64,
    left: u64,
}

#[track_caller]
fn counted(outcome: &Outcome) -> Counted {
    let line = outcome.stderr.lines().find(|line| line.starts_with("venice: huge pages in "));
    let line = line.unwrap_or_else(|| panic!("no such line in {}", outcome.stderr));
    let numbers: Vec<u64> =
        line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let [whole, small, in_part, left] = numbers[..] else { panic!("four numbers: {line}") };
    Counted { came: whole + small, in_part, left }
}

/// Runs `tests/c/NAME.c` both ways; at least so many huge pages must come.
fn same_by_huge_pages(test: &str, name: &str, arguments: &[&str], options: &[&str], least: u64) {
    if are_missing(test) {
        return;
    }
    let program = CProgram::compile(name);
    let venice = same_output(Rack::shared(Port::Shm), options, &program.command(arguments));
    println!("{}", venice.stderr);
    let counted = counted(&venice);
    assert!(counted.came >= least, "{counted:?}");
}

macro_rules! same_by_huge_pages {
    ($($test:ident: $name:literal $arguments:expr, $least:literal;)*) => {
        $(#[test]
        fn $test() {
            same_by_huge_pages(stringify!($test), $name, &$arguments, &OPTIONS, $least);
        })*
    };
}

same_by_huge_pages! {
    operations_on_parts: "large_pages" ["7000", "700"], 10;
    operations_on_small_parts: "large_pages" ["7000", "70"], 10;
    nested_forks_keep_their_memory: "fork_chain" [], 1;
    bare_fork_system_call: "fork_bare" [], 1;
    mremap_moves_far_pages: "mremap" [], 1;
    madvise_drops_far_pages: "madvise" [], 1;
    map_fixed_and_munmap_over_far_pages: "map_fixed" [], 1;
}

#[test]
fn huge_pages_work_coded() {
    let options = ["--local", "32MiB", "--remote", "192MiB", "--stats", "--page-size", "2m"];
    let options = [&options[..], &["--coding", "2+1"]].concat();
    let test = "huge_pages_work_coded";
    same_by_huge_pages(test, "large_pages", &["7000", "700"], &options, 10);
}

/// Runs one order of touches, with pages of one size.
fn outcome_of(order: &str, size: &str) -> Outcome {
    let program = CProgram::compile("trends");
    let options =
        ["--local", "32MiB", "--remote", "256MiB", "--stats", "--read-ahead", "off", "--page-size"];
    let options = [&options[..], &[size]].concat();
    let running = Rack::shared(Port::Shm).run(&options, &program.command(&[order]));
    let outcome = running.finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    outcome
}

fn faults(outcome: &Outcome) -> u64 {
    let number = outcome
        .stderr
        .split_once("venice: faults ")
        .and_then(|(_, said)| said.split_once(':').and_then(|(number, _)| number.parse().ok()));
    number.unwrap_or_else(|| panic!("no faults in {}", outcome.stderr))
}

#[test]
fn sequential_reads_fault_once_a_huge_page() {
    if are_missing("sequential_reads_fault_once_a_huge_page") {
        return;
    }
    let huge = outcome_of("backwards", "2m");
    let (small, huge) = (faults(&outcome_of("backwards", "4k")), (faults(&huge), counted(&huge)));
    // 12288 pages of 4 KiB are written, and read backwards: 24 huge ones, of which some come again.
    assert!(huge.0 * 50 < small, "{huge:?}, by small pages {small} faults");
    assert!(huge.1.came >= 28 && huge.1.left >= 12, "{huge:?}");
}

/// `--page-size` applies where the program gives no advice.
#[test]
fn advice_overrides_page_size() {
    if are_missing("advice_overrides_page_size") {
        return;
    }
    let program = CProgram::compile("advised_size");
    let came = |size: &str, advice: &str| {
        let options = ["--local", "32MiB", "--remote", "256MiB", "--stats", "--page-size", size];
        let command = program.command(&[advice]);
        let outcome = Rack::shared(Port::Shm).run(&options, &command).finish(PROGRAM_LIMIT);
        outcome.expect_code(0);
        counted(&outcome).came
    };
    assert!(came("2m", "nothing") > 20 && came("advised-2m", "huge") > 20);
    assert!(came("2m", "no huge") < 5 && came("advised-2m", "nothing") < 5);
}

/// An interpreter's heap grows a little at a time: the page at its end is not whole yet.
#[test]
fn python_heap_keeps_its_contents() {
    if are_missing("python_heap_keeps_its_contents") {
        return;
    }
    let program = "import hashlib, random
blocks = [random.Random(i).randbytes(60000) for i in range(1000)]
index = {hashlib.sha256(block).digest(): i for i, block in enumerate(blocks)}
for order in (range(1000), range(999, -1, -1)):
    assert all(index[hashlib.sha256(blocks[i]).digest()] == i for i in order)
print(hashlib.sha256(b''.join(index)).hexdigest())";
    let mut command = Command::new("python3");
    command.args(["-c", program]);
    let venice = same_output(Rack::shared(Port::Shm), &OPTIONS, &command);
    println!("{}", venice.stderr);
    let counted = counted(&venice);
    assert!(counted.came >= 60 && counted.left >= 60, "{counted:?}");
}

#[test]
fn program_survives_a_dead_donor() {
    if are_missing("program_survives_a_dead_donor") {
        return;
    }
    let rack = Rack::start(Port::Shm, 128);
    let mut busy = Busy::start_with(&rack, "96MiB", 2, &["--local", "32MiB", "--page-size", "2m"]);
    kill_now(rack.agent_pid("node2"));
    busy.wait_for_replicas(&rack, "node2");
    let said = busy.stop();
    assert!(said.contains("node node2 died"), "{said}");
}

/// A huge page is partly lost: a touch of that part raises an error, and none waits forever.
#[test]
fn lost_only_replica_raises_an_error() {
    if are_missing("lost_only_replica_raises_an_error") {
        return;
    }
    let rack = Rack::start(Port::Shm, 128);
    let busy = Busy::start_with(&rack, "96MiB", 1, &["--local", "32MiB", "--page-size", "2m"]);
    let donor = rack.json(&["grants"])[0]["donor"].as_str().expect("a donor").to_string();
    kill_now(rack.agent_pid(&donor));
    let outcome = busy.running.finish(LIMIT);
    outcome.expect_code(128 + 7);
    let names = |line: &str| line.contains(&donor) && line.contains("region");
    assert!(outcome.stderr.lines().any(names), "{}", outcome.stderr);
}

/// Unsupported options are refused before anything is borrowed.
#[test]
fn unsupported_options_are_refused() {
    if are_missing("unsupported_options_are_refused") {
        return;
    }
    let program = CProgram::compile("keep_busy");
    for (port, options, says) in [
        (Port::Shm, &["--page-size", "2m", "--mode", "window"][..], "--mode paged"),
        (Port::Shm, &["--page-size", "2m", "--mode", "swap"], "--mode paged"),
        (Port::Shm, &["--page-size", "2m", "--faults", "in-thread"], "--faults handler"),
        (Port::Shm, &["--page-size", "2m", "--write-behind", "/tmp"], "--page-size 64k"),
        (Port::Udp, &["--page-size", "2m"], "--port shm"),
        (Port::Udp, &["--page-size", "advised-2m"], "--port shm"),
        (Port::Shm, &["--page-size", "2m", "--local", "16MiB"], "32MiB or more"),
    ] {
        let outcome = Rack::shared(port).run(options, &program.command(&[])).finish(LIMIT);
        outcome.expect_code(125);
        assert!(outcome.stderr.contains(says), "{options:?}: {}", outcome.stderr);
    }
}
