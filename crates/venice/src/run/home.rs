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

/// Datagrams and RDMA devices obey no emulated link.
fn check_emulation(rows: &[NodeRow], port: PortKind) -> anyhow::Result<()> {
    let emulating = rows.iter().find(|row| !row.link.is_empty());
    match emulating {
        Some(row) if port != PortKind::Shm => {
            let said = format!(
                "{} emulates the link {}, which --port {port} does not obey: use --port shm, or \
                 start the rack without --link",
                row.name, row.link
            );
            Err(Usage(said).into())
        }
        _ => Ok(()),
    }
}

fn choose(rows: &[NodeRow], port: PortKind, node: Option<&str>) -> anyhow::Result<Option<Home>> {
    let Some(topology) = rows.iter().map(|row| &row.topology).find(|text| !text.is_empty()) else {
        if let Some(node) = node {
            let said = format!(
                "--node {node} says nothing here: every node of this rack is reached directly"
            );
            return Err(Usage(said).into());
        }
        check_emulation(rows, port)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, topology: &str, position: Option<u32>, link: &str) -> NodeRow {
        NodeRow {
            name: name.into(),
            node_id: 1,
            pid: None,
            state: "up".into(),
            lent_bytes: 0,
            free_bytes: 0,
            granted_bytes: 0,
            epoch: 1,
            control_addr: String::new(),
            udp_addr: String::new(),
            shm_socket: String::new(),
            last_heartbeat_ms: None,
            protection: "plain".into(),
            replayed: 0,
            forged: 0,
            unsealed: 0,
            unknown_key: 0,
            topology: topology.into(),
            position,
            relay_addr: format!("{name}:1"),
            link: link.into(),
        }
    }

    #[test]
    fn an_emulated_link_is_not_passed_over_in_silence() {
        let rows = [node("node1", "", None, ""), node("node2", "", None, "latency=1us")];
        assert_eq!(choose(&rows, PortKind::Shm, None).unwrap(), None);
        for port in [PortKind::Udp, PortKind::Verbs] {
            let error = choose(&rows, port, None).unwrap_err().to_string();
            assert!(error.contains("node2 emulates the link latency=1us"), "{error}");
        }
        assert_eq!(choose(&rows[..1], PortKind::Udp, None).unwrap(), None);
    }

    #[test]
    fn relays_obey_it_and_the_first_node_is_home() {
        let row = |name, position| node(name, "mesh:2", Some(position), "latency=1us");
        let rows = [row("node2", 1), row("node1", 0)];
        let home = choose(&rows, PortKind::Udp, None).unwrap().unwrap();
        assert_eq!((home.name.as_str(), home.relay_addr.as_str()), ("node1", "node1:1"));
        let home = choose(&rows, PortKind::Udp, Some("node2")).unwrap().unwrap();
        assert_eq!(home.name, "node2");
        assert!(choose(&rows, PortKind::Shm, None).is_err());
    }
}
