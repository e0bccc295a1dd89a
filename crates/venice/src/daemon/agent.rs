//! `venice agent`: a node's agent in the foreground.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use venice_wire::ByteSize;

use super::detach::DetachArgs;
use super::{Ready, config_file, lend_size, run_daemon, start_log};
use crate::rack::explicit_address;

/// `venice agent`
#[derive(Args, Debug)]
pub struct AgentArgs {
    /// Read what is not given by flag or environment from this TOML file
    #[arg(long, value_name = "FILE", env = "VENICE_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: AgentSettings,
    #[command(flatten)]
    detach: DetachArgs,
}

/// What can be set by flag, environment and file alike.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct AgentSettings {
    /// The node's name, the same at every start [default: the host's name]
    #[arg(long, value_name = "NAME", env = "VENICE_NODE_NAME")]
    name: Option<String>,
    /// Address of the Monitor Node; on the command line it is the global --monitor
    #[arg(skip)]
    monitor: Option<String>,
    /// How much memory to lend, for example 4GiB
    #[arg(long, value_name = "SIZE", env = "VENICE_LEND", value_parser = lend_size)]
    lend: Option<ByteSize>,
    /// Where to answer the control plane; port 0 takes a free one [default: 127.0.0.1:0]
    #[arg(long, value_name = "ADDR", env = "VENICE_LISTEN")]
    listen: Option<String>,
    /// Where to answer fabric packets; port 0 takes a free one [default: the --listen host, port 0]
    #[arg(long, value_name = "ADDR", env = "VENICE_UDP_LISTEN")]
    udp_listen: Option<String>,
    /// Socket that hands memory to programs on this host [default: /run/venice/NAME/shm.sock]
    #[arg(long, value_name = "PATH", env = "VENICE_SHM_SOCKET")]
    shm_socket: Option<PathBuf>,
}

impl AgentSettings {
    fn or(self, file: AgentSettings) -> AgentSettings {
        AgentSettings {
            name: self.name.or(file.name),
            monitor: self.monitor.or(file.monitor),
            lend: self.lend.or(file.lend),
            listen: self.listen.or(file.listen),
            udp_listen: self.udp_listen.or(file.udp_listen),
            shm_socket: self.shm_socket.or(file.shm_socket),
        }
    }
}

/// Runs the agent until it is told to stop.
pub fn execute(args: &AgentArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let file = config_file::read(args.config.as_deref())?;
    let mut settings = args.settings.clone();
    settings.monitor = explicit_address(monitor);
    let settings = settings.or(file);
    let _ = settings;
    args.detach.apply()?;
    start_log();
    args.detach.tell_ready(&Ready::default());
    run_daemon(async |shutdown| {
        shutdown.await;
        Ok(())
    })
}
