//! Eviction as counted by `--stats`: pages of zeros never travel, and hot pages stay during a scan.

use venice_e2e::programs::compare::PROGRAM_LIMIT;
use venice_e2e::programs::{CProgram, Outcome, Port, Rack, paged_mode_is_missing};

/// Runs `program ARGS` on so little local memory, with `options`; its own checks must hold.
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
    /// Pages of `zeros.c`, and how many of them hold data.
    const PAGES: u64 = 16_384;
    const DATA_PAGES: u64 = 256;
    /// Local budget of 8 MiB, and the program's other pages.
    const LOCAL_PAGES: u64 = 2048;
    const OTHER_PAGES: u64 = 128;
    if paged_mode_is_missing(test) {
        return;
    }
    let outcome = run(port, "8MiB", &[], ("zeros", &[]));
    let out = outcome.number_after("pages out ");
    assert!(out >= DATA_PAGES / 2, "only {out} pages went far: the test shows nothing");
    assert!(out <= DATA_PAGES + OTHER_PAGES, "{out} pages went far, {DATA_PAGES} hold data");
    let as_zeros = outcome.number_before(" zero\n");
    let least = PAGES - DATA_PAGES - LOCAL_PAGES;
    assert!(as_zeros >= least, "{as_zeros} pages left as zeros, of {PAGES}");
    // They return without a donor too.
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

/// Runs `hot_set.c`, which reads 128 MiB with 16 MiB local, and touches the same 2 MiB at every
/// step. First-in-first-out eviction would evict those each time that the local amount came in.
#[test]
fn hot_pages_survive_a_scan() {
    const COLD_PAGES: u64 = 32_768;
    const HOT_PAGES: u64 = 512;
    const LOCAL_PAGES: u64 = 4096;
    const FIRST_IN_FIRST_OUT: u64 = COLD_PAGES / LOCAL_PAGES * HOT_PAGES;
    if paged_mode_is_missing("hot_pages_survive_a_scan") {
        return;
    }
    // Each incoming page is a fault of its own then.
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
