//! `venice monitor`: the Monitor Node in the foreground.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;

use super::detach::DetachArgs;
use super::{Ready, config_file, run_daemon, start_log};

const DEFAULT_LISTEN: &str = "127.0.0.1:7470";
const DEFAULT_STATE_DIR: &str = "/var/lib/venice/monitor";

/// `venice monitor`
#[derive(Args, Debug)]
pub struct MonitorArgs {
    /// Read what is not given by flag or environment from this TOML file
    #[arg(long, value_name = "FILE", env = "VENICE_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: MonitorSettings,
    #[command(flatten)]
    detach: DetachArgs,
}

/// What can be set by flag, environment and file alike.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MonitorSettings {
    /// Where to answer; port 0 takes a free one [default: 127.0.0.1:7470]
    #[arg(long, value_name = "ADDR", env = "VENICE_LISTEN")]
    listen: Option<String>,
    /// Where the tables are kept [default: /var/lib/venice/monitor]
    #[arg(long, value_name = "DIR", env = "VENICE_STATE_DIR")]
    state_dir: Option<PathBuf>,
}

impl MonitorSettings {
    fn or(self, file: MonitorSettings) -> MonitorSettings {
        MonitorSettings {
            listen: self.listen.or(file.listen),
            state_dir: self.state_dir.or(file.state_dir),
        }
    }
}

/// Runs the Monitor Node until it is told to stop.
pub fn execute(args: &MonitorArgs) -> anyhow::Result<i32> {
    let file = config_file::read(args.config.as_deref())?;
    let settings = args.settings.clone().or(file);
    let _ = (settings, DEFAULT_LISTEN, DEFAULT_STATE_DIR);
    args.detach.apply()?;
    start_log();
    args.detach.tell_ready(&Ready::default());
    run_daemon(async |shutdown| -> Result<(), std::io::Error> {
        shutdown.await;
        Ok(())
    })
}
