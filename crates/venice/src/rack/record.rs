//! `rack.json`: the description of a local rack, written by `venice up`, read by all other
//! commands.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;

use anyhow::{Context, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::{Deserialize, Serialize};
use venice_control::Policy;
use venice_fabric::LinkModel;
use venice_wire::ByteSize;
pub use venice_wire::PortKind;

use super::process::Identity;
use super::run_dir::RunDir;
use crate::daemon::MonitorSettings;

/// Returns the parser of `--port`, with help for each value.
pub fn port_parser() -> impl TypedValueParser<Value = PortKind> {
    let values = PortKind::ALL.map(|port| PossibleValue::new(port.id().name()).help(help_on(port)));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<PortKind>())
}

fn help_on(port: PortKind) -> &'static str {
    match port {
        PortKind::Shm => "Donor memory is mapped: one host only, no donor CPU involved",
        PortKind::Udp => "Packets over UDP: between hosts, or through a virtual wire with --netns",
        PortKind::Verbs => "RDMA devices: between hosts, no donor CPU involved",
    }
}

/// A local rack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The Monitor Node.
    pub monitor: MonitorRecord,
    /// Port by which recipients reach the donors by default.
    pub port: PortKind,
    /// True if every node has a network namespace of its own.
    pub netns: bool,
    /// True if UDP is unprotected.
    #[serde(default)]
    pub plain: bool,
    /// Default placement policy; `None`: nearest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Policy>,
    /// True if single packets bypass the kernel at the nodes (AF_XDP).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub xdp: bool,
    /// Link emulated between any two nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkModel>,
    /// Network that joins the namespaces, `10.x.y.0/24`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<super::subnet::Subnet>,
    /// Topology of the nodes, with its size: `mesh:2x2x2`, `router:8`; `None`: every node reaches
    /// every other directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// True if packets carry their whole route from their source.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub source_routes: bool,
    /// Bytes that each node keeps of what drivers have compiled for an owner; `None`: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_cache: Option<ByteSize>,
    /// Group that may use the rack besides its owner; `None`: root's racks have the default one, others
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_group: Option<String>,
    /// True if every process serves metrics.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub metrics: bool,
    /// The nodes, in order; after them the external router, if there is one.
    pub agents: Vec<AgentRecord>,
}

/// The Monitor Node of a local rack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MonitorRecord {
    /// Its address; port 0 until it has reported one.
    pub addr: String,
    /// Its process, once started.
    #[serde(flatten)]
    pub process: Option<Identity>,
    /// Its settings.
    #[serde(default)]
    pub settings: MonitorSettings,
    /// Address of its metrics; empty: it serves none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub metrics_addr: String,
}

impl MonitorRecord {
    /// True once its port is known: it was chosen, or the Monitor Node has reported it.
    pub fn has_port(&self) -> bool {
        self.addr.parse::<SocketAddr>().is_ok_and(|address| address.port() != 0)
    }
}

/// One node of a local rack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentRecord {
    /// `node1`, `node2`, ...
    pub name: String,
    /// Its process, once started.
    #[serde(flatten)]
    pub process: Option<Identity>,
    /// Bytes lent.
    pub lend_bytes: u64,
    /// Control-plane address of the agent; empty until reported.
    #[serde(default)]
    pub control_addr: String,
    /// Address of the agent for fabric packets; empty until reported.
    #[serde(default)]
    pub udp_addr: String,
    /// Address of the node's relay, in a network of relays; empty until reported.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub relay_addr: String,
    /// Address of its metrics; empty: it serves none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub metrics_addr: String,
    /// True if it lends and borrows nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pool: bool,
    /// Devices it lends, in the form of `venice agent --offer`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offer: Vec<String>,
    /// Memory devices it lends instead of this machine's memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lend_dax: Vec<String>,
    /// Its network namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
}

impl AgentRecord {
    /// Creates the record of a node of this name that is not started yet.
    pub fn new(name: String, lend_bytes: u64) -> Self {
        Self {
            name,
            process: None,
            lend_bytes,
            control_addr: String::new(),
            udp_addr: String::new(),
            relay_addr: String::new(),
            metrics_addr: String::new(),
            pool: false,
            offer: Vec::new(),
            lend_dax: Vec::new(),
            netns: None,
        }
    }

    /// True if it is the external router, which lends nothing.
    pub fn is_router(&self) -> bool {
        self.lend_bytes == 0
    }
}

impl Record {
    /// Loads the record in `dir`; `None` without a rack.
    pub fn load(dir: &RunDir) -> anyhow::Result<Option<Record>> {
        let path = dir.record_path();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(dir.refusal(&path, &error)),
        };
        match serde_json::from_slice(&bytes) {
            Ok(record) => Ok(Some(record)),
            Err(error) => {
                bail!("{} is damaged ({error}): remove the rack with `venice down`", path.display())
            }
        }
    }

    /// Writes the record atomically: a reader sees the old one or the new one.
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
            // A partial file, if the disk is full.
            let _ = fs::remove_file(&temporary);
        })
    }

    /// Returns the number of nodes, without the external router.
    pub fn node_count(&self) -> usize {
        self.agents.iter().filter(|agent| !agent.is_router()).count()
    }

    /// Returns the number of pool nodes.
    pub fn pool_count(&self) -> usize {
        self.agents.iter().filter(|agent| agent.pool).count()
    }

    /// Returns `monitor` and the names of the nodes.
    pub fn process_names(&self) -> Vec<String> {
        let nodes = self.agents.iter().map(|agent| agent.name.clone());
        std::iter::once("monitor".to_string()).chain(nodes).collect()
    }

    /// Returns every process of the rack that was ever started.
    pub fn processes(&self) -> Vec<Identity> {
        let agents = self.agents.iter().filter_map(|agent| agent.process);
        agents.chain(self.monitor.process).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_record_names_remedy() {
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::at(temp.path());
        assert_eq!(Record::load(&dir).unwrap(), None);
        fs::write(dir.record_path(), [0xff, 0xfe, 0]).unwrap();
        let refused = Record::load(&dir).unwrap_err().to_string();
        assert!(refused.contains("venice down"), "{refused}");
        fs::remove_file(dir.record_path()).unwrap();
        fs::create_dir(dir.record_path()).unwrap();
        let refused = Record::load(&dir).unwrap_err().to_string();
        assert!(refused.contains("remove it"), "{refused}");
        let refused = Record::load(&RunDir::at(std::path::Path::new("/dev/null"))).unwrap_err();
        assert!(refused.to_string().contains("set VENICE_RUN_DIR"), "{refused}");
    }

    #[test]
    fn record_roundtrips() {
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
