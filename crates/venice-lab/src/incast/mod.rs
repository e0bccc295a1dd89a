//! `venice bench incast`: incast on Linux, in network namespaces, beside the simulator's.
//!
//! Both sides have the same links, buffers, programs and time-outs; the simulator also has this host's
//! costs (`venice sim calibrate`).

mod linux;
mod network;
mod report;
mod simulated;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use venice_cli::failure::usage;
use venice_measure::interrupt;
use venice_measure::machine::{Machine, load};
use venice_measure::progress::{Phase, note};
use venice_simkernel::units::{BitRate, Bytes, Nanos};
use venice_warehouse::host::profile::Profile;

use crate::sim::calibrate;
use network::{Links, Network};
pub use report::{IncastReport, RowReport, Side};

/// Examples of `venice bench incast`.
pub const HELP: &str = "\
EXAMPLES:
  venice bench incast --quick
  venice bench incast --profile host.toml --json incast.json
  venice bench incast --servers 1,8 --rate 1Gbps --buffer 64KiB --rto-min 1ms --congestion cubic

Needs root: each server is a thread in a network namespace, joined by veth and a bridge to the client's;
tc limits the links and the buffer. Without --profile this host is calibrated first, in two seconds.
Other programs on the machine slow Linux's side down, not the simulator's.";

/// Seeds of the simulator for each case: where a time-out falls is chance.
const SEEDS: u64 = 5;

/// The congestion control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Congestion {
    /// RFC 5681.
    #[default]
    Reno,
    /// RFC 9438.
    Cubic,
}

impl Congestion {
    fn of_linux(self) -> &'static str {
        match self {
            Self::Reno => "reno",
            Self::Cubic => "cubic",
        }
    }
}

/// The client's way to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Client {
    /// One thread, with `epoll_wait`.
    #[default]
    Epoll,
    /// A thread for each server.
    Pthread,
}

/// The meaning of the block's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// Each server sends a block.
    #[default]
    PerServer,
    /// The servers send equal parts of one block.
    Striped,
}

/// Measure incast on Linux, in network namespaces, beside the simulator's.
#[derive(Debug, Clone, Args)]
pub struct IncastArgs {
    /// Numbers of servers [default: 1,2,4,8,16; with --quick 1,4,16]
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=200))]
    pub servers: Option<Vec<u32>>,

    /// Rate of each link
    #[arg(long, value_name = "RATE", default_value = "100Mbps")]
    pub rate: BitRate,

    /// Room of the switch's output, in bytes of the wire
    #[arg(long, value_name = "SIZE", default_value = "32KiB")]
    pub buffer: Bytes,

    /// Minimum retransmission time-outs [default: 200ms,10ms; with --quick 200ms]
    #[arg(long, value_name = "TIME,...", value_delimiter = ',')]
    pub rto_min: Option<Vec<Nanos>>,

    /// Congestion controls [default: reno,cubic; with --quick reno]
    #[arg(long, value_enum, value_name = "NAME,...", value_delimiter = ',')]
    pub congestion: Option<Vec<Congestion>>,

    /// Size of a block
    #[arg(long, value_name = "SIZE", default_value = "256KiB")]
    pub block: Bytes,

    /// Meaning of that size: of each server's block, or of one that the servers share
    #[arg(long, value_enum, value_name = "SHARE", default_value_t)]
    pub share: Share,

    /// The client's way to wait
    #[arg(long, value_enum, value_name = "CLIENT", default_value_t)]
    pub client: Client,

    /// Blocks, one after the other [default: 20; with --quick 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: Option<u32>,

    /// Runs of each case on Linux [default: 3; with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,

    /// Profile of this host [default: it is measured]
    #[arg(long, value_name = "FILE.toml")]
    pub profile: Option<PathBuf>,

    /// Measure few cases, once each
    #[arg(long)]
    pub quick: bool,

    /// Write the figures to this file as JSON (`-` is standard output)
    #[arg(long, value_name = "FILE", value_parser = venice_measure::arguments::output_file())]
    pub json: Option<PathBuf>,
}

/// One row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Servers.
    pub servers: u32,
    /// Minimum retransmission time-out.
    pub rto_min: Nanos,
    /// Congestion control.
    pub congestion: Congestion,
    /// The client's way to wait.
    pub client: Client,
    /// Meaning of the block's size.
    pub share: Share,
    /// Size of a block.
    pub block: Bytes,
    /// Blocks, one after the other.
    pub rounds: u32,
}

impl Case {
    fn bytes_of_server(&self) -> u64 {
        match self.share {
            Share::PerServer => self.block.0,
            Share::Striped => (self.block.0 / u64::from(self.servers)).max(1),
        }
    }
}

/// A case with the figures of both sides so far.
struct Row {
    case: Case,
    linux: Vec<linux::Ran>,
    simulated: Vec<simulated::Ran>,
}

/// Measures both sides, prints the table, writes JSON.
///
/// # Errors
/// Without root, when the kernel lacks what the network needs, and on an interrupt, after the figures so
/// far are printed.
pub fn execute(args: IncastArgs) -> Result<()> {
    interrupt::catch_signals()?;
    let links = Links { rate: args.rate, buffer: args.buffer };
    check(&args, &links)?;
    let mut rows: Vec<Row> = cases(&args)
        .into_iter()
        .map(|case| Row { case, linux: Vec::new(), simulated: Vec::new() })
        .collect();
    let load = load();
    let profile = profile(args.profile.as_deref())?;
    let host = simulated::Host { profile, tick_ns: simulated::tick().0 };
    let most = rows.iter().map(|row| row.case.servers).max().unwrap_or(0);
    let network = Network::new(most + 1, &links)?;
    let repetitions = args.repetitions.unwrap_or(if args.quick { 1 } else { 3 });
    let measured = measure(&mut rows, &network, &links, &host, repetitions);
    drop(network);
    let report = IncastReport {
        machine: Machine::describe(),
        load,
        rate: links.rate,
        buffer: links.buffer,
        profile: host.profile.profile,
        repetitions,
        seeds: SEEDS,
        interrupted: measured.is_err(),
        rows: rows.iter().filter_map(report::row).collect(),
    };
    venice_measure::report::publish(&report::text(&report), args.json.as_deref(), &report)?;
    measured
}

