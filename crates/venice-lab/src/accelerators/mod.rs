//! `venice paper 16a`: Fourier transforms on one to four accelerators, local and remote.
//!
//! The accelerators are emulated ([`venice_accel::mailbox::EmulatedAccelerator`]), so that several of
//! them do not share the processors' speed. Remote ones belong to nodes of a rack; a program that
//! `venice get` starts uses them through the library's pool.

mod local;
mod program;
mod report;
mod work;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use tempfile::TempDir;
use venice_accel::mailbox::EmulatedModel;
use venice_measure::arguments::OutputArgs;
use venice_measure::interrupt;
use venice_measure::machine::Machine;
use venice_measure::progress::{Phase, note};
use venice_measure::rack::{Port, Rack};
use venice_measure::report::{grouped, publish};
use venice_wire::ByteSize;

pub use program::{ProgramArgs, execute_program};
pub use report::{CaseReport, Figure16aReport, Place, RunReport};

use crate::page::Page;
use work::{Arrays, TRANSFORM_BYTES};

/// Most accelerators, one on each node but the program's.
const MOST: u32 = 8;
/// Size with `--quick`.
const QUICK: ByteSize = ByteSize(64 << 20);
/// Memory that the nodes of a rack lend: none is used.
const LENT_BYTES: u64 = 16 << 20;
/// Time limit of a program beyond the model's.
const PATIENCE: Duration = Duration::from_secs(120);

/// Arguments of `venice paper 16a`.
#[derive(Debug, Clone, Args)]
pub struct Figure16aArgs {
    /// Bytes to transform
    #[arg(long, value_name = "SIZE", default_value = "512MB")]
    pub size: ByteSize,

    /// Bytes of a task, at most 16 MiB
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub task: ByteSize,

    /// Most accelerators; each number from 1 on is measured
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST)))]
    pub accelerators: u32,

    /// Bytes a second of one accelerator
    #[arg(long, value_name = "RATE", default_value = "64MB/s")]
    pub rate: String,

    /// Repetitions of each case; the report has the medians
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repetitions: u32,

    /// Transform 64 MiB only
    #[arg(long, conflicts_with = "size")]
    pub quick: bool,

    /// Report beside the terminal.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Measures Figure 16a, prints its table, writes its JSON, its plot and its page.
///
/// # Errors
/// When the arguments do not fit each other, the rack or a program fails, a result is wrong, a file
/// cannot be written, and on an interrupt, after the figures so far are printed.
pub fn execute(args: Figure16aArgs) -> Result<()> {
    interrupt::catch_signals()?;
    let plan = Plan::of(&args)?;
    let mut report = Figure16aReport {
        machine: Machine::describe(),
        size_bytes: plan.size_bytes,
        task_bytes: plan.task_bytes,
        bytes_per_s: plan.model.model.bytes_per_s,
        interrupted: false,
        cases: Vec::new(),
    };
    let measured = plan.measure(&mut report);
    report.interrupted = measured.is_err();
    report.finish();
    publish_all(&report, &args.output)?;
    measured?;
    match report.checked() {
        (_, 0) => Ok(()),
        (checked, wrong) => bail!("{wrong} of {checked} transforms were wrong"),
    }
}

fn publish_all(report: &Figure16aReport, output: &OutputArgs) -> Result<()> {
    let (checked, wrong) = report.checked();
    let end =
        if report.interrupted { ", INTERRUPTED: what is not above was not measured" } else { "" };
    let closing = format!("{} transforms checked, {wrong} wrong{end}.", grouped(checked as f64));
    let header = report.machine.line();
    if let Some(folder) = &output.plots {
        let plots: Vec<_> = report.plot()?.into_iter().collect();
        let page = Page {
            title: "Figure 16a: remote accelerators",
            header: vec![header.clone()],
            legend: "Higher is better; grey: linear in the number of accelerators.",
            plots: &plots,
            tables: vec![report.table()],
            closing: vec![closing.clone()],
        };
        page.publish(folder)?;
    }
    let text = format!("{header}\n\n{}\n{closing}", report.table().text());
    publish(&text, output.json.as_deref(), report)
}

/// Sizes and cases of a measurement.
struct Plan {
    model: EmulatedModel,
    size_bytes: u64,
    task_bytes: u64,
    accelerators: u32,
    repetitions: u32,
}

