//! A rack on this machine, driven by the user's commands.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::child::ChildGuard;
use crate::program;
use crate::progress::note;
use crate::scratch;

/// Agents of the rack.
const NODES: u64 = 4;

/// Size of a lent slab.
const SLAB_BYTES: u64 = 16 << 20;

/// Transport of pages between the program and its donors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Port {
    /// The donor's memory is mapped.
    Shm,
    /// The donor answers datagrams.
    Udp,
}

impl Port {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Udp => "udp",
        }
    }
}

/// A running rack. Dropping it runs `venice down` and removes its run directory.
#[derive(Debug)]
pub struct Rack {
    port: Port,
    folder: TempDir,
    program: PathBuf,
}

impl Rack {
    /// Starts a rack that lends at least `remote_bytes` in all. Over udp, and with root, every node
    /// gets its own network namespace so that frames cross a (virtual) wire.
    ///
    /// # Errors
    /// When `venice up` fails; the message quotes it.
    pub fn up(port: Port, remote_bytes: u64) -> Result<Self> {
        Self::of(NODES, port, remote_bytes)
    }

    /// Starts a rack of so many nodes, the same as [`Rack::up`].
    ///
    /// # Errors
    /// When `venice up` fails; the message quotes it.
    pub fn of(nodes: u64, port: Port, remote_bytes: u64) -> Result<Self> {
        Self::offering(nodes, port, remote_bytes, &[])
    }

    /// Starts a rack the same as [`Rack::of`], whose nodes lend devices too: `offers` in the form of
    /// `venice up --offer`.
    ///
    /// # Errors
    /// When `venice up` fails; the message quotes it.
    pub fn offering(nodes: u64, port: Port, remote_bytes: u64, offers: &[String]) -> Result<Self> {
        let program = program::venice()?;
        static LEFTOVERS_DOWN: Once = Once::new();
        LEFTOVERS_DOWN.call_once(|| take_down_leftovers(&program));
        let folder = scratch::folder(scratch::RACK)?;
        let network_namespaces = port == Port::Udp && rustix::process::geteuid().is_root();
        let rack = Self { port, folder, program };
        // A little more than its share from each, so that a grant is never limited by rounding to
        // slabs.
        let lend_bytes = (remote_bytes / nodes).next_multiple_of(SLAB_BYTES) + 2 * SLAB_BYTES;
        let mut command = rack.venice();
        command
            .args(["up", "--nodes", &nodes.to_string(), "--lend", &lend_bytes.to_string()])
            .args(["--port", port.name()]);
        offers.iter().for_each(|offer| {
            command.args(["--offer", offer]);
        });
        if network_namespaces {
            command.arg("--netns");
        }
        rack.finish("venice up", command, Duration::from_secs(60))?;
        Ok(rack)
    }

    /// Returns the command `venice` for this rack, without a subcommand.
    pub fn venice(&self) -> Command {
        self.command(&self.program)
    }

    /// Returns a command of `program` that finds this rack, without arguments.
    pub fn command(&self, program: &Path) -> Command {
        in_rack(program, self.folder.path())
    }

    /// Returns the port between the program and its donors.
    pub fn port(&self) -> Port {
        self.port
    }

    /// Returns the processes of the donors that the rack lists.
    pub fn agent_pids(&self) -> Vec<u32> {
        let mut command = self.venice();
        command.args(["status", "--json"]).process_group(0);
        let Ok(output) = command.output() else { return Vec::new() };
        parse_agent_pids(&output.stdout)
    }

    /// True if a program has borrowed from it and begun.
    pub fn has_run(&self) -> bool {
        let mut command = self.venice();
        command.args(["status", "--json"]).process_group(0);
        command.output().is_ok_and(|output| parse_run_count(&output.stdout) > 0)
    }

    /// Returns the bytes that its nodes have lent at present; 0 if they do not report.
    pub fn granted_bytes(&self) -> u64 {
        let mut command = self.venice();
        command.args(["nodes", "--json"]).process_group(0);
        command.output().map_or(0, |output| parse_granted_bytes(&output.stdout))
    }

    /// Runs a command of [`Rack::venice`] to its end.
    ///
    /// # Errors
    /// When it fails or takes longer than `limit`; the message quotes it.
    pub fn finish(&self, name: &str, command: Command, limit: Duration) -> Result<()> {
        let log = self.folder.path().join("command.log");
        ChildGuard::spawn(name, command, &log)?.wait_success(limit)
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        let mut command = self.venice();
        command.arg("down").process_group(0);
        // `wait_success` would stop at once if a Ctrl-C was the cause.
        match command.output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => eprintln!(
                "venice: `venice down` failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ),
            Err(error) => eprintln!("venice: cannot run `venice down`: {error}"),
        }
    }
}

fn in_rack(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("VENICE_RUN_DIR", folder.join("run")).env_remove("VENICE_MONITOR");
    command
}

/// Takes down the racks of killed runs: their processes are detached and live on.
fn take_down_leftovers(program: &Path) {
    for folder in scratch::left_in(&std::env::temp_dir(), scratch::RACK) {
        let down = in_rack(program, &folder).arg("down").process_group(0).output();
        if down.is_ok_and(|output| output.status.success()) {
            // A remaining folder is harmless.
            let _ = std::fs::remove_dir_all(&folder);
            note(&format!("took down the rack of a killed benchmark: {}", folder.display()));
        }
    }
}

fn parse_agent_pids(status: &[u8]) -> Vec<u32> {
    #[derive(Deserialize)]
    struct Status {
        agents: Vec<Agent>,
    }
    #[derive(Deserialize)]
    struct Agent {
        pid: Option<u32>,
    }
    let agents = serde_json::from_slice(status).map_or(Vec::new(), |status: Status| status.agents);
    agents.iter().filter_map(|agent| agent.pid).collect()
}

fn parse_run_count(status: &[u8]) -> usize {
    #[derive(Deserialize)]
    struct Status {
        runs: Vec<serde::de::IgnoredAny>,
    }
    serde_json::from_slice(status).map_or(0, |status: Status| status.runs.len())
}

fn parse_granted_bytes(nodes: &[u8]) -> u64 {
    #[derive(Deserialize)]
    struct Node {
        granted_bytes: u64,
    }
    let nodes: Vec<Node> = serde_json::from_slice(nodes).unwrap_or_default();
    nodes.iter().map(|node| node.granted_bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_pids_are_parsed() {
        let status = br#"{"monitor":{"pid":7},"agents":[{"name":"node1","pid":8},{"pid":null}]}"#;
        assert_eq!(parse_agent_pids(status), [8]);
        assert_eq!(parse_agent_pids(b"no rack"), Vec::<u32>::new());
        assert_eq!(parse_run_count(br#"{"agents":[],"runs":[{"short_slabs":0}]}"#), 1);
        let nodes = br#"[{"name":"node1","granted_bytes":5},{"name":"node2","granted_bytes":0}]"#;
        assert_eq!((parse_granted_bytes(nodes), parse_granted_bytes(b"")), (5, 0));
    }
}
