//! `venice sim`: racks in virtual time, and experiments in simulated worlds.

mod arguments;
pub mod calibrate;
mod control;
mod control_text;
pub mod experiment;
mod failure;
pub(crate) mod huge_pages;
mod rack_text;
mod record;
mod text;

use std::fs::File;
use std::io::BufWriter;

use anyhow::Context;
use serde::Serialize;
use venice_sim::minimise::minimise;
use venice_sim::pcap::Capture;
use venice_sim::rack::{self as racks, Options};
use venice_sim::report::Report;
use venice_sim::scenario::Scenario;

pub use self::arguments::RackArgs;
pub use self::control::{ControlArgs, HELP as HELP_CONTROL, control};
use self::failure::{MINIMISE_TRIES, Smallest};
pub use self::record::{HELP as HELP_RECORD, RecordArgs, record};
use venice_cli::failure::Usage;
use venice_cli::terminal;

/// Examples of `venice sim`.
pub const HELP: &str = "\
EXAMPLES:
  venice sim rack --loss 1%
  venice sim rack --random --seeds 1000
  venice sim control --random --seeds 1000
  venice sim calibrate --output host.toml
  venice sim list                         experiments in simulated worlds
  venice sim run incast-1g --quick";

/// Examples of `venice sim rack`.
pub const HELP_RACK: &str = "\
EXAMPLES:
  venice sim rack                                     eight nodes on the paper's links
  venice sim rack --loss 1% --crash 3@1ms+20ms        node 3 is down for 20 ms, from 1 ms on
  venice sim rack --topology mesh:2x2x2 --freeze 5@1ms+50ms
  venice sim rack --random --seed 7 --seeds 1000      a thousand racks drawn from their seeds
  venice sim rack --cut 0-1@2ms+5ms --pcap cut.pcapng --link 0-1
  venice sim rack --scenario failed.toml --json

The same scenario and seed give the same run: the reports have the same trace hash. Nodes are
numbered from 0. When a checker finds something, the smallest scenario that still fails is printed
(or written with --save), and the exit code is 1.";

/// Runs the racks of the command line.
pub fn rack(args: &RackArgs) -> anyhow::Result<i32> {
    let first = args.scenario()?;
    if args.seeds > 1 {
        return rack_seeds(args, &first);
    }
    let report = run_one(args, &first)?;
    say_one(args, &report)?;
    if let (Some(path), true) = (&args.save, report.is_ok()) {
        std::fs::write(path, first.to_toml()).with_context(|| format!("cannot write {path:?}"))?;
    }
    if report.is_ok() { Ok(0) } else { report_failure(args, &first) }
}

fn run_one(args: &RackArgs, scenario: &Scenario) -> anyhow::Result<Report> {
    let mut options = Options { sabotage: args.sabotage, ..Options::default() };
    let Some(path) = &args.pcap else { return racks::run(scenario, options).map_err(usage) };
    let file = File::create(path).with_context(|| format!("cannot create {path:?}"))?;
    let mut capture = Capture::new(BufWriter::new(file), args.link)
        .with_context(|| format!("cannot write {path:?}"))?;
    options.tap = Some(&mut capture);
    let report = racks::run(scenario, options).map_err(usage)?;
    let frames = capture.finish().with_context(|| format!("cannot write {path:?}"))?;
    terminal::remark(format!("{frames} frames in {}", path.display()));
    if let (0, Some((a, b))) = (frames, args.link) {
        terminal::remark(format!("nodes {a} and {b} exchange no frames in this run"));
    }
    Ok(report)
}

fn say_one(args: &RackArgs, report: &Report) -> anyhow::Result<()> {
    if args.json {
        terminal::say_json(report)
    } else {
        terminal::say(rack_text::report(report))?;
        Ok(())
    }
}

/// Runs many seeds, one after the other.
#[derive(Debug, Default, Serialize)]
struct Seeds {
    ran: u64,
    failed: Vec<u64>,
    accesses: u64,
    frames: u64,
    faults: u64,
    virtual_ns: u64,
}

fn rack_seeds(args: &RackArgs, first: &Scenario) -> anyhow::Result<i32> {
    let bar = terminal::progress(args.seeds, "seeds");
    let mut sum = Seeds::default();
    for seed in (0..args.seeds).map(|n| first.seed.wrapping_add(n)) {
        let scenario = args.scenario_of(seed)?;
        let options = Options { sabotage: args.sabotage, ..Options::default() };
        let report = racks::run(&scenario, options).map_err(usage)?;
        sum.ran += 1;
        sum.accesses += report.succeeded();
        sum.frames += report.frames.sent;
        sum.faults += scenario.faults.len() as u64;
        sum.virtual_ns += report.virtual_ns;
        bar.inc(1);
        if !report.is_ok() {
            bar.println(format!("seed {seed} failed"));
            sum.failed.push(seed);
            if !args.keep_going {
                break;
            }
        }
    }
    bar.finish_and_clear();
    if args.json {
        terminal::say_json(&sum)?;
    } else {
        terminal::say(rack_text::seeds(&sum))?;
    }
    match sum.failed.first() {
        None => Ok(0),
        Some(&seed) => report_failure(args, &args.scenario_of(seed)?),
    }
}

fn report_failure(args: &RackArgs, scenario: &Scenario) -> anyhow::Result<i32> {
    failure::report_failure(("rack", scenario.seed), args.save.as_deref(), || {
        let (smallest, report) = minimise(scenario, args.sabotage, MINIMISE_TRIES)?;
        let violations = report.violations.iter().map(rack_text::violation).collect();
        Some(Smallest { toml: smallest.to_toml(), violations })
    })
}

fn usage(error: impl std::fmt::Display) -> anyhow::Error {
    Usage(error.to_string()).into()
}
