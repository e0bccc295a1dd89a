//! `venice sim calibrate`: the costs of this host's operating system, as a profile for experiments.

mod calls;
mod clock;
mod derive;
mod noise;
mod raw;
mod sample;
mod sockets;
mod stamp;
mod threads;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use venice_cli::terminal::{self, Align};
use venice_measure::machine::{self, Machine};
use venice_measure::progress::Phase;
use venice_measure::{arguments, cpus, interrupt};
use venice_simkernel::units::Hertz;
use venice_warehouse::config::Preset;
use venice_warehouse::host::profile::{Head, Measured, Profile};

use derive::Derived;
use noise::NoiseFound;
use raw::Raws;
use sample::{Cost, Effort};

/// Examples of `venice sim calibrate`.
pub const HELP: &str = "\
EXAMPLES:
  venice sim calibrate --output host.toml
  venice sim run incast-1g --quick --set server.kernel.preset=host.toml --set server.frequency=3GHz
  venice sim calibrate --quick --json

Measures system calls, packets over loopback, threads, timers and noise on this host, in half a minute,
without root. Measure on an idle machine: what other programs take of the processor counts as noise.
Costs of a network card's driver and its interrupt are left out: loopback has none.";

/// The preset whose values a profile has where nothing was measured.
const BASE: &str = "linux-3.5.7";

/// `venice sim calibrate`
#[derive(Args, Debug, Default)]
pub struct CalibrateArgs {
    /// File to write the profile to, for the key server.kernel.preset of experiments
    #[arg(long, value_name = "FILE.toml", value_parser = arguments::output_file())]
    pub output: Option<PathBuf>,
    /// Take few samples: a glance, in two seconds
    #[arg(long)]
    pub quick: bool,
    /// Print the profile and all measured times as JSON
    #[arg(long)]
    pub json: bool,
}

/// The measured costs of a host.
#[derive(Debug, Serialize)]
struct Calibration {
    /// The profile, as the file has it.
    profile: Profile,
    /// Every time that was measured, before any was subtracted from another.
    raw: Vec<RawRow>,
    /// Noise of a processor: runs of daemons that were seen, and the share of time that all noise took.
    noise: Option<NoiseRow>,
    /// Load of the machine before the measurement.
    load: f64,
    /// True with `--quick`.
    quick: bool,
}

#[derive(Debug, Serialize)]
struct RawRow {
    name: &'static str,
    ns: Option<f64>,
    spread_ns: Option<f64>,
    left_out: Option<String>,
}

#[derive(Debug, Serialize)]
struct NoiseRow {
    runs: usize,
    share: f64,
    seconds: f64,
}

/// Measures, prints and writes the profile.
///
/// # Errors
/// If nothing can be measured, on an interrupt, and if the file cannot be written.
pub fn calibrate(args: &CalibrateArgs) -> Result<i32> {
    interrupt::catch_signals()?;
    if let Some(path) = args.output.as_ref().filter(|path| !is_profile_path(path)) {
        let why = "name a file that ends with .toml: by that a preset is told from a file";
        return Err(venice_cli::failure::usage(format!("--output {}: {why}", path.display())));
    }
    let calibration = measure(args.quick)?;
    if let Some(path) = &args.output {
        let text = calibration.profile.to_toml().context("cannot make the profile's text")?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    match args.json {
        true => terminal::say_json(&calibration)?,
        false => terminal::say(text(&calibration))?,
    }
    remarks(args, &calibration);
    Ok(0)
}

fn is_profile_path(path: &std::path::Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

/// Measures on this host, and returns the profile alone.
///
/// # Errors
/// If nothing can be measured, and on an interrupt.
pub fn profile(is_quick: bool) -> Result<Profile> {
    measure(is_quick).map(|calibration| calibration.profile)
}

fn measure(is_quick: bool) -> Result<Calibration> {
    let (load, allowed) = (machine::load(), cpus::allowed()?);
    let first = *allowed.first().context("no processor may be used")?;
    // A thread of its own is pinned: what this one starts later is not.
    let measured = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            cpus::pin_to(first)?;
            measure_here(&Effort::new(is_quick), &allowed)
        });
        thread.join().unwrap_or_else(|_| bail!("a measuring thread panicked"))
    })?;
    let Here { clock, raws, noise, seconds } = measured;
    let derived = derive::derive(&raws);
    let profile = make_profile(&derived, &noise, clock)?;
    let raw = raws.all().map(|(name, cost)| raw_row(name, cost)).collect();
    let row = |found: NoiseFound| NoiseRow { runs: found.runs, share: found.share, seconds };
    Ok(Calibration { profile, raw, noise: noise.ok().map(row), load, quick: is_quick })
}

/// Times of the measuring thread.
struct Here {
    clock: f64,
    raws: Raws,
    noise: Result<NoiseFound, String>,
    seconds: f64,
}

