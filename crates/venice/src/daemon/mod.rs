//! The daemons: `venice monitor`, `venice agent`, `venice router` and `venice helper`.

mod agent;
mod config_file;
mod detach;
mod helper;
mod local_socket;
mod mlock;
mod monitor;
mod monitor_settings;
mod observe_args;
mod ready;
mod size;
mod store_args;

use std::pin::Pin;

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};
use tokio::signal::unix::{SignalKind, signal};

pub use agent::{AgentArgs, execute as agent, execute_router as router};
pub use helper::{HelperArgs, HelperThread, execute as helper, group_id, socket_path};
pub use local_socket::known_group;
pub use monitor::{MonitorArgs, execute as monitor, told};
pub use monitor_settings::MonitorSettings;
pub use observe_args::ObserveArgs;
pub use ready::Ready;
pub use size::lend_size;
pub use store_args::StoreArgs;

/// Completes when the daemon is asked to stop.
type Shutdown = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs a daemon until it fails or is asked to stop by SIGTERM or SIGINT. Its threads begin with
/// `on_thread_start`.
fn run_daemon(
    on_thread_start: fn(),
    daemon: impl AsyncFnOnce(Shutdown) -> anyhow::Result<()>,
) -> anyhow::Result<i32> {
    open_as_many_files_as_allowed();
    stay_out_of_core_dumps();
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

/// Makes the kernel write no core dump of this process, which has the memory and the keys of others,
/// and keeps debuggers of its user out. Unlike the limit on core files, this binds programs that
/// take dumps from the kernel too (core(5)).
fn stay_out_of_core_dumps() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "a crash would dump the memory of others");
    }
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
