//! The record of `venice up` about its rack on this machine.

use std::path::{Path, PathBuf};

use serde::Deserialize;
pub use venice_control::client::RECORD_FILE;
use venice_memory::paged::run_block::PortKind;

/// The environment variable that names the run directory.
pub const RUN_DIR_VARIABLE: &str = "VENICE_RUN_DIR";
/// The run directory of a machine whose daemons run as root.
pub const SYSTEM_RUN_DIR: &str = "/run/venice";

/// The part of the record that a recipient needs.
#[derive(Deserialize)]
pub(crate) struct Record {
    pub(crate) monitor: MonitorRecord,
    pub(crate) port: PortKind,
}

/// The Monitor Node's entry.
#[derive(Deserialize)]
pub(crate) struct MonitorRecord {
    pub(crate) addr: String,
}

/// The error for an unreadable record.
pub(crate) struct Unreadable {
    pub(crate) path: String,
    pub(crate) why: String,
    /// True if it is another user's.
    pub(crate) is_denied: bool,
}

/// Reads the record of the run directory; `None`: there is no rack of `venice up`.
pub(crate) fn read() -> Result<Option<Record>, Unreadable> {
    read_in(&run_dir())
}

/// Reads the record in a directory.
pub(crate) fn read_in(dir: &Path) -> Result<Option<Record>, Unreadable> {
    let path = dir.join(RECORD_FILE);
    let unreadable = |why: String, is_denied| {
        let path = path.display().to_string();
        Unreadable { path, why, is_denied }
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| unreadable(error.to_string(), false)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let is_denied = error.kind() == std::io::ErrorKind::PermissionDenied;
            Err(unreadable(error.to_string(), is_denied))
        }
    }
}

/// True if the Monitor Node at `addr` belongs to the rack of `venice up` on this machine.
pub(crate) fn is_of_this_machine(addr: &str) -> bool {
    read().is_ok_and(|record| record.is_some_and(|record| record.monitor.addr == addr))
}

/// Returns the run directory: `$VENICE_RUN_DIR`, else `/run/venice` for root, else
/// [`run_dir_of_user`]. It need not exist.
pub fn run_dir() -> PathBuf {
    if let Some(dir) = set(RUN_DIR_VARIABLE) {
        return dir;
    }
    if rustix::process::geteuid().is_root() {
        return PathBuf::from(SYSTEM_RUN_DIR);
    }
    run_dir_of_user()
}

/// Returns this user's own directory: `$XDG_RUNTIME_DIR/venice`, else `/tmp/venice-UID`, for processes
/// without a login session (cron, batch systems). It need not exist.
pub fn run_dir_of_user() -> PathBuf {
    match set("XDG_RUNTIME_DIR") {
        Some(dir) => dir.join("venice"),
        None => format!("/tmp/venice-{}", rustix::process::geteuid().as_raw()).into(),
    }
}

/// True if the environment names the run directory.
pub fn is_run_dir_set() -> bool {
    set(RUN_DIR_VARIABLE).is_some()
}

/// Returns the path in a variable, unless that is empty.
pub(crate) fn set(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from)
}
