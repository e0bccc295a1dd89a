//! etcd as a Monitor Node's store: one member on this machine.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::monitor_node::free_port;
use venice_measure::child::{ChildGuard, find_program};
use venice_measure::interrupt;

/// Time limit for its first answer.
const START: Duration = Duration::from_secs(60);
/// Largest transaction, in changes, that the Monitor Node makes.
const CHANGES_AT_ONCE: &str = "2048";

/// A member in its own process.
#[derive(Debug)]
pub(super) struct Etcd {
    process: ChildGuard,
    port: u16,
}

impl Etcd {
    /// Starts it with its data below `folder`.
    ///
    /// # Errors
    /// When it is not installed or does not answer.
    pub(super) fn start(folder: &Path) -> Result<Self> {
        let program = find_program("etcd").context(
            "etcd is not installed: install it (Debian: etcd-server), or leave it out with --store \
             file",
        )?;
        let (port, peer_port) = (free_port()?, free_port()?);
        let (client, peer) =
            (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));
        let mut command = Command::new(program);
        command
            .arg("--data-dir")
            .arg(folder.join("etcd"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .args(["--max-txn-ops", CHANGES_AT_ONCE, "--log-level", "error"]);
        let mut process = ChildGuard::spawn("etcd", command, &folder.join("etcd.log"))?;
        interrupt::wait_until("etcd's start", START, || {
            process.ensure_alive()?;
            Ok(std::net::TcpStream::connect(("127.0.0.1", port)).ok().map(drop))
        })?;
        Ok(Self { process, port })
    }

    /// Returns its location as `venice monitor --store` takes it.
    pub(super) fn location(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }
}
