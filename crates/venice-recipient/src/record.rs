//! The record of `venice up` about its rack on this machine.

use std::path::PathBuf;

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

/// Reads the record; `None`: there is no rack of `venice up`.
pub(crate) fn read() -> Result<Option<Record>, Unreadable> {
    let Some(dir) = run_dir() else { return Ok(None) };
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
/// `$XDG_RUNTIME_DIR/venice`; `None` without any of these. It need not exist.
pub fn run_dir() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    if let Some(dir) = set(RUN_DIR_VARIABLE) {
        return Some(dir);
    }
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from(SYSTEM_RUN_DIR));
    }
    set("XDG_RUNTIME_DIR").map(|dir| dir.join("venice"))
}
