//! Several programs, each a process with links of its own, at one donor over udp: each has an even
//! share of it, and one that reads a page at a time does not wait for all that others have asked for.
//!
//! Nothing is said of how fast: the programs are held against each other.

use std::net::Ipv4Addr;
use std::process::Command;

mod load;

use load::{Outcome, Program, Work};

const MS: u64 = 1_000_000;
/// Pages that a link of a flood has on their way.
const WINDOW: f64 = 64.0;

/// What each of the programs has, in the median of three by the first one's part.
fn beside_each_other(programs: &[Program]) -> Vec<Outcome> {
    let server = load::donor(Ipv4Addr::LOCALHOST);
    let myself = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["is_a_program_if_asked", "--exact", "--nocapture"]);
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

/// What the other tests start: nothing, unless the environment asks for it.
#[test]
fn is_a_program_if_asked() {
    load::be_program();
}

#[test]
fn two_programs_alike_have_alike() {
    let both = beside_each_other(&[Program { work: Work::Reads, links: 2 }; 2]);
    let part = part_of_first(&both);
    assert!((0.35..0.65).contains(&part), "{part}: {both:?}");
}

/// By link it would be one part in seven; where processors are short, six threads have more of those.
#[test]
fn one_link_has_as_much_as_six_of_another_program() {
    let programs = [1, 6].map(|links| Program { work: Work::Reads, links });
    let both = beside_each_other(&programs);
    let part = part_of_first(&both);
    assert!((0.22..0.78).contains(&part), "{part}: {both:?}");
}

/// In the order they come, a page would wait for as many as the flood has on their way, 384 for six
/// links, and for a processor besides. It waits for less than three quarters of that.
#[test]
fn a_page_at_a_time_does_not_wait_for_a_flood() {
    for work in [Work::Reads, Work::Writes] {
        let links = 6;
        let faults = Program { work: Work::Faults, links: 1 };
        let both = beside_each_other(&[faults, Program { work, links }]);
        let flood_pages_per_us = both[1].pages as f64 / 700_000.0;
        let waited_for = both[0].p50_us * flood_pages_per_us;
        let most = WINDOW * links as f64 * 0.75;
        assert!(waited_for < most, "{work:?}: it waits for {waited_for:.0} pages: {both:?}");
    }
}
