//! The same incast in a simulated warehouse.

use anyhow::{Context, Result, bail};
use toml::{Table, Value};
use venice_experiment::{Experiment, Simulation, World, keys};
use venice_measure::interrupt;
use venice_simkernel::units::{Hertz, Nanos};
use venice_warehouse::config::Config;
use venice_warehouse::host::profile::Profile;
use venice_warehouse::warehouse::Warehouse;

use super::network::Links;
use super::{Case, Client, Congestion, Share};

/// Virtual time of a step, after which Ctrl-C is seen.
const STEP_PS: u64 = 100_000_000_000;
/// Linux delays an acknowledgment for 40 ms (`TCP_DELACK_MIN`), and since 6.7 for a tick less than
/// the minimum retransmission time-out of the route (`tcp_delack_max`).
const DELAYED_ACK_NS: u64 = 40_000_000;

/// Linux shapes by timers that are some 10 us late by chance, as a capture shows. Hosts in step would
/// lock each other out (Floyd and Jacobson, 1992).
const JITTER: &str = "10us";

/// Figures of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ran {
    pub bytes: u64,
    pub goodput_mbps: f64,
    pub drops: u64,
}

/// The parts of the simulated machine that are those of this host.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub profile: Profile,
    /// Time of the kernel's tick, which timers are rounded to.
    pub tick_ns: u64,
}

/// Returns the configuration of a case.
///
/// # Errors
/// If a key is unknown or has a bad value: the profile's, as all others are ours.
pub(super) fn config(case: &Case, links: &Links, host: &Host, seed: u64) -> Result<Config> {
    let shipped = Warehouse::EXPERIMENTS.iter().find(|(name, _)| *name == "incast-1g");
    let (_, text) = shipped.context("no experiment incast-1g")?;
    let mut table = Experiment::from_toml(text)?.config;
    let mut kernel = Table::try_from(&host.profile.kernel)?;
    // A veth pair has no card: packets come by the soft interrupt alone, and no memory is far.
    kernel.insert("interrupt".into(), 0.into());
    let frequency = match host.profile.profile.clock {
        Hertz(0) => bail!("profile.clock: 0Hz: must be the clock of the host"),
        clock => clock.to_string(),
    };
    let buffer = toml::toml! { kind = "per-output" };
    let delay = DELAYED_ACK_NS.min(case.rto_min.0.saturating_sub(host.tick_ns)).max(host.tick_ns);
    let number = |ns: u64| Value::from(ns as i64);
    let changes = [
        ("seed", number(seed)),
        ("topology.hosts", Value::from(case.servers + 1)),
        ("topology.tor.rate", Value::from(links.rate.to_string())),
        ("topology.tor.switch.arbitration", Value::from("fifo")),
        ("topology.tor.switch.buffer", Value::Table(buffer)),
        ("topology.tor.switch.buffer.bytes", Value::from(links.buffer.to_string())),
        ("server.frequency", Value::from(frequency)),
        ("server.kernel", Value::Table(kernel)),
        ("server.nic.dma-latency", Value::from("0ns")),
        ("server.nic.interrupt-gap", Value::from("0ns")),
        ("server.nic.jitter", Value::from(JITTER)),
        ("tcp.preset", Value::from("linux-today")),
        ("tcp.congestion", Value::from(congestion(case.congestion))),
        ("tcp.rto.minimum-ns", number(case.rto_min.0)),
        ("tcp.rto.granularity-ns", number(host.tick_ns)),
        ("tcp.delayed-ack.timeout-ns", number(delay)),
        ("application.servers", Value::from(case.servers)),
        ("application.block", Value::from(case.block.to_string())),
        ("application.share", Value::from(share(case.share))),
        ("application.client", Value::from(client(case.client))),
        ("application.iterations", Value::from(case.rounds)),
    ];
    for (key, value) in changes {
        keys::set(&mut table, key, value)?;
    }
    let config = keys::read(&table)?.0;
    Warehouse::check(&config)?;
    Ok(config)
}

/// Runs a case.
///
/// # Errors
/// If the world does not come to its end, and on an interrupt.
pub(super) fn run(case: &Case, links: &Links, host: &Host, seed: u64) -> Result<Ran> {
    let config = config(case, links, host, seed)?;
    let mut world = Warehouse::new(&config, 1)?;
    while !world.is_over() {
        interrupt::check()?;
        world.advance(world.now().saturating_add(STEP_PS));
    }
    let outcome = world.outcome();
    let count = |name: &str| outcome.counts.get(name).copied().unwrap_or(0);
    if count("done") != u64::from(case.rounds) {
        bail!("{} of {} simulated blocks were received", count("done"), case.rounds);
    }
    let (goodput_mbps, _) = outcome.value("goodput").context("the world has no goodput")?;
    let bytes = u64::from(case.rounds) * u64::from(case.servers) * case.bytes_of_server();
    Ok(Ran { bytes, goodput_mbps, drops: count("drops.switch") })
}

fn congestion(of: Congestion) -> &'static str {
    match of {
        Congestion::Reno => "new-reno",
        Congestion::Cubic => "cubic",
    }
}

/// Returns the value of the key `application.share`.
pub(super) fn share(of: Share) -> &'static str {
    match of {
        Share::PerServer => "per-server",
        Share::Striped => "striped",
    }
}

/// Returns the value of the key `application.client`.
pub(super) fn client(of: Client) -> &'static str {
    match of {
        Client::Epoll => "epoll",
        Client::Pthread => "pthread",
    }
}

/// Returns the tick of this host's kernel.
pub(super) fn tick() -> Nanos {
    let resolution = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
    Nanos((resolution.tv_nsec as u64).max(1))
}

#[cfg(test)]
mod tests {
    use venice_simkernel::units::{BitRate, Bytes};

    use super::*;

    #[test]
    fn every_case_can_run() {
        let mut profile = Profile::default();
        profile.profile.clock = Hertz(2_000_000_000);
        let host = Host { profile, tick_ns: 4_000_000 };
        let links = Links { rate: BitRate(100_000_000), buffer: Bytes(32 << 10) };
        for client in [Client::Epoll, Client::Pthread] {
            for (share, congestion) in
                [(Share::PerServer, Congestion::Reno), (Share::Striped, Congestion::Cubic)]
            {
                let case = Case {
                    servers: 2,
                    rto_min: Nanos(10_000_000),
                    congestion,
                    client,
                    share,
                    block: Bytes(16 << 10),
                    rounds: 2,
                };
                let ran = run(&case, &links, &host, 1).unwrap();
                let blocks = if share == Share::PerServer { 4 } else { 2 };
                assert_eq!(ran.bytes, blocks * (16 << 10));
                assert!(ran.goodput_mbps > 0.0);
            }
        }
    }

    #[test]
    fn profile_without_clock_is_refused() {
        let host = Host { profile: Profile::default(), tick_ns: 1_000_000 };
        let links = Links { rate: BitRate(100_000_000), buffer: Bytes(32 << 10) };
        let error = config(&Case::default(), &links, &host, 1).unwrap_err().to_string();
        assert!(error.starts_with("profile.clock"), "{error}");
    }
}
