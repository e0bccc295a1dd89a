//! A simulated machine for each donor, as far as memory goes: its agent runs in a mount namespace
//! in which a file of the soak's lies over `/proc/meminfo`. One of them can thus run short while
//! the others and this machine are well.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::injuries::WHOLE_WITHIN;
use super::{LEND_MIB, NODES};
use crate::programs::rack::{Rack, kill_now};
use crate::programs::{MIB, wait_for};

/// Total memory of a donor's machine, and its available memory while it is well; an agent keeps 2
/// %.
const TOTAL_MIB: u64 = 16 << 10;
const WELL_MIB: u64 = 8 << 10;
/// Available memory while it is short.
const SHORT_MIB: u64 = 100;

/// The folder of the files.
pub struct Machines(TempDir);

impl Machines {
    /// Restarts every agent of `rack`, which has lent nothing yet, on its own machine, which is
    /// well.
    pub fn under(rack: &Rack) -> Machines {
        let machines = Machines(tempfile::tempdir().expect("a temporary directory"));
        for node in NODES {
            File::create(machines.file(node)).expect("a file");
            machines.set(node, WELL_MIB);
            kill_now(rack.agent_pid(node));
            machines.start(rack, node);
        }
        wait_for("the donors to be well", WHOLE_WITHIN, || machines.are_well(rack).then_some(()));
        machines
    }

    /// Restarts the dead agent of `node` by `venice up`.
    ///
    /// # Panics
    /// When it does not start; the message quotes the command.
    pub fn start(&self, rack: &Rack, node: &str) {
        let up = rack.command(&["up"]);
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]);
        command.arg("mount --bind \"$0\" /proc/meminfo && exec \"$@\"").arg(self.file(node));
        command.arg(up.get_program()).args(up.get_args()).stdin(Stdio::null());
        for (name, value) in up.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let said = command.output().expect("unshare can be run");
        assert!(said.status.success(), "venice up: {}", String::from_utf8_lossy(&said.stderr));
    }

    /// Makes the machine of `node` short of memory: the donor reclaims all that it lends.
    pub fn run_short(&self, node: &str) {
        self.set(node, SHORT_MIB);
    }

    /// Ends the shortage.
    pub fn recover(&self, node: &str) {
        self.set(node, WELL_MIB);
    }

    /// True if all donors are up and lend what they should.
    pub fn are_well(&self, rack: &Rack) -> bool {
        let nodes = rack.json(&["nodes"]);
        let is_well = |node: &&Value| {
            let lends_all = node["lent_bytes"].as_u64() == Some(LEND_MIB * MIB);
            let sees_its_own = node["available_bytes"].as_u64() == Some(WELL_MIB * MIB);
            node["state"] == "up" && node["pressure"] == "none" && lends_all && sees_its_own
        };
        nodes.as_array().is_some_and(|nodes| nodes.iter().filter(is_well).count() == NODES.len())
    }

    fn file(&self, node: &str) -> PathBuf {
        self.0.path().join(node)
    }

    /// Writes the file in place, since it is mounted, with a constant length, so that a reader sees
    /// one text or the other.
    fn set(&self, node: &str, available_mib: u64) {
        let text = format!(
            "MemTotal: {:>12} kB\nMemAvailable: {:>12} kB\n",
            TOTAL_MIB << 10,
            available_mib << 10
        );
        let file = File::options().write(true).open(self.file(node)).expect("the file");
        file.write_all_at(text.as_bytes(), 0).expect("it can be written");
    }
}
