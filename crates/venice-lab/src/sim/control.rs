//! `venice sim control`: a rack's control plane in virtual time.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use venice_sim::control::minimise::minimise;
use venice_sim::control::scenario::{MAX_MONITORS, MAX_NODES};
use venice_sim::control::{self, Bounds, Fault, FaultKind, Report, Scenario};
use venice_simkernel::units::{Nanos, Share};

use super::failure::{self, MINIMISE_TRIES, Smallest, replay_command};
use super::{control_text, usage};
use venice_cli::terminal;

/// Examples of `venice sim control`.
pub const HELP: &str = "\
EXAMPLES:
  venice sim control                                    a rack with one Monitor Node, without faults
  venice sim control --monitors 3 --crash monitor0@5s+8s --loss 1%
  venice sim control --freeze donor2@5s+12s --cut monitor0-donor1@8s+4s --drain donor0@10s+10s
  venice sim control --random --seed 7 --seeds 1000     a thousand racks drawn from their seeds
  venice sim control --scenario failed.toml --json

Recipients request memory and devices, renew, release and die; Monitor Nodes and donors run the real
logic. The same scenario and seed give the same run: the reports have the same trace hash. Participants
are numbered from 0: monitor0, donor0, recipient0; store is the store that several Monitor Nodes share.
After the last fault every request must be served, all tables must agree, and all memory must return. When a checker finds something,
the smallest scenario that still fails is printed (or written with --save), and the exit code is 1.";

/// `venice sim control`
#[derive(Args, Debug)]
pub struct ControlArgs {
    /// Nodes that lend [default: 4, or as drawn with --random]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_NODES as i64))]
    donors: Option<u16>,
    /// Nodes whose programs borrow [default: 6, or as drawn with --random]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_NODES as i64))]
    recipients: Option<u16>,
    /// Monitor Nodes: one has a file, several share a store [default: 1, or as drawn with --random]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_MONITORS as i64))]
    monitors: Option<u16>,
    /// Seed of all random numbers [default: 0, or the scenario's]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Run this many seeds, one after the other
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Draw the rack, its network, work and faults from the seed; other flags keep precedence
    #[arg(long, conflicts_with = "scenario")]
    random: bool,
    /// Run this scenario (TOML); other flags change it
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Virtual time during which programs start and end
    #[arg(long, value_name = "TIME")]
    span: Option<Nanos>,
    /// Lease of a grant
    #[arg(long, value_name = "TIME")]
    lease: Option<Nanos>,
    /// Latency of every message, for example 200us
    #[arg(long, value_name = "TIME")]
    latency: Option<Nanos>,
    /// Largest extra latency of a message
    #[arg(long, value_name = "TIME")]
    jitter: Option<Nanos>,
    /// Share of messages lost
    #[arg(long, value_name = "SHARE")]
    loss: Option<Share>,
    /// Share of messages during which the connection breaks
    #[arg(long, value_name = "SHARE")]
    resets: Option<Share>,
    /// Share of messages delayed by up to --late-by
    #[arg(long, value_name = "SHARE")]
    late: Option<Share>,
    /// Largest delay of a late message [default: 3s]
    #[arg(long, value_name = "TIME")]
    late_by: Option<Nanos>,
    /// Largest difference of clocks, for example 600s
    #[arg(long, value_name = "TIME")]
    clocks_apart: Option<Nanos>,
    /// Share of programs that queue when there is no room
    #[arg(long, value_name = "SHARE")]
    wait: Option<Share>,
    /// Share of those that preempt grants of lower priority
    #[arg(long, value_name = "SHARE")]
    preempt: Option<Share>,
    /// Kill a process and restart it after a duration: WHO@FROM+FOR
    #[arg(long, value_name = "WHO@FROM+FOR", value_parser = crash)]
    crash: Vec<Fault>,
    /// Stop a process as SIGSTOP does, for a duration
    #[arg(long, value_name = "WHO@FROM+FOR", value_parser = freeze)]
    freeze: Vec<Fault>,
    /// Cut the link between two participants at a time, for a duration: A-B@FROM+FOR
    #[arg(long, value_name = "A-B@FROM+FOR", value_parser = cut)]
    cut: Vec<Fault>,
    /// Cut a participant off from all others
    #[arg(long, value_name = "WHO@FROM+FOR", value_parser = isolate)]
    isolate: Vec<Fault>,
    /// Drain a donor
    #[arg(long, value_name = "DONOR@FROM+FOR", value_parser = drain)]
    drain: Vec<Fault>,
    /// Write the scenario to this file; if it fails, the smallest one that still fails
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Continue after a seed that fails
    #[arg(long, requires = "seeds")]
    keep_going: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl ControlArgs {
    /// Returns the scenario of a seed.
    fn scenario_of(&self, seed: u64) -> anyhow::Result<Scenario> {
        let mut scenario = match &self.scenario {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read {}", path.display()))
                    .map_err(|error| usage(format!("{error:#}")))?;
                Scenario::from_toml(&text)
                    .map_err(|error| usage(format!("{}: {error}", path.display())))?
            }
            None if self.random => Scenario::random(seed, &self.bounds()),
            None => Scenario::default(),
        };
        if self.scenario.is_none() || self.seed.is_some() || self.seeds > 1 {
            scenario.seed = seed;
        }
        self.change(&mut scenario);
        scenario.check().map_err(usage)?;
        Ok(scenario)
    }

