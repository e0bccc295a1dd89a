//! `venice helper`, which lets ordinary users page; an agent that may do so does it too.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::{Context, bail};
use clap::Args;
use nix::unistd::{Gid, Group};
use venice_cli::failure::Usage;
use venice_cli::log::LogArgs;
use venice_memory::paged::helper::{Helper, check_privileges};
use venice_recipient::local_rack::{HELPER_SOCKET, SERVICE_HELPER_DIR};

use super::local_socket::{check_socket_dir, known_group, make_socket_dir};
use super::run_daemon;

/// `venice helper`
#[derive(Args, Debug)]
pub struct HelperArgs {
    /// Socket for programs of this machine [default: /run/venice-helper/helper.sock]
    #[arg(long, value_name = "PATH", env = "VENICE_HELPER_SOCKET")]
    socket: Option<PathBuf>,
    /// Group allowed at that socket
    #[arg(long, value_name = "GROUP", default_value = "venice", env = "VENICE_SOCKET_GROUP")]
    socket_group: String,
    #[command(flatten)]
    log: LogArgs,
}

/// Serves until it is stopped.
pub fn execute(args: &HelperArgs) -> anyhow::Result<i32> {
    args.log.start()?;
    let path = socket_path(args.socket.as_deref(), Path::new(SERVICE_HELPER_DIR), HELPER_SOCKET)?;
    known_group(&args.socket_group).map_err(Usage)?;
    if let Err(errno) = check_privileges() {
        bail!(
            "this process may not let others page ({errno}): run it as root, or with \
             CAP_SYS_PTRACE and /dev/userfaultfd (Linux 6.8 or newer)"
        );
    }
    let helper = start(&path, &args.socket_group)
        .with_context(|| format!("cannot listen at {}", path.display()))?;
    tracing::info!(socket = %path.display(), group = args.socket_group, "letting users page");
    helper.run()
}

/// Returns the path of a helper's socket: the named one, or that of its service in `dir`. Its directory is
/// there then, and no other user's.
pub fn socket_path(named: Option<&Path>, dir: &Path, file: &str) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        check_socket_dir(path)?;
    }
    let path = named.map_or_else(|| dir.join(file), Path::to_owned);
    make_socket_dir(Some(&path))?;
    Ok(path)
}

fn start(path: &Path, group: &str) -> io::Result<HelperThread> {
    let helper = Helper::bind(path, group_id(group))?;
    HelperThread::start("helper", move |stop| {
        if let Err(error) = helper.serve(stop) {
            tracing::error!(%error, "users of this machine can no longer page");
        }
    })
}

/// Starts one if this process may let others page.
pub fn start_if_allowed(path: &Path, group: &str) -> Option<HelperThread> {
    if let Err(errno) = check_privileges() {
        tracing::info!(%errno, "users page by `venice helper`: this agent may not let them");
        return None;
    }
    start(path, group)
        .inspect_err(|error| {
            tracing::warn!(socket = %path.display(), %error, "users of this machine cannot page");
        })
        .ok()
}

/// A helper in a thread of this process. Dropping it ends it.
pub struct HelperThread {
    /// Closed to stop the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl HelperThread {
    /// Starts a helper: `serve` returns when its descriptor is readable.
    pub fn start(
        name: &str,
        serve: impl FnOnce(BorrowedFd<'_>) + Send + 'static,
    ) -> io::Result<HelperThread> {
        let (until, stop) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let thread = std::thread::Builder::new().name(name.into());
        let thread = thread.spawn(move || serve(until.as_fd()))?;
        Ok(HelperThread { stop: Some(stop), thread: Some(thread) })
    }

    /// Keeps it until this process is asked to end.
    pub fn run(self) -> anyhow::Result<i32> {
        run_daemon(
            || {},
            async |shutdown| {
                shutdown.await;
                Ok(())
            },
        )
        .inspect(|_| drop(self))
    }
}

impl Drop for HelperThread {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The id of a group; `None`: the machine has no such group.
pub fn group_id(name: &str) -> Option<Gid> {
    let found = Group::from_name(name).inspect_err(|error| {
        tracing::warn!(%error, "looking for the group {name}");
    });
    let group = found.ok().flatten();
    if group.is_none() {
        tracing::info!("no group {name} on this machine");
    }
    group.map(|group| group.gid)
}
