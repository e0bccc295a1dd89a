//! `venice swap helper`, which runs programs of ordinary users on swap; an agent of root's does it too.
//!
//! It listens at a socket that is open to a group. Each connection gets a process of its own, the session
//! ([`session_process`]), which does with root's rights what the run asks for ([`client`], in
//! [`messages`]), in bounds: a device of borrowed memory, granted to the user; a cgroup with the user's
//! process. Both end with the connection.

mod client;
mod messages;
mod session_process;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use clap::builder::TypedValueParser;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::thread::CapabilitySet;
use venice_cli::failure::Usage;
use venice_cli::log::LogArgs;
use venice_memory::paged::helper::HelperSocket;
use venice_recipient::local_rack::{
    RUN_DIR_VARIABLE, SERVICE_SWAP_HELPER_DIR, SWAP_HELPER_SOCKET, is_run_dir_set,
};
use venice_swap::SwapError;

pub use client::{HelperSession, check};
pub use session_process::{SessionArgs, execute as session};

use super::session::require_swap;
use crate::daemon::{HelperThread, group_id, known_group, socket_path};
use crate::doctor::has_capability;
use crate::rack::RunDir;
use messages::{Answer, Channel};

/// Most sessions at a time, and most of one user. The kernel has room for 23 to 29 swap areas.
const MOST: usize = 16;
const MOST_OF_USER: usize = 8;
/// Fewest copies of each page on a user's device by default: any program's pages may lie there.
pub const LEAST_COPIES: u32 = 2;
/// Interval of looks for sessions that have ended.
const REAP_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Pause after a connection that no descriptor was left for.
const PAUSE: Duration = Duration::from_millis(100);

/// `venice swap helper`
#[derive(Args, Debug)]
pub struct HelperArgs {
    /// Socket for runs of this machine [default: /run/venice-swap-helper/swap.sock]
    #[arg(long, value_name = "PATH", env = "VENICE_SWAP_HELPER_SOCKET")]
    socket: Option<PathBuf>,
    /// Group allowed at that socket
    #[arg(long, value_name = "GROUP", default_value = "venice", env = "VENICE_SOCKET_GROUP")]
    socket_group: String,
    /// Fewest copies of each page on a user's device, each on another node: 1 to 3. With one, a node
    /// that dies takes pages of any program along
    #[arg(long, value_name = "N", env = "VENICE_SWAP_LEAST_COPIES", default_value_t = LEAST_COPIES,
          value_parser = least_copies_parser())]
    least_copies: u32,
    #[command(flatten)]
    log: LogArgs,
}

/// Text below `venice swap helper --help`.
pub const HELP: &str = "\
EXAMPLES:
  systemctl enable --now venice-swap-helper   beside an agent that is not root
  sudo venice swap helper --socket-group staff

Members of the group then use `venice run --mode swap`. An agent that runs as root is such a helper
itself. A session of a user ends with the `venice run`, and goes on when the helper is restarted.";

/// Returns the parser of a fewest number of copies.
pub fn least_copies_parser() -> impl TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=super::MAX_COPIES)
}

/// Serves until it is stopped.
pub fn execute(args: &HelperArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    args.log.start()?;
    let dir = Path::new(SERVICE_SWAP_HELPER_DIR);
    let path = socket_path(args.socket.as_deref(), dir, SWAP_HELPER_SOCKET)?;
    known_group(&args.socket_group).map_err(Usage)?;
    check_privileges()?;
    let settings = Settings {
        monitor: monitor.map(str::to_owned),
        least_copies: args.least_copies,
        run_dir: RunDir::locate()?,
    };
    let helper = start(&path, &args.socket_group, settings)
        .with_context(|| format!("cannot listen at {}", path.display()))?;
    tracing::info!(socket = %path.display(), group = args.socket_group, "running users' programs on swap");
    helper.run()
}

/// The settings of a helper.
pub struct Settings {
    /// `host:port` of the Monitor Node, or of several; `None`: that of this machine's rack.
    pub monitor: Option<String>,
    /// Fewest copies of each page.
    pub least_copies: u32,
    /// Directory of its devices.
    pub run_dir: RunDir,
}

