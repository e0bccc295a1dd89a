//! The rack that programs of this machine use: the one that is named to them, else that of `venice up`,
//! else the one that the machine's configuration names or that its daemons belong to.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use venice_control::client::{Access, Login, UserIds, rack_at_sockets};
use venice_memory::paged::helper;
use venice_memory::paged::run_block::PortKind;

use crate::error::RecipientError;
pub use crate::record::{RECORD_FILE, RUN_DIR_VARIABLE, SYSTEM_RUN_DIR, is_run_dir_set, run_dir};
use crate::record::{read, read_in, set};

/// The environment variable that names the Monitor Node: `host:port`, or several separated by
/// commas.
pub const MONITOR_VARIABLE: &str = "VENICE_MONITOR";

/// The Monitor Node's socket for the programs of its machine, in the run directory.
pub const MONITOR_SOCKET: &str = "monitor.sock";
/// The agent's socket.
pub const AGENT_SOCKET: &str = "agent.sock";
/// The environment variable that names the socket of the helper.
pub const HELPER_VARIABLE: &str = "VENICE_HELPER_SOCKET";
/// The socket of the [helper], in the agent's directory or its own.
pub const HELPER_SOCKET: &str = "helper.sock";
/// Directory of a helper that is a service of its own.
pub const SERVICE_HELPER_DIR: &str = "/run/venice-helper";
/// The environment variable that names the socket of the swap helper.
pub const SWAP_HELPER_VARIABLE: &str = "VENICE_SWAP_HELPER_SOCKET";
/// The socket of the swap helper, in the agent's directory or its own.
pub const SWAP_HELPER_SOCKET: &str = "swap.sock";
/// Directory of a swap helper that is a service of its own.
pub const SERVICE_SWAP_HELPER_DIR: &str = "/run/venice-swap-helper";
/// Run directories on a machine whose daemons are services.
const SERVICE_RUN_DIRS: [&str; 3] = [SYSTEM_RUN_DIR, "/run/venice-monitor", "/run/venice-agent"];

/// The configuration of this machine's programs.
pub const CLIENT_CONFIG: &str = "/etc/venice/client.toml";

/// A rack, and the port to its donors.
#[derive(Clone, Debug)]
pub struct FoundRack {
    /// The rack.
    pub access: Access,
    /// The port.
    pub port: PortKind,
    /// The source of its address.
    pub source: RackSource,
}

impl FoundRack {
    fn new(monitor: String, port: PortKind, source: RackSource) -> FoundRack {
        FoundRack { access: access(monitor), port, source }
    }
}

/// The source of a rack's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RackSource {
    /// In `VENICE_MONITOR`.
    Variable,
    /// In the record of `venice up` in a directory.
    Record(PathBuf),
    /// In the configuration of this machine's programs.
    Config,
    /// At the socket of a daemon of this machine.
    Daemon,
}

impl fmt::Display for RackSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RackSource::Variable => write!(f, "{MONITOR_VARIABLE}"),
            RackSource::Record(dir) => write!(f, "`venice up` in {}", dir.display()),
            RackSource::Config => write!(f, "{CLIENT_CONFIG}"),
            RackSource::Daemon => write!(f, "a daemon of this machine"),
        }
    }
}

/// `/etc/venice/client.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientConfig {
    /// `host:port` of the Monitor Node, or of several separated by commas.
    monitor: String,
    /// Port to the donors.
    #[serde(default = "udp")]
    port: PortKind,
}

fn udp() -> PortKind {
    PortKind::Udp
}

/// Returns access to the rack at this address through a socket of this machine: in the run
/// directory, or where daemons that run as root or as services have theirs. The Monitor Node's
/// sockets come before all agents': there root has administrator rights.
pub fn access(monitor: impl Into<String>) -> Access {
    Access::new(monitor, Login::at_sockets(sockets_in(&socket_dirs())))
}