    fn bounds(&self) -> Bounds {
        let mut bounds = Bounds::default();
        if let Some(monitors) = self.monitors {
            (bounds.min_monitors, bounds.max_monitors) = (monitors, monitors);
        }
        bounds
    }

    fn change(&self, scenario: &mut Scenario) {
        for (count, given) in [
            (&mut scenario.donors, self.donors),
            (&mut scenario.recipients, self.recipients),
            (&mut scenario.monitors, self.monitors),
        ] {
            *count = given.unwrap_or(*count);
        }
        let network = &mut scenario.network;
        for (time, given) in [
            (&mut scenario.span, self.span),
            (&mut scenario.lease, self.lease),
            (&mut network.latency, self.latency),
            (&mut network.jitter, self.jitter),
            (&mut network.late_by, self.late_by),
            (&mut scenario.clocks.apart, self.clocks_apart),
        ] {
            *time = given.unwrap_or(*time);
        }
        for (share, given) in [
            (&mut network.loss, self.loss),
            (&mut network.resets, self.resets),
            (&mut network.late, self.late),
            (&mut scenario.workload.wait, self.wait),
            (&mut scenario.workload.preempt, self.preempt),
        ] {
            *share = given.unwrap_or(*share);
        }
        for faults in [&self.crash, &self.freeze, &self.cut, &self.isolate, &self.drain] {
            scenario.faults.extend_from_slice(faults);
        }
    }
}

/// Runs many seeds, one after the other.
#[derive(Debug, Default, Serialize)]
pub(super) struct Seeds {
    pub(super) ran: u64,
    pub(super) failed: Vec<u64>,
    pub(super) grants: u64,
    pub(super) messages: u64,
    pub(super) faults: u64,
    pub(super) virtual_ns: u64,
}

/// Runs the racks of the command line.
pub fn control(args: &ControlArgs) -> anyhow::Result<i32> {
    let first = args.scenario_of(args.seed.unwrap_or(0))?;
    if args.seeds > 1 {
        return control_seeds(args, &first);
    }
    let report = run(&first)?;
    match args.json {
        true => terminal::say_json(&report)?,
        false => terminal::say(control_text::report(&report))?,
    }
    if !report.is_ok() {
        return report_failure(args, &first);
    }
    if let Some(path) = &args.save {
        std::fs::write(path, first.to_toml()).with_context(|| format!("cannot write {path:?}"))?;
    }
    Ok(0)
}

fn control_seeds(args: &ControlArgs, first: &Scenario) -> anyhow::Result<i32> {
    let bar = terminal::progress(args.seeds, "seeds");
    let mut sum = Seeds::default();
    for seed in (0..args.seeds).map(|n| first.seed.wrapping_add(n)) {
        let scenario = args.scenario_of(seed)?;
        let report = run(&scenario)?;
        sum.add(&report);
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
    match args.json {
        true => terminal::say_json(&sum)?,
        false => terminal::say(control_text::seeds(&sum))?,
    }
    match sum.failed.first() {
        None => Ok(0),
        Some(&seed) => report_failure(args, &args.scenario_of(seed)?),
    }
}

fn run(scenario: &Scenario) -> anyhow::Result<Report> {
    let seed = scenario.seed;
    // In a release build a failed assertion aborts the process: the hook prints its seed first.
    std::panic::set_hook(Box::new(move |panic| {
        terminal::remark(format!("{panic}\nreplay it with: {}", replay_command(seed)));
    }));
    control::run(scenario).map_err(usage)
}

impl Seeds {
    fn add(&mut self, report: &Report) {
        self.ran += 1;
        self.grants += report.grants.memory + report.grants.devices;
        self.messages += report.messages.sent;
        self.faults += report.faults.values().sum::<u64>();
        self.virtual_ns += report.virtual_ns;
    }
}

fn report_failure(args: &ControlArgs, scenario: &Scenario) -> anyhow::Result<i32> {
    failure::report_failure(("control", scenario.seed), args.save.as_deref(), || {
        let (smallest, report) = minimise(scenario, MINIMISE_TRIES)?;
        let violations = report.violations.iter().map(control_text::violation).collect();
        Some(Smallest { toml: smallest.to_toml(), violations })
    })
}

fn crash(text: &str) -> Result<Fault, String> {
    Fault::parse(text, |who| FaultKind::Crash { who }).map_err(|error| error.to_string())
}

fn freeze(text: &str) -> Result<Fault, String> {
    Fault::parse(text, |who| FaultKind::Freeze { who }).map_err(|error| error.to_string())
}

fn isolate(text: &str) -> Result<Fault, String> {
    Fault::parse(text, |who| FaultKind::Isolate { who }).map_err(|error| error.to_string())
}

fn cut(text: &str) -> Result<Fault, String> {
    Fault::parse_cut(text).map_err(|error| error.to_string())
}

fn drain(text: &str) -> Result<Fault, String> {
    Fault::parse_drain(text).map_err(|error| error.to_string())
}
