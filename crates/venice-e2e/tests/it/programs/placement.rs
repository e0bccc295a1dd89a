//! Programs whose threads go from processor to processor: the handler goes after them, and leaves
//! waking them to the waker.

use venice_e2e::programs::compare::same_output;
use venice_e2e::programs::{CProgram, Port, Rack, paged_mode_is_missing};

/// Of the threads that waited, those left to the waker, as `--stats` has it; 0: it says nothing.
fn left_to_waker(stats: &str) -> u64 {
    let said = stats.lines().find(|line| line.contains("venice: waker: "));
    let number = said.and_then(|line| line.strip_prefix("venice: waker: ")?.split(' ').next());
    number.map_or(0, |number| number.parse().expect("a number"))
}

/// Contents are right, nobody is forgotten where a busy process keeps the waker from its processor, and
/// a forked child has a waker of its own.
fn runs_around(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let processors = std::thread::available_parallelism().expect("the kernel tells").get();
    let program = CProgram::compile("runs_around");
    let options = ["--local", "16MiB", "--remote", "256MiB", "--stats"];
    let venice = same_output(Rack::shared(port), &options, &program.command(&[]));
    if processors < 2 {
        println!("SKIPPED: {test}: no second processor to run to");
        return;
    }
    println!("{}", venice.stderr);
    assert!(left_to_waker(&venice.stderr) > 100, "{}", venice.stderr);
}

#[test]
fn a_thread_that_runs_around_is_woken_by_the_waker() {
    runs_around("a_thread_that_runs_around_is_woken_by_the_waker", Port::Shm);
}

#[test]
fn a_thread_that_runs_around_is_woken_by_the_waker_over_udp() {
    runs_around("a_thread_that_runs_around_is_woken_by_the_waker_over_udp", Port::Udp);
}
