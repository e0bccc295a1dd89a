//! The daemons: `venice monitor`, `venice agent` and `venice router`.

mod agent;
mod config_file;
mod detach;
mod local_socket;
mod mlock;
mod monitor;
mod monitor_settings;
mod ready;
mod size;
mod store_args;

use std::io::IsTerminal;
use std::pin::Pin;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

pub use agent::{AgentArgs, execute as agent, execute_router as router};
pub use monitor::{MonitorArgs, execute as monitor, told};
pub use monitor_settings::MonitorSettings;
pub use ready::Ready;
pub use size::lend_size;
pub use store_args::StoreArgs;

/// Environment variable with the log filter, in tracing's syntax: `info`, `venice_agent=debug`.
pub const LOG_VARIABLE: &str = "VENICE_LOG";

/// A future that completes when the daemon is asked to stop.
type Shutdown = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sends the log to stderr, for systemd's journal or the log file of a local rack.
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

/// Starts the log if [`LOG_VARIABLE`] is set, for commands that are otherwise silent.
pub fn start_log_if_asked() {
    if std::env::var_os(LOG_VARIABLE).is_some() {
        start_log();
    }
}

/// Runs a daemon until it fails or receives SIGTERM or SIGINT. Each of its threads first runs
/// `on_thread_start`.
fn run_daemon(
    on_thread_start: fn(),
    daemon: impl AsyncFnOnce(Shutdown) -> anyhow::Result<()>,
) -> anyhow::Result<i32> {
    open_as_many_files_as_allowed();
    on_thread_start();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().on_thread_start(on_thread_start).build()?;
    runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate())?;
        let mut interrupted = signal(SignalKind::interrupt())?;
        let shutdown: Shutdown = Box::pin(async move {
            let name = tokio::select! {
                _ = terminated.recv() => "SIGTERM",
                _ = interrupted.recv() => "SIGINT",
            };
            tracing::info!("{name}: stopping");
        });
        daemon(shutdown).await?;
        Ok(0)
    })
}

/// Raises the limit of open files. A Monitor Node has connections to and from every node, and an
/// agent one from every recipient: more than the default limit of 1024.
fn open_as_many_files_as_allowed() {
    let limits = getrlimit(Resource::Nofile);
    if limits.current != limits.maximum
        && let Err(error) =
            setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits })
    {
        tracing::warn!(%error, "cannot raise the number of files that may be open");
    }
}
