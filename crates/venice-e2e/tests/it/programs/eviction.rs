//! What leaves, and what does not: pages of zeros never travel, and pages that are used again and again
//! stay while a scan goes past, as `--stats` counts it.

use venice_e2e::programs::compare::PROGRAM_LIMIT;
use venice_e2e::programs::{CProgram, Outcome, Port, Rack, paged_mode_is_missing};

/// Runs `program ARGS` on so little local memory, with `options`; its own checks held.
fn run(port: Port, local: &str, options: &[&str], program: (&str, &[&str])) -> Outcome {
    let (name, args) = program;
    let all = ["--local", local, "--remote", "256MiB", "--stats"];
    let program = CProgram::compile(name);
    let outcome = Rack::shared(port)
        .run(&[&all[..], options].concat(), &program.command(args))
        .finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    println!("{name} {args:?} over {port}: {}", outcome.stderr);
    outcome
}

fn zeros_never_travel(test: &str, port: Port) {
    /// Those of `zeros.c`, and how many of them hold data.
    const PAGES: u64 = 16_384;
    const DATA_PAGES: u64 = 256;
    /// 8 MiB, and what the program has besides.
    const LOCAL_PAGES: u64 = 2048;
    const OTHER_PAGES: u64 = 128;
    if paged_mode_is_missing(test) {
        return;
    }
    let outcome = run(port, "8MiB", &[], ("zeros", &[]));
    let out = outcome.number_after("pages out ");
    assert!(out >= DATA_PAGES / 2, "only {out} pages went far: the test shows nothing");
    assert!(out <= DATA_PAGES + OTHER_PAGES, "{out} pages went far, {DATA_PAGES} hold data");
    let as_zeros = outcome.number_after("as zeros ");
    let least = PAGES - DATA_PAGES - LOCAL_PAGES;
    assert!(as_zeros >= least, "{as_zeros} pages left as zeros, of {PAGES}");
    // They come back without a donor too.
    let brought = outcome.number_after("pages in ");
    assert!(brought <= DATA_PAGES + OTHER_PAGES, "{brought} pages were brought in");
}

#[test]
fn zeros_never_travel_over_shm() {
    zeros_never_travel("zeros_never_travel_over_shm", Port::Shm);
}

#[test]
fn zeros_never_travel_over_udp() {
    zeros_never_travel("zeros_never_travel_over_udp", Port::Udp);
}

/// `hot_set.c` goes through 128 MiB with 16 MiB local, and touches the same 2 MiB at every step. First
/// in, first out, those would leave each time that as much came in as is local.
#[test]
fn hot_pages_survive_a_scan() {
    const COLD_PAGES: u64 = 32_768;
    const HOT_PAGES: u64 = 512;
    const LOCAL_PAGES: u64 = 4096;
    const FIRST_IN_FIRST_OUT: u64 = COLD_PAGES / LOCAL_PAGES * HOT_PAGES;
    if paged_mode_is_missing("hot_pages_survive_a_scan") {
        return;
    }
    // Each page that comes is a fault of its own then.
    let far = |how: &str| {
        let outcome = run(Port::Shm, "16MiB", &["--read-ahead", "off"], ("hot_set", &[how]));
        outcome.number_before(" far;")
    };
    let (scan, with_hot_set) = (far("scan"), far("hot"));
    assert!(scan >= COLD_PAGES * 9 / 10, "{scan} far faults: the scan did not go far");
    let of_hot_set = with_hot_set.saturating_sub(scan);
    assert!(
        of_hot_set < FIRST_IN_FIRST_OUT / 4,
        "{of_hot_set} far faults on the hot set; by age alone they were {FIRST_IN_FIRST_OUT}"
    );
}
