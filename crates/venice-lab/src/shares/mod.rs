//! `venice bench shares`: several programs at one donor over udp, and the share of each.
//!
//! The donor is a thread like an agent's udp port; the programs are processes with links of their
//! own, like the threads of a pager ([`program`]). The cases take turns.

mod donor;
mod program;
mod report;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use tempfile::TempDir;
use venice_ports::monotonic_ns;

pub use program::{ProgramArgs, Work, execute_program};
pub use report::{CaseReport, ProgramReport, SharesReport};

use crate::wire::Wire;
use donor::Donor;
use program::Had;
use venice_measure::child::ChildGuard;
use venice_measure::machine::Machine;
use venice_measure::progress::Phase;
use venice_measure::{arguments, interrupt};

/// Warm-up before the measurement.
const WARM_UP_NS: u64 = 400_000_000;
/// Time limit of a program beyond its measured time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of `venice bench shares`.
#[derive(Debug, Clone, Args)]
pub struct SharesArgs {
    /// Duration of a case in seconds.
    #[arg(long, default_value_t = 2.0, value_parser = arguments::positive)]
    pub seconds: f64,

    /// Repetitions of each case; the report has the medians.
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,

    /// Write the figures to this file as JSON (`-` is standard output).
    #[arg(long, value_name = "FILE", value_parser = venice_measure::arguments::output_file())]
    pub json: Option<PathBuf>,
}

/// One program of a case.
#[derive(Debug, Clone, Copy)]
struct Program {
    work: Work,
    links: u32,
}

/// Programs that run beside each other.
struct Case {
    name: &'static str,
    programs: &'static [Program],
}

const FAULTS: Program = Program { work: Work::Faults, links: 1 };

const fn reads(links: u32) -> Program {
    Program { work: Work::Reads, links }
}

const fn writes(links: u32) -> Program {
    Program { work: Work::Writes, links }
}

const CASES: [Case; 7] = [
    Case { name: "a page at a time, alone", programs: &[FAULTS] },
    Case { name: "beside heavy reads", programs: &[FAULTS, reads(4)] },
    Case { name: "beside heavy writes", programs: &[FAULTS, writes(4)] },
    Case { name: "beside heavy reads and writes", programs: &[FAULTS, reads(4), writes(4)] },
    Case { name: "two alike", programs: &[reads(2), reads(2)] },
    Case { name: "one link, four links", programs: &[reads(1), reads(4)] },
    Case { name: "reads, writes", programs: &[reads(2), writes(2)] },
];

/// Runs the cases, prints the table, writes JSON.
///
/// # Errors
/// When sockets or processes fail, when a file cannot be written, and on an interrupt, after the
/// figures so far are printed.
pub fn execute(args: SharesArgs) -> Result<()> {
    interrupt::catch_signals()?;
    let mut found: Vec<Vec<Vec<Had>>> = CASES.iter().map(|_| Vec::new()).collect();
    let (path, measured) = measure(&args, &mut found)?;
    let cases = CASES.iter().zip(&found).filter(|(_, rounds)| !rounds.is_empty());
    let report = SharesReport {
        machine: Machine::describe(),
        path,
        seconds: args.seconds,
        repetitions: args.repetitions,
        interrupted: measured.is_err(),
        cases: cases.map(|(case, rounds)| report::case(case, rounds, args.seconds)).collect(),
    };
    venice_measure::report::publish(&report::text(&report), args.json.as_deref(), &report)?;
    measured
}

/// Runs all cases in turns, so that an interrupted run has figures of each; returns the frames'
/// path, and the final result.
fn measure(args: &SharesArgs, found: &mut [Vec<Vec<Had>>]) -> Result<(String, Result<()>)> {
    let wire = Wire::lay().inspect_err(|error| {
        venice_measure::progress::note(&format!("the programs go over loopback: {error:#}"));
    });
    let wire = wire.ok();
    let donor = Donor::start(wire.as_ref())?;
    let path = if wire.is_some() { "veth" } else { "loopback" };
    let phase = Phase::new("sharing a donor", u64::from(args.repetitions) * CASES.len() as u64);
    for _ in 0..args.repetitions {
        for (case, found) in CASES.iter().zip(&mut *found) {
            match beside_each_other(case, &donor, args.seconds) {
                Ok(had) => found.push(had),
                Err(error) => return Ok((path.to_owned(), Err(error))),
            }
            phase.advance(1);
        }
    }
    Ok((path.to_owned(), Ok(())))
}

/// Runs the programs of a case at one donor; returns the figures of each.
fn beside_each_other(case: &Case, donor: &Donor, seconds: f64) -> Result<Vec<Had>> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let from_ns = monotonic_ns() + WARM_UP_NS;
    let until_ns = from_ns + (seconds * 1e9) as u64;
    let start = |(number, program): (usize, &Program)| {
        let json = json_of(&folder, number);
        let command = command(program, number, donor, (from_ns, until_ns), &json)?;
        ChildGuard::spawn("a program", command, &folder.path().join(format!("log-{number}")))
    };
    let mut children =
        case.programs.iter().enumerate().map(start).collect::<Result<Vec<ChildGuard>>>()?;
    let limit = PATIENCE + Duration::from_secs_f64(seconds);
    children.iter_mut().try_for_each(|child| child.wait_success(limit))?;
    (0..children.len()).map(|number| read(&json_of(&folder, number))).collect()
}

fn json_of(folder: &TempDir, number: usize) -> PathBuf {
    folder.path().join(format!("{number}.json"))
}

fn command(
    program: &Program,
    number: usize,
    donor: &Donor,
    (from_ns, until_ns): (u64, u64),
    json: &PathBuf,
) -> Result<Command> {
    let own = std::env::current_exe().context("cannot find the running program")?;
    let mut command = Command::new(own);
    let grant = donor.grant(number).to_string();
    command
        .args(["bench", "shares-program", "--donor", &donor.address().to_string()])
        .args(["--grant", &grant, "--work", program.work.name()])
        .args(["--links", &program.links.to_string()])
        .args(["--from-ns", &from_ns.to_string(), "--until-ns", &until_ns.to_string()])
        .arg("--json")
        .arg(json);
    Ok(command)
}

fn read(json: &PathBuf) -> Result<Had> {
    let text = std::fs::read_to_string(json).context("a program left no figures")?;
    let had: Had = serde_json::from_str(&text).context("a program's figures cannot be read")?;
    if had.pages == 0 {
        bail!("a program moved no page: the donor does not answer");
    }
    Ok(had)
}
