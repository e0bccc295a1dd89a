//! Tests of several programs, each a process with links of its own, at one donor over udp: each has
//! an even share of it, and one that reads a page at a time does not wait for all outstanding pages
//! of the others.
//!
//! They measure no absolute speed, only the programs relative to each other.

use std::net::Ipv4Addr;
use std::process::Command;

mod load;

use load::{Outcome, Program, Work};

const MS: u64 = 1_000_000;
/// Outstanding pages of a flood's link.
const WINDOW: f64 = 64.0;

/// Returns the outcome of each program, in the median of three runs by the first program's part.
fn run_concurrently(programs: &[Program]) -> Vec<Outcome> {
    let server = load::donor(Ipv4Addr::LOCALHOST);
    let myself = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["child_program", "--exact", "--nocapture"]);
        command
    };
    let round = |_| load::run(server.local_addr(), programs, 700 * MS, myself);
    let mut rounds: Vec<Vec<Outcome>> = (0..3).map(round).collect();
    rounds.sort_by(|a, b| part_of_first(a).total_cmp(&part_of_first(b)));
    eprintln!("{rounds:?}");
    rounds.swap_remove(1)
}

fn part_of_first(outcomes: &[Outcome]) -> f64 {
    outcomes[0].pages as f64 / outcomes.iter().map(|it| it.pages).sum::<u64>() as f64
}

/// Program of the other tests: does nothing unless the environment selects it.
#[test]
fn child_program() {
    load::be_program();
}

#[test]
fn equal_programs_share_equally() {
    let both = run_concurrently(&[Program { work: Work::Reads, links: 2 }; 2]);
    let part = part_of_first(&both);
    assert!((0.35..0.65).contains(&part), "{part}: {both:?}");
}

/// By link it would be one part in seven; with few processors, six threads get more of them.
#[test]
fn one_link_matches_six_links() {
    let programs = [1, 6].map(|links| Program { work: Work::Reads, links });
    let both = run_concurrently(&programs);
    let part = part_of_first(&both);
    assert!((0.22..0.78).contains(&part), "{part}: {both:?}");
}

/// In order of arrival, a page would wait for all outstanding pages of the flood, 384 for six
/// links, and for a processor besides. It must wait for less than three quarters of that.
#[test]
fn page_reads_overtake_flood() {
    for work in [Work::Reads, Work::Writes] {
        let links = 6;
        let faults = Program { work: Work::Faults, links: 1 };
        let both = run_concurrently(&[faults, Program { work, links }]);
        let flood_pages_per_us = both[1].pages as f64 / 700_000.0;
        let waited_for = both[0].p50_us * flood_pages_per_us;
        let most = WINDOW * links as f64 * 0.75;
        assert!(waited_for < most, "{work:?}: a page waits for {waited_for:.0} pages: {both:?}");
    }
}
