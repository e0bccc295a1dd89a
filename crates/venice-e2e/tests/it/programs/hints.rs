//! Memory hints (`madvise(2)`, `posix_madvise(3)`) take effect: local pages afterwards, as the
//! program sees them (`tests/c/hints.c`), and the counts of `--stats`.

use venice_e2e::programs::compare::PROGRAM_LIMIT;
use venice_e2e::programs::{CProgram, Port, Rack, paged_mode_is_missing};

/// Pages that `hints.c` advises on.
const SOME: u64 = 1024;

/// Returns the output of `--stats` for `hints HOW`, whose own checks must hold.
fn hints(port: Port, how: &str) -> String {
    let options = ["--local", "16MiB", "--remote", "256MiB", "--stats"];
    let program = CProgram::compile("hints");
    let outcome = Rack::shared(port).run(&options, &program.command(&[how])).finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    println!("{how}: {}", outcome.stderr);
    outcome.stderr
}

/// Returns the number before `words` in the output of `--stats`.
#[track_caller]
fn number_before(stats: &str, words: &str) -> u64 {
    let before = stats.split(words).next().filter(|before| before.len() < stats.len());
    let before = before.unwrap_or_else(|| panic!("no {words:?} in {stats}"));
    let number = before.rsplit(|c: char| !c.is_ascii_digit()).next();
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{words:?} in {stats}"))
}

/// Returns the pages brought in and taken out by advice.
fn advised(stats: &str) -> [u64; 2] {
    let line = stats.lines().find(|line| line.contains("venice: madvise: "));
    let line = line.unwrap_or_else(|| panic!("no such line in {stats}"));
    let [(_, pages_in), (_, out)] =
        [" in ", " out "].map(|word| line.split_once(word).expect(word));
    [pages_in, out].map(|rest| rest.split(' ').next().and_then(|n| n.parse().ok()).expect("pages"))
}

fn willneed_spares_faults(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let far = |stats: &str| number_before(stats, " far;");
    let (touched, advised_too) = (hints(port, "touch"), hints(port, "soon"));
    let spared = far(&touched).saturating_sub(far(&advised_too));
    assert!(spared > SOME * 3 / 4, "{spared} of {SOME} faults were spared");
    assert_eq!(advised(&touched), [0, 0]);
    assert!(advised(&advised_too)[0] >= SOME * 3 / 4, "{advised_too}");
}

#[test]
fn willneed_prefetches_pages() {
    willneed_spares_faults("willneed_prefetches_pages", Port::Shm);
}

#[test]
fn willneed_prefetches_pages_over_udp() {
    willneed_spares_faults("willneed_prefetches_pages_over_udp", Port::Udp);
}

macro_rules! hints_are_heeded {
    ($($test:ident: $how:literal, $check:expr;)*) => {
        $(#[test]
        fn $test() {
            if !paged_mode_is_missing(stringify!($test)) {
                let stats = hints(Port::Shm, $how);
                assert!($check(&stats), "{stats}");
            }
        })*
    };
}

hints_are_heeded! {
    willneed_fills_half_the_budget_at_most: "willneed", |stats: &str| advised(stats)[0] > SOME;
    posix_madvise_works: "posix", |stats: &str| advised(stats)[0] >= SOME / 2;
    pages_leave_at_once: "pageout", |stats: &str| advised(stats)[1] > SOME / 2;
    cold_pages_leave_first: "cold", |stats: &str| advised(stats)[1] > SOME / 2;
    random_advice_stops_prefetch: "random", |_: &str| true;
    sequential_advice_prefetches_at_once: "sequential", |_: &str| true;
    normal_advice_resets: "normal", |_: &str| true;
    advice_moves_with_memory: "moved", |_: &str| true;
}
