//! The node a program belongs to, in a rack whose nodes relay for each other: it sends what is for
//! its donors to that node's relay.

use anyhow::{anyhow, bail};
use venice_control::NodeRow;
use venice_fabric::Topology;

use crate::failure::Usage;
use crate::rack::PortKind;
use crate::registry::{self, block_on};

/// The node a program belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// Its name.
    pub name: String,
    /// `host:port` of its relay.
    pub relay_addr: String,
}

/// The program's home; `None` in a rack where every node is reached directly.
pub fn find(monitor: &str, port: PortKind, node: Option<&str>) -> anyhow::Result<Option<Home>> {
    let rows = block_on(async { registry::connect(monitor).await?.nodes().await })?;
    choose(&rows, port, node)
}

fn choose(rows: &[NodeRow], port: PortKind, node: Option<&str>) -> anyhow::Result<Option<Home>> {
    let Some(topology) = rows.iter().map(|row| &row.topology).find(|text| !text.is_empty()) else {
        if let Some(node) = node {
            let said = format!(
                "--node {node} says nothing here: every node of this rack is reached directly"
            );
            return Err(Usage(said).into());
        }
        return Ok(None);
    };
    if port == PortKind::Shm {
        let said = format!("the nodes of this rack are wired as {topology}: use --port udp");
        return Err(Usage(said).into());
    }
    let nodes = topology.parse::<Topology>().map_or(u32::MAX, |topology| topology.nodes());
    let is_node = |row: &&NodeRow| row.position.is_some_and(|position| position < nodes);
    let home = match node {
        Some(name) => {
            let named = rows.iter().filter(is_node).find(|row| row.name == name);
            let named = named.ok_or_else(|| {
                anyhow!("this rack has no node {name}: `venice nodes` lists those there are")
            })?;
            if named.state != "up" {
                bail!("{name} is down: a program needs its node's relay (give another --node)");
            }
            named
        }
        None => {
            let up = rows.iter().filter(is_node).filter(|row| row.state == "up");
            let first = up.min_by_key(|row| row.position);
            first.ok_or_else(|| anyhow!("no node of this rack is up"))?
        }
    };
    Ok(Some(Home { name: home.name.clone(), relay_addr: home.relay_addr.clone() }))
}
