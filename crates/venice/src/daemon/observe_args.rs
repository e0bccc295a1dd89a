//! Options of what a daemon tells of itself, shared by all daemons of a rack.

use clap::Args;
use venice_cli::log::LogArgs;

/// Metrics, health and the log.
#[derive(Args, Clone, Debug, Default)]
pub struct ObserveArgs {
    /// Address to serve /metrics (Prometheus), /healthz and /readyz at over HTTP, for example
    /// 127.0.0.1:9470; port 0 takes a free one. Everybody who reaches it reads the names of nodes
    /// and users [default: none]
    #[arg(long, value_name = "ADDR", env = "VENICE_METRICS")]
    #[arg(value_parser = crate::host_port::check_metrics)]
    metrics: Option<String>,
    #[command(flatten)]
    pub log: LogArgs,
}

impl ObserveArgs {
    /// Returns the address for metrics: by flag or environment, else that of the `file`.
    pub fn metrics(&self, file: Option<String>) -> Option<String> {
        self.metrics.clone().or(file)
    }
}
