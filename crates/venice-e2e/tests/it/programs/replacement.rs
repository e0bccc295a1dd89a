//! Page replacement: the counts of `--stats` for programs with known access patterns.

use venice_e2e::programs::compare::PROGRAM_LIMIT;
use venice_e2e::programs::{CProgram, Port, Rack, paged_mode_is_missing};

const ROUNDS: u64 = 12;

/// Returns the far pages that came in for each round of a program that reads `pages` again and
/// again.
fn far_pages_a_round(port: Port, local: &str, pages: u64) -> u64 {
    let options = ["--local", local, "--remote", "256MiB", "--read-ahead", "off", "--stats"];
    let program = CProgram::compile("round_and_round");
    let command = program.command(&[&pages.to_string(), &ROUNDS.to_string()]);
    let outcome = Rack::shared(port).run(&options, &command).finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    println!("{pages} pages, {local}: {}", outcome.stderr);
    outcome.number_before(" far;") / ROUNDS
}

/// First-in-first-out eviction would evict every page just before it is read.
#[test]
fn cyclic_reads_keep_most_pages_resident() {
    if paged_mode_is_missing("cyclic_reads_keep_most_pages_resident") {
        return;
    }
    let pages = 8192;
    for port in [Port::Shm, Port::Udp] {
        let far = far_pages_a_round(port, "33MiB", pages);
        assert!(far < pages / 2, "{far} of {pages}");
    }
}
