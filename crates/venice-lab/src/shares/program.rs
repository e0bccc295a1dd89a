//! A program with borrowed memory: links on threads of their own, like a pager's, which read or
//! write pages without pause.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use venice_fabric::InitiatorConfig;
use venice_ports::udp::UdpDriver;
use venice_ports::{monotonic_ns, random_u64};
use venice_wire::{GrantId, NodeId};

use super::donor::{KEY, LENT_BYTES, NODE, sealed_as};
use venice_measure::pattern::Random;

const PAGE_BYTES: u64 = 4096;
/// Send window in frames, the same as that of a pager's links.
const WINDOW_FRAMES: u16 = 64;
/// Time without frames after which a link counts as dead: on a busy machine a thread may wait for
/// long.
const SILENCE_NS: u64 = 20_000_000_000;
/// Longest wait of a link for frames before it reads the clock.
const WAIT_NS: u64 = 20_000_000;
/// Longer accesses are counted as this long.
const MAX_NS: u64 = 60_000_000_000;

/// Workload of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Reads one random page after the other, like page faults.
    Faults,
    /// Reads pages in order, as many outstanding as a link takes, like the largest read-ahead.
    Reads,
    /// Writes pages in order, as many outstanding as a link takes, like an evictor under load.
    Writes,
}

impl Work {
    /// Returns the name on a command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Work::Faults => "faults",
            Work::Reads => "reads",
            Work::Writes => "writes",
        }
    }
}

/// One program (started by `venice bench shares`).
#[derive(Debug, Clone, Args)]
pub struct ProgramArgs {
    /// Address of the donor.
    #[arg(long)]
    pub donor: SocketAddr,

    /// The grant.
    #[arg(long)]
    pub grant: u64,

    /// Workload.
    #[arg(long, value_enum)]
    pub work: Work,

    /// Number of links.
    #[arg(long)]
    pub links: u32,

    /// Start of the measurement, in nanoseconds of the monotonic clock.
    #[arg(long)]
    pub from_ns: u64,

    /// End of the measurement, in the same unit.
    #[arg(long)]
    pub until_ns: u64,

    /// File for the figures.
    #[arg(long)]
    pub json: PathBuf,
}

/// Figures of one program.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Had {
    pub pages: u64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// Moves pages and writes the figures.
///
/// # Errors
/// When sockets fail, the donor does not answer, or the figures cannot be written.
pub fn execute_program(args: ProgramArgs) -> Result<()> {
    let links = (0..args.links).map(|_| {
        let args = args.clone();
        std::thread::spawn(move || link(&args))
    });
    let links: Vec<_> = links.collect();
    let mut all = Histogram::<u64>::new_with_max(MAX_NS, 3)?;
    for link in links {
        let took = link.join().unwrap_or_else(|_| bail!("a link's thread panicked"))?;
        all.add(took).context("two histograms of one kind")?;
    }
    let quantile_us = |share| all.value_at_quantile(share) as f64 / 1e3;
    let had = Had { pages: all.len(), p50_us: quantile_us(0.5), p99_us: quantile_us(0.99) };
    venice_measure::report::write_json(&args.json, &had)
}

/// Runs a link; returns the latency of each page moved during the measurement.
fn link(args: &ProgramArgs) -> Result<Histogram<u64>> {
    let mut driver = open(args)?;
    let most = if args.work == Work::Faults { 1 } else { usize::from(WINDOW_FRAMES) };
    let mut took = Histogram::<u64>::new_with_max(MAX_NS, 3)?;
    let mut random = Random::new(random_u64().context("no random numbers")?);
    let mut begun_ns = vec![0; most];
    let mut free: Vec<usize> = (0..most).collect();
    let mut next_page = 0;
    loop {
        let now_ns = monotonic_ns();
        if now_ns >= args.until_ns {
            return Ok(took);
        }
        while let Some(slot) = free.pop() {
            let page = match args.work {
                Work::Faults => random.below(LENT_BYTES / PAGE_BYTES),
                Work::Reads | Work::Writes => next_page,
            };
            let begun = begin(&mut driver, args.work, now_ns, slot as u64, page * PAGE_BYTES);
            if !begun {
                free.push(slot);
                break;
            }
            begun_ns[slot] = now_ns;
            next_page = (next_page + 1) % (LENT_BYTES / PAGE_BYTES);
        }
        driver.pump(now_ns)?;
        let (now_ns, had) = (monotonic_ns(), free.len());
        while let Some(completion) = driver.initiator().poll_completion() {
            completion.result.context("the donor does not answer")?;
            let slot = completion.token as usize;
            free.push(slot);
            if now_ns >= args.from_ns {
                took.saturating_record(now_ns - begun_ns[slot]);
            }
        }
        if free.len() == had {
            driver.wait(now_ns, WAIT_NS)?;
        }
    }
}

fn open(args: &ProgramArgs) -> Result<UdpDriver> {
    let mut config = InitiatorConfig::new(NodeId(2), random_u64().context("no random numbers")?);
    config.link.window = WINDOW_FRAMES;
    config.link.silence_ns = SILENCE_NS;
    let local = match args.donor {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let grant = GrantId(args.grant);
    let named = Some(sealed_as(grant));
    let (mut driver, peer) = UdpDriver::towards(local, config, NODE, args.donor, named)?;
    let mapped = driver.initiator().map_window(0, LENT_BYTES, peer, 0, grant, KEY);
    mapped.context("the first window of a new initiator")?;
    Ok(driver)
}

/// Begins an access; returns true if there was room for it.
fn begin(driver: &mut UdpDriver, work: Work, now_ns: u64, token: u64, at: u64) -> bool {
    let initiator = driver.initiator();
    match work {
        Work::Writes => initiator.write(now_ns, token, at, &[3; PAGE_BYTES as usize]).is_ok(),
        Work::Faults | Work::Reads => initiator.read(now_ns, token, at, PAGE_BYTES as u32).is_ok(),
    }
}
