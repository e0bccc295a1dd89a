//! Several programs at one donor: what each gets, and how long one waits that reads a page at a time,
//! beside others that ask for all there is.
//!
//! `cargo run --release -p venice-ports --example udp_shares [MILLISECONDS [ROUNDS]]`

use std::net::Ipv4Addr;
use std::process::Command;

#[path = "../tests/alone_shares/load.rs"]
mod load;

use load::{Outcome, Program, Work};

/// Name, and the programs.
const CASES: [(&str, &[Program]); 6] = [
    ("one alone, a page at a time", &[FAULTS]),
    ("beside a flood of reads, 4 links", &[FAULTS, flood(Work::Reads, 4)]),
    ("beside a flood of writes, 4 links", &[FAULTS, flood(Work::Writes, 4)]),
    (
        "beside two floods of reads and writes, 4 links each",
        &[FAULTS, flood(Work::Reads, 4), flood(Work::Writes, 4)],
    ),
    ("two that read, 1 link each", &[flood(Work::Reads, 1), flood(Work::Reads, 1)]),
    ("two that read, 1 link and 4 links", &[flood(Work::Reads, 1), flood(Work::Reads, 4)]),
];

const FAULTS: Program = Program { work: Work::Faults, links: 1 };

const fn flood(work: Work, links: usize) -> Program {
    Program { work, links }
}

fn main() {
    if std::env::var_os(load::WORDS).is_some() {
        return load::be_program();
    }
    let number = |at: usize| std::env::args().nth(at).map(|text| text.parse().expect("a number"));
    let length_ns = number(1).unwrap_or(1000) * 1_000_000;
    let rounds = number(2).unwrap_or(3);
    let server = load::donor(Ipv4Addr::LOCALHOST);
    let myself = || Command::new(std::env::current_exe().unwrap());
    let mut found: Vec<Vec<Vec<Outcome>>> = vec![Vec::new(); CASES.len()];
    for _ in 0..rounds {
        for ((_, programs), found) in CASES.iter().zip(&mut found) {
            found.push(load::run(server.local_addr(), programs, length_ns, myself));
        }
    }
    for ((name, programs), found) in CASES.iter().zip(found) {
        println!("{name}");
        for (at, program) in programs.iter().enumerate() {
            let of = |of: fn(&Outcome) -> f64| median(found.iter().map(|it| of(&it[at])).collect());
            let rate = of(|it| it.pages as f64) / (length_ns as f64 / 1e9);
            let (p50_us, p99_us) = (of(|it| it.p50_us), of(|it| it.p99_us));
            print!("  {:?}, {} links: {rate:8.0} pages/s", program.work, program.links);
            if program.work == Work::Faults {
                print!(", p50 {p50_us:.0} us, p99 {p99_us:.0} us");
            }
            println!();
        }
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
