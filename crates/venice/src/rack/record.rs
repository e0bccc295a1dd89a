//! `rack.json`: what a local rack is made of, written by `venice up`, read by everybody else.

use std::fs;
use std::io::Write;

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use venice_control::Policy;
use venice_fabric::LinkModel;

use super::process::Identity;
use super::run_dir::RunDir;
use crate::daemon::MonitorSettings;

/// How recipients reach the donors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum PortKind {
    /// The donor's memory is mapped: one host only, no donor CPU involved
    #[default]
    Shm,
    /// Packets over UDP: between hosts, or through a virtual wire with --netns
    Udp,
    /// RDMA devices: between hosts, no donor CPU involved
    Verbs,
}

impl std::fmt::Display for PortKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PortKind::Shm => "shm",
            PortKind::Udp => "udp",
            PortKind::Verbs => "verbs",
        })
    }
}

impl From<PortKind> for venice_recipient::PortKind {
    fn from(port: PortKind) -> Self {
        match port {
            PortKind::Shm => venice_recipient::PortKind::Shm,
            PortKind::Udp => venice_recipient::PortKind::Udp,
            PortKind::Verbs => venice_recipient::PortKind::Verbs,
        }
    }
}

/// A local rack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The Monitor Node.
    pub monitor: MonitorRecord,
    /// How recipients reach the donors unless they say otherwise.
    pub port: PortKind,
    /// Whether every node has a network namespace of its own.
    pub netns: bool,
    /// UDP goes without protection.
    #[serde(default)]
    pub plain: bool,
    /// Which donors are taken first where a program does not say; None: nearest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Policy>,
    /// Single packets pass the kernel by where they come to a node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub xdp: bool,
    /// The link that is emulated between any two nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkModel>,
    /// With namespaces: the network that joins them, `10.x.y.0/24`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<super::subnet::Subnet>,
    /// How the nodes are wired, with its size: `mesh:2x2x2`, `router:8`; None: every node reaches
    /// every other directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// Packets carry their whole route from their source.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub source_routes: bool,
    /// The nodes, in order; behind them the external router, if there is one.
    pub agents: Vec<AgentRecord>,
}

/// The Monitor Node of a local rack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MonitorRecord {
    /// Where it answers; port 0 until it said so.
    pub addr: String,
    /// Its process, once started.
    #[serde(flatten)]
    pub process: Option<Identity>,
    /// How it is told to behave.
    #[serde(default)]
    pub settings: MonitorSettings,
}

/// One node of a local rack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentRecord {
    /// `node1`, `node2`, ...
    pub name: String,
    /// Its process, once started.
    #[serde(flatten)]
    pub process: Option<Identity>,
    /// What it lends, in bytes.
    pub lend_bytes: u64,
    /// Where its agent answers the control plane; empty until it said so.
    #[serde(default)]
    pub control_addr: String,
    /// Where its agent answers fabric packets; empty until it said so.
    #[serde(default)]
    pub udp_addr: String,
    /// Where its relay answers, in a network of relays; empty until it said so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub relay_addr: String,
    /// It lends and borrows nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pool: bool,
    /// The devices it lends, as `venice agent --offer` has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offer: Vec<String>,
    /// The memory devices it lends in place of this machine's memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lend_dax: Vec<String>,
    /// The network namespace it lives in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
}

impl AgentRecord {
    /// One of this name, which is not started yet.
    pub fn new(name: String, lend_bytes: u64) -> Self {
        Self {
            name,
            process: None,
            lend_bytes,
            control_addr: String::new(),
            udp_addr: String::new(),
            relay_addr: String::new(),
            pool: false,
            offer: Vec::new(),
            lend_dax: Vec::new(),
            netns: None,
        }
    }

    /// Whether it is the external router, which lends nothing.
    pub fn is_router(&self) -> bool {
        self.lend_bytes == 0
    }
}

impl Record {
    /// The record in `dir`, or None where there is no rack.
    pub fn load(dir: &RunDir) -> anyhow::Result<Option<Record>> {
        let path = dir.record_path();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        match serde_json::from_str(&text) {
            Ok(record) => Ok(Some(record)),
            Err(error) => bail!(
                "{} is damaged ({error}): clear the rack away with `venice down`",
                path.display()
            ),
        }
    }

    /// Writes the record so that a reader sees the old one or the new one, never half of one.
    pub fn save(&self, dir: &RunDir) -> anyhow::Result<()> {
        let path = dir.record_path();
        let temporary = dir.half_record_path();
        let write = || -> anyhow::Result<()> {
            let mut file = fs::File::create(&temporary)?;
            serde_json::to_writer_pretty(&mut file, self)?;
            file.write_all(b"\n")?;
            fs::rename(&temporary, &path)?;
            Ok(())
        };
        write().with_context(|| format!("writing {}", path.display())).inspect_err(|_| {
            // Half of one, where the disk is full.
            let _ = fs::remove_file(&temporary);
        })
    }

    /// How many nodes it has, the external router not counted.
    pub fn node_count(&self) -> usize {
        self.agents.iter().filter(|agent| !agent.is_router()).count()
    }

    /// How many of them are pool nodes.
    pub fn pool_count(&self) -> usize {
        self.agents.iter().filter(|agent| agent.pool).count()
    }

    /// `monitor` and the names of the nodes.
    pub fn process_names(&self) -> Vec<String> {
        let nodes = self.agents.iter().map(|agent| agent.name.clone());
        std::iter::once("monitor".to_string()).chain(nodes).collect()
    }

    /// Every process of the rack that was ever started.
    pub fn processes(&self) -> Vec<Identity> {
        let agents = self.agents.iter().filter_map(|agent| agent.process);
        agents.chain(self.monitor.process).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_the_file() {
        let json = r#"{"monitor": {"addr": "127.0.0.1:7470", "pid": 7, "start_ticks": 1},
            "port": "udp", "netns": false,
            "agents": [{"name": "node1", "lend_bytes": 16777216}]}"#;
        let record: Record = serde_json::from_str(json).unwrap();
        assert_eq!(record.monitor.process.unwrap().pid, 7);
        assert_eq!(record.agents[0].process, None);
        assert_eq!(record.process_names(), ["monitor", "node1"]);
        let again: Record = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
        assert_eq!(again, record);
    }
}
