//! The rack of this machine, from the record of `venice up`.

use std::path::PathBuf;

use venice_control::client::{Access, Login};
use venice_memory::paged::run_block::PortKind;

use crate::error::RecipientError;
use crate::record::read;
pub use crate::record::{RECORD_FILE, RUN_DIR_VARIABLE, SYSTEM_RUN_DIR, run_dir};

/// The environment variable that names the Monitor Node: `host:port`, or several separated by
/// commas.
pub const MONITOR_VARIABLE: &str = "VENICE_MONITOR";

/// The Monitor Node's socket for the programs of its machine, in the run directory.
pub const MONITOR_SOCKET: &str = "monitor.sock";
/// The agent's socket.
pub const AGENT_SOCKET: &str = "agent.sock";
/// Run directories on a machine whose daemons are services.
const SERVICE_RUN_DIRS: [&str; 3] = [SYSTEM_RUN_DIR, "/run/venice-monitor", "/run/venice-agent"];

/// A rack, and the port to its donors.
#[derive(Clone, Debug)]
pub struct FoundRack {
    /// The rack.
    pub access: Access,
    /// The port.
    pub port: PortKind,
}

/// Returns access to the rack at this address through a socket of this machine: in the run
/// directory, or where daemons that run as root or as services have theirs. The Monitor Node's
/// sockets come before all agents': there root has administrator rights.
pub fn access(monitor: impl Into<String>) -> Access {
    let mut dirs: Vec<PathBuf> = run_dir().into_iter().collect();
    for dir in SERVICE_RUN_DIRS.map(PathBuf::from) {
        if !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    Access::new(monitor, Login::at_sockets(sockets_in(&dirs)))
}

fn sockets_in(dirs: &[PathBuf]) -> Vec<PathBuf> {
    let all = |name: &'static str| dirs.iter().map(move |dir| dir.join(name));
    all(MONITOR_SOCKET).chain(all(AGENT_SOCKET)).collect()
}

/// Returns the rack named by `VENICE_MONITOR`, or else that of this machine.
///
/// # Errors
/// [`RecipientError::NoRack`], [`RecipientError::DamagedRecord`],
/// [`RecipientError::AnotherUsersRack`].
pub fn find() -> Result<FoundRack, RecipientError> {
    if let Some(monitor) = std::env::var(MONITOR_VARIABLE).ok().filter(|text| !text.is_empty()) {
        return Ok(FoundRack { access: access(monitor), port: port()? });
    }
    let found =
        read()?.map(|record| FoundRack { port: record.port, access: access(record.monitor.addr) });
    found.ok_or_else(|| RecipientError::NoRack {
        variable: MONITOR_VARIABLE,
        looked: run_dir()
            .map_or_else(String::new, |dir| format!(" (looked for a rack in {})", dir.display())),
    })
}

/// Returns the port to the donors of this machine's rack; without a rack, udp.
///
/// # Errors
/// [`RecipientError::DamagedRecord`], [`RecipientError::AnotherUsersRack`].
pub fn port() -> Result<PortKind, RecipientError> {
    Ok(read()?.map_or(PortKind::Udp, |record| record.port))
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
}
