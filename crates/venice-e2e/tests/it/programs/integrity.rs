//! The data-integrity soak of `make soak`, short: programs that check every byte while donors are
//! killed, stalled, drained and short of memory.

use std::time::Duration;

use venice_e2e::programs::soak::{Plan, soak};
use venice_e2e::programs::{Port, paged_mode_is_missing};

const LASTING: Duration = Duration::from_secs(8);

fn no_byte_is_wrong(test: &str, port: Port, seed: u64) {
    if paged_mode_is_missing(test) {
        return;
    }
    let report = soak(Plan { port, seed, lasting: LASTING }, |what| println!("{what}"));
    println!("{report}");
    assert!(report.injuries() > 0 && report.checks() > 0, "{report}");
}

#[test]
fn short_soak_over_shm() {
    no_byte_is_wrong("short_soak_over_shm", Port::Shm, 1);
}

#[test]
fn short_soak_over_udp() {
    no_byte_is_wrong("short_soak_over_udp", Port::Udp, 2);
}