/// Returns access to the rack in the name of another user of this machine, for a process of root's.
pub fn access_as(monitor: impl Into<String>, user: UserIds) -> Access {
    Access::new(monitor, Login::at_sockets_as(sockets_in(&socket_dirs()), user))
}

/// Has this process open its userfaultfds by this machine's helper, where its own privileges do not
/// suffice and there is one.
///
/// `VENICE_HELPER_SOCKET` names its socket; `none`: it is not used. By default it is in the run
/// directory, or where daemons that run as root or as services have theirs.
pub fn use_helper() {
    match set(HELPER_VARIABLE) {
        Some(path) if path.as_os_str() == "none" => return,
        Some(path) => return helper::use_at(path),
        None => {}
    }
    if let Some(path) = find_socket(HELPER_SOCKET, SERVICE_HELPER_DIR) {
        helper::use_at(path);
    }
}

/// Returns the socket of this machine's swap helper; `None`: there is none.
///
/// `VENICE_SWAP_HELPER_SOCKET` names it; `none`: it is not used. By default it is in the run directory,
/// or where daemons that run as root or as services have theirs.
pub fn swap_helper() -> Option<PathBuf> {
    match std::env::var_os(SWAP_HELPER_VARIABLE) {
        Some(path) if path == "none" => None,
        Some(path) => Some(path.into()),
        None => find_socket(SWAP_HELPER_SOCKET, SERVICE_SWAP_HELPER_DIR),
    }
}

/// Finds the socket `name` in the directories of this machine's daemons, or in the one of a service.
fn find_socket(name: &str, service_dir: &str) -> Option<PathBuf> {
    let dirs = socket_dirs().into_iter().chain([PathBuf::from(service_dir)]);
    dirs.map(|dir| dir.join(name)).find(|path| path.exists())
}

/// Returns the paths at which a Monitor Node of this machine has its socket, if it runs.
pub fn monitor_sockets() -> Vec<PathBuf> {
    socket_dirs().into_iter().map(|dir| dir.join(MONITOR_SOCKET)).collect()
}

/// Returns a socket in a run directory at which a process listens: a daemon's; `None`: there is none.
pub fn living_socket(dir: &Path) -> Option<PathBuf> {
    let names = [MONITOR_SOCKET, AGENT_SOCKET, HELPER_SOCKET, SWAP_HELPER_SOCKET];
    names.map(|name| dir.join(name)).into_iter().find(|path| is_listened_at(path))
}

/// True if a process listens at a socket of this machine.
pub fn is_listened_at(path: &Path) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    // A socket of another type, and one that refuses this user, has a listener too.
    let connected = std::os::unix::net::UnixStream::connect(path);
    connected.map_or_else(|error| !matches!(error.kind(), ConnectionRefused | NotFound), |_| true)
}

