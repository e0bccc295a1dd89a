//! Programs whose threads migrate between processors: the handler follows them, and the waker wakes
//! them.

use venice_e2e::programs::compare::same_output;
use venice_e2e::programs::{CProgram, Port, Rack, paged_mode_is_missing};

/// Returns the waiting threads left to the waker, by `--stats`; 0 if it prints nothing.
fn left_to_waker(stats: &str) -> u64 {
    let said = stats.lines().find(|line| line.contains("venice: waker: "));
    let number = said.and_then(|line| line.strip_prefix("venice: waker: ")?.split(' ').next());
    number.map_or(0, |number| number.parse().expect("a number"))
}

/// Checks that contents are right, that no thread starves where a busy process keeps the waker from
/// its processor, and that a forked child has a waker of its own.
fn check_migrating_thread(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let processors = std::thread::available_parallelism().expect("the kernel tells").get();
    let program = CProgram::compile("migrating_thread");
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
fn migrating_thread_is_woken_by_the_waker() {
    check_migrating_thread("migrating_thread_is_woken_by_the_waker", Port::Shm);
}

#[test]
fn waker_wakes_migrating_thread_over_udp() {
    check_migrating_thread("waker_wakes_migrating_thread_over_udp", Port::Udp);
}
