//! The log of daemons, on stderr.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Environment variable with the log's filter, in tracing's syntax: `info`, `venice_agent=debug`.
pub const LOG_VARIABLE: &str = "VENICE_LOG";

/// Sends the log to stderr. systemd's journal and the logs of a local rack take it from there.
pub fn start_log() {
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"));
    let colour = std::io::stderr().is_terminal();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour);
    // A second daemon in one process exists only in tests.
    let _ = subscriber.try_init();
}

/// Starts the log like [`start_log`] if [`LOG_VARIABLE`] is set, for commands without a log by
/// default.
pub fn start_log_if_asked() {
    if std::env::var_os(LOG_VARIABLE).is_some() {
        start_log();
    }
}