fn check(args: &IncastArgs, links: &Links) -> Result<()> {
    let bad = |flag: &str, why: &str| Err(usage(format!("{flag}: {why}")));
    if !(1_000_000..=10_000_000_000).contains(&args.rate.0) {
        return bad("--rate", "choose 1Mbps to 10Gbps");
    }
    if !(1..=1 << 30).contains(&args.block.0) {
        return bad("--block", "choose 1B to 1GiB");
    }
    // `ip route` takes milliseconds.
    let is_time = |time: &Nanos| {
        (1_000_000..=10_000_000_000).contains(&time.0) && time.0.is_multiple_of(1_000_000)
    };
    if !args.rto_min.iter().flatten().all(is_time) {
        return bad("--rto-min", "choose whole milliseconds, 1ms to 10s");
    }
    links.limit().map(drop).map_err(|error| usage(format!("--buffer: {error}")))
}

fn cases(args: &IncastArgs) -> Vec<Case> {
    const MS: u64 = 1_000_000;
    let quick = args.quick;
    let servers: &[u32] = if quick { &[1, 4, 16] } else { &[1, 2, 4, 8, 16] };
    let servers = args.servers.clone().unwrap_or_else(|| servers.to_vec());
    let minima: &[Nanos] =
        if quick { &[Nanos(200 * MS)] } else { &[Nanos(200 * MS), Nanos(10 * MS)] };
    let minima = args.rto_min.clone().unwrap_or_else(|| minima.to_vec());
    let controls: &[Congestion] =
        if quick { &[Congestion::Reno] } else { &[Congestion::Reno, Congestion::Cubic] };
    let controls = args.congestion.clone().unwrap_or_else(|| controls.to_vec());
    let rounds = args.rounds.unwrap_or(if quick { 5 } else { 20 });
    let mut cases = Vec::new();
    for congestion in controls {
        for rto_min in minima.iter().copied() {
            cases.extend(servers.iter().map(|servers| Case {
                servers: *servers,
                rto_min,
                congestion,
                client: args.client,
                share: args.share,
                block: args.block,
                rounds,
            }));
        }
    }
    cases
}

/// Returns the profile of this host.
fn profile(path: Option<&Path>) -> Result<Profile> {
    let Some(path) = path else {
        note("this host is calibrated: --profile FILE.toml takes a profile");
        return calibrate::profile(true).context("cannot calibrate this host");
    };
    let profile = Profile::read(path).map_err(|error| usage(format!("--profile: {error}")))?;
    if profile.profile.clock.0 == 0 {
        bail!(usage(format!("--profile {}: profile.clock is missing", path.display())));
    }
    Ok(profile)
}

/// Runs all cases in turns, so that an interrupted run has figures of each.
fn measure(
    rows: &mut [Row],
    network: &Network,
    links: &Links,
    host: &simulated::Host,
    repetitions: u32,
) -> Result<()> {
    let phase = Phase::new("incast, simulated", rows.len() as u64);
    for row in &mut *rows {
        for seed in 1..=SEEDS {
            row.simulated.push(simulated::run(&row.case, links, host, seed)?);
        }
        phase.advance(1);
    }
    drop(phase);
    let phase = Phase::new("incast on Linux", u64::from(repetitions) * rows.len() as u64);
    for _ in 0..repetitions {
        for row in &mut *rows {
            interrupt::check()?;
            row.linux.push(linux::run(network, &row.case)?);
            phase.advance(1);
            // What the last connections still send does not belong to the next ones.
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        args: IncastArgs,
    }

    fn args(words: &str) -> IncastArgs {
        Words::parse_from(["x"].into_iter().chain(words.split_whitespace())).args
    }

    #[test]
    fn cases_are_all_combinations() {
        assert_eq!(cases(&args("")).len(), 20);
        assert_eq!(cases(&args("--quick")).len(), 3);
        let few = cases(&args("--servers 2,3 --rto-min 1ms --congestion cubic --rounds 4"));
        let servers: Vec<u32> = few.iter().map(|case| case.servers).collect();
        assert_eq!((servers, few[0].rounds), (vec![2, 3], 4));
    }

    #[test]
    fn impossible_links_are_refused() {
        for (words, flag) in [
            ("--rate 1Gbps --buffer 4KiB", "--buffer"),
            ("--rate 1kbps", "--rate"),
            ("--rto-min 1us", "--rto-min"),
            ("--block 0", "--block"),
        ] {
            let args = args(words);
            let links = Links { rate: args.rate, buffer: args.buffer };
            let error = check(&args, &links).unwrap_err().to_string();
            assert!(error.starts_with(flag), "{error}");
        }
    }

    #[test]
    fn striped_block_is_shared() {
        let case = Case { servers: 16, block: Bytes(256 << 10), ..Case::default() };
        assert_eq!(case.bytes_of_server(), 256 << 10);
        let striped = Case { share: Share::Striped, ..case };
        assert_eq!(striped.bytes_of_server(), 16 << 10);
    }
}