/// Directories where daemons of this machine have their sockets.
fn socket_dirs() -> Vec<PathBuf> {
    let mut dirs = vec![run_dir()];
    for dir in SERVICE_RUN_DIRS.map(PathBuf::from) {
        if !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    dirs
}

fn sockets_in(dirs: &[PathBuf]) -> Vec<PathBuf> {
    let all = |name: &'static str| dirs.iter().map(move |dir| dir.join(name));
    all(MONITOR_SOCKET).chain(all(AGENT_SOCKET)).collect()
}

/// Returns the rack named by `VENICE_MONITOR`, or else that of this machine.
///
/// # Errors
/// The errors of [`find_of_machine`].
pub fn find() -> Result<FoundRack, RecipientError> {
    match std::env::var(MONITOR_VARIABLE).ok().filter(|text| !text.is_empty()) {
        Some(monitor) => Ok(FoundRack::new(monitor, port()?, RackSource::Variable)),
        None => find_of_machine(),
    }
}

/// Returns the rack of this machine: of `venice up` in the run directory; without one, the one that
/// `/etc/venice/client.toml` names, that of root's `venice up`, or the one that a daemon of this machine
/// belongs to. A run directory that the environment names is the only place.
///
/// # Errors
/// [`RecipientError::NoRack`], [`RecipientError::DamagedRecord`],
/// [`RecipientError::AnotherUsersRack`], [`RecipientError::ClientConfig`],
/// [`RecipientError::Control`]: the daemons refuse, or do not answer.
pub fn find_of_machine() -> Result<FoundRack, RecipientError> {
    if let Some(written) = find_written()? {
        return Ok(written);
    }
    let dirs = if is_run_dir_set() { vec![run_dir()] } else { socket_dirs() };
    match ask(&sockets_in(&dirs))? {
        Some(monitor) => Ok(FoundRack::new(monitor, PortKind::Udp, RackSource::Daemon)),
        None => Err(RecipientError::NoRack { looked: run_dir().display().to_string() }),
    }
}

/// Returns the rack that a file names.
fn find_written() -> Result<Option<FoundRack>, RecipientError> {
    if let Some(record) = read()? {
        let source = RackSource::Record(run_dir());
        return Ok(Some(FoundRack::new(record.monitor.addr, record.port, source)));
    }
    if is_run_dir_set() {
        return Ok(None);
    }
    if let Some(ClientConfig { monitor, port }) = client_config(Path::new(CLIENT_CONFIG))? {
        return Ok(Some(FoundRack::new(monitor, port, RackSource::Config)));
    }
    // Root's may be closed to this user.
    let of_root = read_in(Path::new(SYSTEM_RUN_DIR)).ok().flatten();
    let source = RackSource::Record(SYSTEM_RUN_DIR.into());
    Ok(of_root.map(|record| FoundRack::new(record.monitor.addr, record.port, source)))
}

/// Reads the configuration of this machine's programs; `None`: there is none.
fn client_config(path: &Path) -> Result<Option<ClientConfig>, RecipientError> {
    let refused =
        |why: String| RecipientError::ClientConfig { path: path.display().to_string(), why };
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| refused(error.to_string()))?,
    };
    toml::from_str(&text).map(Some).map_err(|error| refused(error.to_string()))
}

/// Asks the sockets for their rack; `None`: there are none. In a thread of its own: the caller may be
/// in a runtime, where nothing may wait.
fn ask(sockets: &[PathBuf]) -> Result<Option<String>, RecipientError> {
    if !sockets.iter().any(|path| path.exists()) {
        return Ok(None);
    }
    let ask = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(RecipientError::NoRuntime)?;
        Ok(Some(runtime.block_on(rack_at_sockets(sockets))?))
    };
    std::thread::scope(|scope| scope.spawn(ask).join().expect("it does not panic"))
}

/// Returns the port to the donors of this machine's rack; without a rack, udp.
///
/// # Errors
/// [`RecipientError::DamagedRecord`], [`RecipientError::AnotherUsersRack`],
/// [`RecipientError::ClientConfig`].
pub fn port() -> Result<PortKind, RecipientError> {
    Ok(find_written()?.map_or(PortKind::Udp, |found| found.port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monitor_sockets_come_first() {
        let found = sockets_in(&["/run/venice", "/run/venice-monitor"].map(PathBuf::from));
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, [MONITOR_SOCKET, MONITOR_SOCKET, AGENT_SOCKET, AGENT_SOCKET]);
    }

    #[test]
    fn client_configuration_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("client.toml");
        assert!(client_config(&path).unwrap().is_none());
        std::fs::write(&path, "monitor = \"10.0.0.1:7470\"\nport = \"shm\"\n").unwrap();
        let config = client_config(&path).unwrap().unwrap();
        assert_eq!((config.monitor.as_str(), config.port), ("10.0.0.1:7470", PortKind::Shm));
        std::fs::write(&path, "monitors = \"10.0.0.1:7470\"\n").unwrap();
        let refused = client_config(&path).err().unwrap().to_string();
        assert!(refused.contains("client.toml") && refused.contains("monitors"), "{refused}");
    }
}
