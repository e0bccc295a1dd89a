//! Prefetch follows trends and ignores random accesses, by the counts of `--stats`.

use venice_e2e::programs::compare::PROGRAM_LIMIT;
use venice_e2e::programs::{CProgram, Port, Rack, paged_mode_is_missing};

/// Counts of `--stats` for `trends ORDER`.
struct Seen {
    /// Faults that read from a donor.
    far: u64,
    /// Pages prefetched, used, and wasted.
    ahead: u64,
    used: u64,
    wasted: u64,
}

fn read(port: Port, order: &str) -> Seen {
    let options = ["--local", "16MiB", "--remote", "256MiB", "--stats"];
    let program = CProgram::compile("trends");
    let outcome =
        Rack::shared(port).run(&options, &program.command(&[order])).finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    println!("{order}: {}", outcome.stderr);
    let before = |words| outcome.number_before(words);
    Seen {
        far: before(" far;"),
        ahead: before(" prefetched;"),
        used: before(" used,"),
        wasted: before(" wasted"),
    }
}

fn follows_trend(test: &str, port: Port, order: &str) {
    if paged_mode_is_missing(test) {
        return;
    }
    let seen = read(port, order);
    assert!(seen.ahead > 3 * seen.far, "{} far faults, {} ahead", seen.far, seen.ahead);
    assert!(seen.used > 4 * seen.wasted, "{} used, {} wasted", seen.used, seen.wasted);
}

macro_rules! trends_are_found {
    ($($test:ident: $port:ident $order:literal;)*) => {
        $(#[test]
        fn $test() {
            follows_trend(stringify!($test), Port::$port, $order);
        })*
    };
}

trends_are_found! {
    backwards: Shm "backwards";
    by_wide_steps: Shm "strided";
    alternating_streams: Shm "in turn";
    backwards_over_udp: Udp "backwards";
    by_wide_steps_over_udp: Udp "strided";
}

#[test]
fn majority_is_followed_under_noise() {
    if paged_mode_is_missing("majority_is_followed_under_noise") {
        return;
    }
    let seen = read(Port::Shm, "noisy");
    assert!(seen.ahead > seen.far && seen.used > 2 * seen.wasted, "{} far", seen.far);
}

#[test]
fn random_access_prefetches_nothing() {
    if paged_mode_is_missing("random_access_prefetches_nothing") {
        return;
    }
    let seen = read(Port::Shm, "random");
    assert!(seen.ahead * 20 < seen.far, "{} ahead of {} faults", seen.ahead, seen.far);
}

#[test]
fn page_pairs_are_no_stream() {
    if paged_mode_is_missing("page_pairs_are_no_stream") {
        return;
    }
    let seen = read(Port::Shm, "pairs");
    assert!(seen.ahead * 10 < seen.far, "{} ahead of {} faults", seen.ahead, seen.far);
}
