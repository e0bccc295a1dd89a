//! `venice monitor`: the Monitor Node in the foreground.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use venice_control::Policy;
use venice_monitor::{MonitorConfig, MonitorError, MonitorReady, OnReady};
use venice_ports::set_time_slice;

use super::detach::DetachArgs;
use super::local_socket::{local_socket, make_socket_dir};
use super::monitor_settings::MonitorSettings;
use super::store_args::StoreArgs;
use super::{ObserveArgs, Ready, config_file, run_daemon};
use venice_cli::failure::Usage;
use venice_recipient::local_rack::MONITOR_SOCKET;

/// `venice monitor`
#[derive(Args, Debug)]
pub struct MonitorArgs {
    /// TOML file with settings not given by flag or environment
    #[arg(long, value_name = "FILE", env = "VENICE_CONFIG")]
    config: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one [default: the address given to
    /// `venice init`, else 127.0.0.1:7470]
    #[arg(long, value_name = "ADDR", env = "VENICE_LISTEN", value_parser = crate::host_port::check)]
    listen: Option<String>,
    /// Directory of the authority's keys and the tables [default: /var/lib/venice/monitor]
    #[arg(long, value_name = "DIR", env = "VENICE_STATE_DIR")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    /// Socket for programs of this machine: root and the Monitor Node's user are administrators
    /// there, --socket-group is allowed; none disables it [default: monitor.sock in the run
    /// directory]
    #[arg(long, value_name = "PATH", env = "VENICE_LOCAL_SOCKET")]
    local_socket: Option<PathBuf>,
    /// Group allowed at that socket [default: venice]
    #[arg(long, value_name = "GROUP", env = "VENICE_SOCKET_GROUP")]
    socket_group: Option<String>,
    /// Lifetime of node certificates in seconds; they are renewed when a third is left [default:
    /// 2592000, 30 days]
    #[arg(long, value_name = "SECONDS", env = "VENICE_CERTIFICATE_S")]
    certificate_s: Option<f64>,
    /// Seconds between two heartbeats of an agent [default: 1]
    #[arg(long, value_name = "SECONDS", env = "VENICE_HEARTBEAT_INTERVAL_S")]
    heartbeat_interval_s: Option<f64>,
    /// Missed heartbeats in a row after which a node is down [default: 3]
    #[arg(long, value_name = "N", env = "VENICE_MISSED_HEARTBEATS")]
    missed_heartbeats: Option<u32>,
    /// Lease of a grant in seconds [default: 10]
    #[arg(long, value_name = "SECONDS", env = "VENICE_LEASE_S")]
    lease_s: Option<f64>,
    /// Timeout of a donor's answer in seconds [default: 2]
    #[arg(long, value_name = "SECONDS", env = "VENICE_DONOR_TIMEOUT_S")]
    donor_timeout_s: Option<f64>,
    /// Requests of one user on one node that may wait in the queue; administrators have no bound
    /// [default: 64]
    #[arg(long, value_name = "N", env = "VENICE_USER_WAITING")]
    user_waiting: Option<usize>,
    /// Requests that may wait in the queue in all [default: 4096]
    #[arg(long, value_name = "N", env = "VENICE_WAITING")]
    waiting: Option<usize>,
    /// Calls in flight of one user on one node; administrators have no bound [default: 256]
    #[arg(long, value_name = "N", env = "VENICE_USER_CALLS")]
    user_calls: Option<usize>,
    /// Do not encrypt and authenticate this rack's UDP traffic; its agents need --plain too
    #[arg(long)]
    plain: bool,
    /// Default placement policy: nearest (near donors with much free memory), spread (evenly over
    /// all) or pack (as few as possible) [default: nearest]
    #[arg(long, value_name = "nearest|spread|pack", env = "VENICE_PLACEMENT")]
    placement: Option<Policy>,
    #[command(flatten)]
    settings: MonitorSettings,
    #[command(flatten)]
    observe: ObserveArgs,
    #[command(flatten)]
    detach: DetachArgs,
}

/// Runs the Monitor Node until it is stopped.
pub fn execute(args: &MonitorArgs) -> anyhow::Result<i32> {
    let mut config = configuration(args)?;
    args.detach.apply()?;
    args.observe.log.start()?;
    make_socket_dir(config.local_socket.as_deref())?;
    let detach = args.detach.clone();
    config.on_ready = OnReady::new(move |ready: MonitorReady| {
        detach.tell_ready(&Ready {
            addr: Some(ready.addr.to_string()),
            metrics_addr: ready.metrics_addr.map(|addr| addr.to_string()),
            ..Ready::default()
        });
    });
    run_daemon(answer_soon, async |shutdown| {
        venice_monitor::run(config, shutdown).await.map_err(told)
    })
}

/// Gives threads longer scheduler slices, so that requests are answered while thousands of agents
/// report.
fn answer_soon() {
    const TURN: Duration = Duration::from_micros(100);
    if let Err(error) = set_time_slice(TURN) {
        tracing::debug!(%error, "threads take turns as the kernel has it");
    }
}

/// Merges settings; precedence: flag, environment, file, default.
fn configuration(args: &MonitorArgs) -> anyhow::Result<MonitorConfig> {
    let mut config: MonitorConfig = config_file::read(args.config.as_deref())?;
    config.listen = args.listen.clone().unwrap_or(config.listen);
    config.state_dir = args.state_dir.clone().unwrap_or(config.state_dir);
    args.store.apply(&mut config);
    config.heartbeat_interval_s = args.heartbeat_interval_s.unwrap_or(config.heartbeat_interval_s);
    config.missed_heartbeats = args.missed_heartbeats.unwrap_or(config.missed_heartbeats);
    config.lease_s = args.lease_s.unwrap_or(config.lease_s);
    args.settings.apply(&mut config);
    config.plain |= args.plain;
    config.placement = args.placement.unwrap_or(config.placement);
    let socket = args.local_socket.clone().or(config.local_socket);
    config.local_socket = local_socket(socket, MONITOR_SOCKET)?;
    config.socket_group = args.socket_group.clone().unwrap_or(config.socket_group);
    config.certificate_s = args.certificate_s.unwrap_or(config.certificate_s);
    config.donor_timeout_s = args.donor_timeout_s.unwrap_or(config.donor_timeout_s);
    config.user_waiting = args.user_waiting.unwrap_or(config.user_waiting);
    config.waiting = args.waiting.unwrap_or(config.waiting);
    config.user_calls = args.user_calls.unwrap_or(config.user_calls);
    config.metrics = args.observe.metrics(config.metrics);
    Ok(config)
}

/// Converts an error; an invalid configuration becomes a usage error.
pub fn told(error: MonitorError) -> anyhow::Error {
    match error {
        MonitorError::Config(_) => Usage(error.to_string()).into(),
        other => anyhow!(other),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: MonitorArgs,
    }

    fn configured(words: &[&str]) -> anyhow::Result<MonitorConfig> {
        let line = Line::try_parse_from([&["monitor"], words].concat())?;
        configuration(&line.args)
    }

    #[test]
    fn flags_override_file_and_defaults() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("monitor.toml");
        std::fs::write(&path, "listen = \"10.0.0.1:1\"\nlease_s = 5\nmetrics = \"127.0.0.1:1\"\n")
            .unwrap();
        let path = path.to_str().unwrap();
        let config = configured(&["--config", path, "--lease-s", "2.5"]).unwrap();
        assert_eq!(config.listen, "10.0.0.1:1");
        assert_eq!(config.lease_s, 2.5);
        assert_eq!(config.metrics.as_deref(), Some("127.0.0.1:1"));
        let config = configured(&["--config", path, "--metrics", "127.0.0.1:2"]).unwrap();
        assert_eq!(config.metrics.as_deref(), Some("127.0.0.1:2"));
        assert_eq!(config.missed_heartbeats, MonitorConfig::default().missed_heartbeats);
    }

    #[test]
    fn share_parses_percent_or_off() {
        let config = |words: &[&str]| configured(words).map(|config| config.reserve_ahead);
        assert_eq!(config(&[]).unwrap(), 0.0);
        assert_eq!(config(&["--reserve-ahead", "25%"]).unwrap(), 0.25);
        assert_eq!(config(&["--reserve-ahead", "off"]).unwrap(), 0.0);
        for wrong in ["125%", "-1", "some", "%"] {
            assert!(config(&["--reserve-ahead", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn unknown_key_is_usage_error() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("monitor.toml");
        std::fs::write(&path, "leese_s = 5\n").unwrap();
        let error = configured(&["--config", path.to_str().unwrap()]).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("leese_s"), "{error:#}");
    }

    #[test]
    fn example_file_parses() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/examples/monitor.toml");
        let config = configured(&["--config", path]).unwrap();
        assert_eq!(config.lease_s, MonitorConfig::default().lease_s);
    }
}