/// Checks that this process can do for users what sessions do.
fn check_privileges() -> Result<(), SwapError> {
    require_swap()?;
    match has_capability(CapabilitySet::SYS_ADMIN) {
        true => Ok(()),
        false => Err(SwapError::NotRoot),
    }
}

/// Starts a helper in this process.
fn start(path: &Path, group: &str, settings: Settings) -> io::Result<HelperThread> {
    let socket = HelperSocket::bind(path, group_id(group))?;
    HelperThread::start("swap-helper", move |stop| {
        if let Err(error) = serve(&socket, stop, &settings) {
            tracing::error!(%error, "users of this machine can no longer run programs on swap");
        }
    })
}

/// Starts one if this process may do what sessions do.
pub fn start_if_allowed(path: &Path, group: &str, settings: Settings) -> Option<HelperThread> {
    if let Err(error) = check_privileges() {
        tracing::info!(%error, "users run programs on swap by `venice swap helper`");
        return None;
    }
    start(path, group, settings)
        .inspect_err(|error| {
            tracing::warn!(socket = %path.display(), %error, "users cannot run programs on swap");
        })
        .ok()
}

/// Starts sessions until `stop` is readable.
fn serve(socket: &HelperSocket, stop: BorrowedFd<'_>, settings: &Settings) -> io::Result<()> {
    let mut sessions: Vec<Running> = Vec::new();
    loop {
        let mut watched = [PollFd::new(&stop, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
        let patience = (!sessions.is_empty()).then_some(REAP_EVERY);
        match poll(&mut watched, patience.as_ref()) {
            Err(Errno::INTR) => continue,
            result => result?,
        };
        let [is_over, has_connection] = watched.map(|it| !it.revents().is_empty());
        if is_over {
            return Ok(());
        }
        sessions.retain_mut(|it| matches!(it.process.try_wait(), Ok(None)));
        if !has_connection {
            continue;
        }
        match rustix::net::accept_with(socket, SocketFlags::CLOEXEC) {
            Ok(connection) => sessions.extend(admitted(connection, &sessions, settings)),
            // It is gone already.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
            Err(error @ (Errno::MFILE | Errno::NFILE)) => {
                tracing::warn!(%error, "no descriptor is left for a user's session");
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// A session's process, and its user.
struct Running {
    user: u32,
    process: Child,
}

/// Starts a session for a connection; `None`: the user was told why not.
fn admitted(connection: OwnedFd, sessions: &[Running], settings: &Settings) -> Option<Running> {
    let user = getsockopt(&connection, PeerCredentials).ok()?.uid();
    let refuse = |connection: OwnedFd, why: String| {
        tracing::info!(user, "refused: {why}");
        let _ = Channel::of(connection).send(&Answer::Refused(why), None);
        None
    };
    if sessions.iter().filter(|it| it.user == user).count() >= MOST_OF_USER {
        let why =
            format!("you have {MOST_OF_USER} runs on swap on this machine, the most: end one");
        return refuse(connection, why);
    }
    if sessions.len() >= MOST {
        let why = format!("this machine has {MOST} users' runs on swap, the most: try again later");
        return refuse(connection, why);
    }
    let kept = connection.as_fd().try_clone_to_owned();
    match spawn(connection, settings) {
        Ok(process) => Some(Running { user, process }),
        Err(error) => {
            tracing::warn!(user, "a session was not started: {error:#}");
            kept.ok().and_then(|kept| refuse(kept, format!("no session was started: {error:#}")))
        }
    }
}

fn spawn(connection: OwnedFd, settings: &Settings) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("finding the venice program itself")?;
    let mut command = Command::new(program);
    if let Some(monitor) = &settings.monitor {
        command.args(["--monitor", monitor]);
    }
    command.args(["swap", "session", "--least-copies", &settings.least_copies.to_string()]);
    command.current_dir("/").stdin(Stdio::from(connection)).stdout(Stdio::null());
    // Unless it is named, sessions look for the rack in more places.
    if is_run_dir_set() {
        command.env(RUN_DIR_VARIABLE, settings.run_dir.path());
    }
    command.spawn().context("starting a session")
}