fn measure_here(effort: &Effort, allowed: &[usize]) -> Result<Here> {
    let mut raws = Raws::default();
    let phase = Phase::new("costs of this host's kernel", 5);
    let clock = clock::frequency(effort)?;
    phase.advance(1);
    calls::measure(effort, &mut raws)?;
    phase.advance(1);
    if let Err(error) = sockets::measure(effort, &mut raws) {
        interrupt::check()?;
        terminal::remark(format!("sockets are left out: {error:#}"));
    }
    phase.advance(1);
    threads::measure(effort, allowed, &mut raws)?;
    phase.advance(1);
    let watched = noise::watch(Duration::from_secs_f64(effort.noise_s))?;
    let noise = noise::analyse(&watched, noise::tick_frequency());
    phase.advance(1);
    let noise = noise.map_err(|error| format!("{error:#}"));
    Ok(Here { clock, raws, noise, seconds: effort.noise_s })
}

fn raw_row(name: &'static str, cost: &Result<Cost, String>) -> RawRow {
    match cost {
        Ok(cost) => {
            RawRow { name, ns: Some(cost.ns), spread_ns: Some(cost.spread), left_out: None }
        }
        Err(why) => RawRow { name, ns: None, spread_ns: None, left_out: Some(why.clone()) },
    }
}

fn make_profile(
    derived: &[Derived],
    noise: &Result<NoiseFound, String>,
    clock: f64,
) -> Result<Profile> {
    let mut kernel = Preset::named(BASE).context("the base of profiles is gone")?;
    let mut left_out = derive::set_costs(&mut kernel.values, derived, clock);
    let mut measured: std::collections::BTreeMap<String, Measured> = derived
        .iter()
        .filter_map(|row| {
            Some((row.key.to_owned(), derive::measured(row.cost.clone().ok()?, row.how)))
        })
        .collect();
    match noise {
        Ok(found) => {
            derive::set_noise(&mut kernel.values, found, clock);
            let how = "a thread that reads the clock: gaps at the tick's phase";
            measured.insert("noise.tick".into(), derive::measured(found.tick_cost, how));
            let how = "a thread that reads the clock: other gaps, on average";
            let run = Cost::exact(found.run_ns.mean());
            measured.insert("noise.run".into(), derive::measured(run, how));
        }
        Err(why) => left_out.push(format!("noise: {why}")),
    }
    let settings = [
        ("/proc/sys/net/core/rmem_default", "sockets.receive"),
        ("/proc/sys/net/core/somaxconn", "sockets.backlog"),
    ];
    for (path, key) in settings {
        let read = std::fs::read_to_string(path).map_err(|error| error.to_string());
        match read.and_then(|text| text.trim().parse::<u32>().map_err(|error| error.to_string())) {
            Ok(value) if key == "sockets.backlog" => kernel.values.sockets.backlog = value.max(1),
            Ok(value) => kernel.values.sockets.receive.0 = value.into(),
            Err(why) => left_out.push(format!("{key}: cannot read {path}: {why}")),
        }
    }
    let machine = Machine::describe();
    let profile = Head {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        machine: machine.line(),
        kernel: format!("Linux {}", machine.kernel),
        date: OffsetDateTime::from(SystemTime::now()).replace_nanosecond(0)?.format(&Rfc3339)?,
        venice: env!("CARGO_PKG_VERSION").to_owned(),
        // To 10 MHz: its last digits are noise.
        clock: Hertz((clock / 1e7).round() as u64 * 10_000_000),
        left_out,
    };
    Ok(Profile { profile, measured, kernel })
}

fn text(calibration: &Calibration) -> String {
    let Profile { profile: head, measured, kernel } = &calibration.profile;
    let clock = head.clock.0 as f64;
    let row = |(key, row): (&String, &Measured)| {
        let ns = row.time.0 as f64 / 1e3;
        let instructions = format!("{:.0}", ns * clock / 1e9);
        vec![key.clone(), time(ns), time(row.spread.0 as f64 / 1e3), instructions, row.how.clone()]
    };
    let (left, right) = (Align::Left, Align::Right);
    let columns =
        [("cost", left), ("time", right), ("spread", right), ("cycles", right), ("how", left)];
    let mut parts = vec![
        format!("{}, {}, {} GHz", head.host, head.machine, clock / 1e9),
        terminal::table(&columns, measured.iter().map(row).collect()),
    ];
    if let Some(noise) = &calibration.noise {
        parts.push(format!(
            "Noise: {:.2} % of a processor in {:.0} s; ticks at {}, {} runs of others.",
            noise.share * 100.0,
            noise.seconds,
            kernel.values.noise.tick,
            noise.runs
        ));
    }
    let left_out: Vec<String> = head.left_out.iter().map(|line| format!("  {line}")).collect();
    parts.push(format!("Left out, with the value of {BASE}:\n{}", left_out.join("\n")));
    parts.join("\n\n")
}

fn time(ns: f64) -> String {
    match ns {
        ..1e4 => format!("{ns:.0} ns"),
        ..1e7 => format!("{:.1} us", ns / 1e3),
        _ => format!("{:.1} ms", ns / 1e6),
    }
}

fn remarks(args: &CalibrateArgs, calibration: &Calibration) {
    if calibration.load > 0.5 {
        terminal::remark(format!(
            "the machine was busy (load {:.1}): noise and spreads are those of other programs too",
            calibration.load
        ));
    }
    match &args.output {
        Some(path) => terminal::remark(format!(
            "use it: venice sim run incast-1g --set server.kernel.preset={} --set server.frequency={}",
            path.display(),
            calibration.profile.profile.clock
        )),
        None => terminal::remark("no profile was written: name a file with --output FILE.toml"),
    }
}