impl Plan {
    fn of(args: &Figure16aArgs) -> Result<Self> {
        let model: EmulatedModel =
            format!("fft@{}", args.rate).parse().map_err(anyhow::Error::msg)?;
        let size = if args.quick { QUICK } else { args.size };
        let whole = |bytes: u64| bytes / TRANSFORM_BYTES * TRANSFORM_BYTES;
        let (size_bytes, task_bytes) = (whole(size.0), whole(args.task.0));
        if task_bytes == 0 || task_bytes > 16 << 20 || size_bytes < task_bytes {
            bail!("--task {}: expected 8 KiB to 16 MiB, and no more than --size", args.task);
        }
        let (accelerators, repetitions) = (args.accelerators, args.repetitions);
        Ok(Self { model, size_bytes, task_bytes, accelerators, repetitions })
    }

    /// Measures all cases in turns.
    fn measure(&self, report: &mut Figure16aReport) -> Result<()> {
        let racks = self.racks()?;
        let places = std::iter::once(Place::Local).chain(racks.iter().map(|(place, _)| *place));
        for place in places {
            for accelerators in 1..=self.accelerators {
                let (runs, seconds) = (Vec::new(), f64::NAN);
                let case = CaseReport {
                    place,
                    accelerators,
                    runs,
                    seconds,
                    speed_up: None,
                    of_local: None,
                };
                report.cases.push(case);
            }
        }
        let steps = u64::from(self.repetitions) * report.cases.len() as u64;
        let phase = Phase::new("transforming on accelerators", steps);
        for _ in 0..self.repetitions {
            for case in &mut report.cases {
                interrupt::check()?;
                let rack = racks.iter().find(|(place, _)| *place == case.place);
                let run = match rack {
                    None => self.run_local(case.accelerators)?,
                    Some((place, rack)) => self.run_remote(*place, rack, case.accelerators)?,
                };
                case.runs.push(run);
                phase.advance(1);
            }
        }
        Ok(())
    }

    fn racks(&self) -> Result<Vec<(Place, Rack)>> {
        let offer = |number| {
            format!("node{}/accelerator:emulated{number}=fft@{}/s", number + 1, self.rate())
        };
        let offers: Vec<String> = (1..=self.accelerators).map(offer).collect();
        let up = |port| Rack::offering(u64::from(self.accelerators) + 1, port, LENT_BYTES, &offers);
        let mut racks = vec![(Place::Shm, up(Port::Shm)?)];
        // Without root all nodes are on loopback, where no service listens at udp.
        match rustix::process::geteuid().is_root() {
            true => racks.push((Place::Udp, up(Port::Udp)?)),
            false => note("remote accelerators over udp are left out: they need root"),
        }
        Ok(racks)
    }

    fn rate(&self) -> String {
        format!("{}B", self.model.model.bytes_per_s)
    }

    fn run_local(&self, accelerators: u32) -> Result<RunReport> {
        let mut arrays = Arrays::new(self.size_bytes as usize, self.task_bytes as usize);
        local::run(&self.model, accelerators, &mut arrays)
    }

    /// Runs the program by `venice get`.
    fn run_remote(&self, place: Place, rack: &Rack, accelerators: u32) -> Result<RunReport> {
        let folder = TempDir::new().context("cannot make a temporary folder")?;
        let json = folder.path().join("figures.json");
        let own = std::env::current_exe().context("cannot find the running program")?;
        let port = if place == Place::Udp { Port::Udp } else { Port::Shm };
        let mut command = rack.venice();
        command
            .args(["get", &format!("accelerator:fft={accelerators}"), "--"])
            .arg(own)
            .args(["bench", "accelerators-program", "--port", port.name()])
            .args(["--size", &format!("{}B", self.size_bytes)])
            .args(["--task", &format!("{}B", self.task_bytes), "--json"])
            .arg(&json);
        let limit = PATIENCE + Duration::from_nanos(self.model.time_ns(self.size_bytes) * 4);
        rack.finish("venice get", command, limit)?;
        let text = std::fs::read_to_string(&json).context("the program left no figures")?;
        serde_json::from_str(&text).context("the program's figures cannot be read")
    }
}
