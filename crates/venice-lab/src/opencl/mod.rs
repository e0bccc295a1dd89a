//! `venice bench accel`: an OpenCL program on the local driver, and unchanged on granted accelerators
//! over shm and udp; any other driver beside them.

mod report;
mod worker;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use tempfile::TempDir;
use venice_measure::arguments::OutputArgs;
use venice_measure::interrupt;
use venice_measure::machine::Machine;
use venice_measure::progress::{Phase, note};
use venice_measure::rack::{Port, Rack};
use venice_measure::report::publish;

pub use report::{AccelReport, Place, PlaceReport};
pub use worker::{Figures, ProgramArgs, execute_program};

/// Devices that nodes of each rack lend: the second one takes contents over from the first one.
const OFFERS: [&str; 2] = ["node2/accelerator:opencl=1GiB", "node3/accelerator:opencl=1GiB"];
/// Memory that the nodes of a rack lend: none is used.
const LENT_BYTES: u64 = 16 << 20;
/// Time limit of one program.
const PATIENCE: Duration = Duration::from_secs(120);

/// Arguments of `venice bench accel`.
#[derive(Debug, Clone, Args)]
pub struct AccelArgs {
    /// Turns, in each of which every place is measured; the report has the medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub turns: u32,

    /// Measured calls of each kind in a turn
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub calls: u32,

    /// One more driver to measure, by the directory of its .icd file and the variables of its
    /// environment; may be repeated
    #[arg(long = "peer", value_name = "NAME=DIR[,VARIABLE=VALUE]…", value_parser = peer)]
    pub peers: Vec<Peer>,

    /// Report beside the terminal.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A driver that is measured beside Venice.
#[derive(Debug, Clone)]
pub struct Peer {
    name: String,
    /// Directory of the driver's `.icd` file.
    vendors: PathBuf,
    /// Environment that the driver alone gets.
    variables: Vec<(String, String)>,
}

fn peer(text: &str) -> Result<Peer, String> {
    let mut parts = text.split(',').map(|part| part.split_once('='));
    let (name, dir) = parts.next().flatten().ok_or("expected NAME=DIR")?;
    let vendors = PathBuf::from(dir);
    if name.is_empty() || !vendors.is_dir() {
        return Err(format!("expected NAME=DIR with an existing directory, not {name}={dir}"));
    }
    let variable = |part: Option<(&str, &str)>| match part {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected VARIABLE=VALUE behind each comma"),
    };
    let variables = parts.map(variable).collect::<Result<_, _>>()?;
    Ok(Peer { name: name.to_owned(), vendors, variables })
}

/// Measures, prints the table, writes its JSON.
///
/// # Errors
/// When no OpenCL driver is installed, the rack or a program fails, a result is wrong, a file cannot
/// be written, and on an interrupt, after the figures so far are printed.
pub fn execute(args: AccelArgs) -> Result<()> {
    interrupt::catch_signals()?;
    let mut report =
        AccelReport { machine: Machine::describe(), interrupted: false, places: vec![] };
    let measured = measure(&args, &mut report);
    report.interrupted = measured.is_err();
    let text = format!("{}\n\n{}", report.machine.line(), report.table().text());
    publish(&text, args.output.json.as_deref(), &report)?;
    measured
}

/// A place to measure, with the rack that it needs.
struct Case {
    place: Place,
    rack: Option<Rack>,
    peer: Option<Peer>,
}

fn measure(args: &AccelArgs, report: &mut AccelReport) -> Result<()> {
    let cases = cases(args)?;
    let named = |case: &Case| PlaceReport { place: case.place.clone(), turns: Vec::new() };
    report.places = cases.iter().map(named).collect();
    let phase = Phase::new("measuring OpenCL", u64::from(args.turns) * cases.len() as u64);
    for _ in 0..args.turns {
        for (case, into) in cases.iter().zip(&mut report.places) {
            interrupt::check()?;
            into.turns.push(run(case, args.calls)?);
            phase.advance(1);
        }
    }
    Ok(())
}

fn cases(args: &AccelArgs) -> Result<Vec<Case>> {
    let offers = OFFERS.map(str::to_owned);
    let up = |port| Rack::offering(3, port, LENT_BYTES, &offers);
    let case = |place, rack| Case { place, rack, peer: None };
    let mut cases = vec![case(Place::Local, None), case(Place::Shm, Some(up(Port::Shm)?))];
    // Without root all nodes are on loopback, where no service listens at udp.
    match rustix::process::geteuid().is_root() {
        true => cases.push(case(Place::Udp, Some(up(Port::Udp)?))),
        false => note("accelerators over udp are left out: they need root"),
    }
    cases.extend(args.peers.iter().map(|peer| {
        let place = Place::Peer(peer.name.clone());
        Case { place, rack: None, peer: Some(peer.clone()) }
    }));
    Ok(cases)
}

/// Runs the program in one place.
fn run(case: &Case, calls: u32) -> Result<Figures> {
    let folder = TempDir::new().context("cannot make a temporary folder")?;
    let json = folder.path().join("figures.json");
    let own = std::env::current_exe().context("cannot find the running program")?;
    let mut program: Vec<std::ffi::OsString> = vec![own.into()];
    program.extend(["bench", "accel-program", "--calls"].map(Into::into));
    program.push(calls.to_string().into());
    if case.place == Place::Udp {
        program.push("--over-udp".into());
    }
    program.extend(["--json".into(), json.clone().into()]);
    match &case.rack {
        Some(rack) => {
            let mut command = rack.venice();
            command.args(["run", "--accelerators", "2", "--"]).args(&program);
            rack.finish("venice run", command, PATIENCE)?;
        }
        None => {
            let mut command = Command::new(&program[0]);
            command.args(&program[1..]);
            if let Some(peer) = &case.peer {
                command.env("OCL_ICD_VENDORS", &peer.vendors);
                command.envs(peer.variables.iter().map(|(key, value)| (key, value)));
            }
            let output = command.output().context("cannot start the measured program")?;
            if !output.status.success() {
                bail!("{}: {}", case.place, String::from_utf8_lossy(&output.stderr).trim());
            }
        }
    }
    let text = std::fs::read_to_string(&json).context("the program left no figures")?;
    serde_json::from_str(&text).context("the program's figures cannot be read")
}
