//! The relay node of a recipient, in a rack whose nodes relay for each other: packets to the donors
//! go to that node's relay.

use venice_control::NodeRow;
use venice_control::client::{Access, MonitorClient};
use venice_fabric::Topology;
use venice_memory::paged::run_block::PortKind;

use crate::error::RecipientError;
use crate::loan::runtime;

/// The relay node of a recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// Its name.
    pub name: String,
    /// `host:port` of its relay.
    pub relay_addr: String,
}

/// Returns the recipient's relay node, `node` if that is given; `None` in a rack where every node
/// is reached directly.
///
/// # Errors
/// If the rack has no such node, or `port` does not fit its topology.
pub fn find(
    access: &Access,
    port: PortKind,
    node: Option<&str>,
) -> Result<Option<Home>, RecipientError> {
    let rows = runtime()?.block_on(async { MonitorClient::connect(access).await?.nodes().await });
    choose(&rows?, port, node)
}

fn choose(
    rows: &[NodeRow],
    port: PortKind,
    node: Option<&str>,
) -> Result<Option<Home>, RecipientError> {
    let Some(topology) = rows.iter().map(|row| &row.topology).find(|text| !text.is_empty()) else {
        if let Some(node) = node {
            return Err(RecipientError::NoHomes(node.into()));
        }
        check_emulation(rows, port)?;
        return Ok(None);
    };
    if !port.capabilities().leaves_machine {
        return Err(RecipientError::Wired { topology: topology.clone() });
    }
    let nodes = topology.parse::<Topology>().map_or(u32::MAX, |topology| topology.nodes());
    let is_node = |row: &&NodeRow| row.position.is_some_and(|position| position < nodes);
    let home = match node {
        Some(name) => {
            let named = rows.iter().filter(is_node).find(|row| row.name == name);
            let named = named.ok_or_else(|| RecipientError::NoSuchHome(name.into()))?;
            if named.role == "pool" {
                return Err(RecipientError::PoolHome(name.into()));
            }
            if named.state != "up" {
                return Err(RecipientError::HomeDown(name.into()));
            }
            named
        }
        None => {
            let may_borrow = |row: &&NodeRow| row.state == "up" && row.role != "pool";
            let first = rows.iter().filter(is_node).filter(may_borrow);
            first.min_by_key(|row| row.position).ok_or(RecipientError::NobodyUp)?
        }
    };
    Ok(Some(Home { name: home.name.clone(), relay_addr: home.relay_addr.clone() }))
}

/// Checks for emulated links: datagrams and RDMA devices do not support them.
fn check_emulation(rows: &[NodeRow], port: PortKind) -> Result<(), RecipientError> {
    let emulating = rows.iter().find(|row| !row.link.is_empty());
    match emulating {
        Some(row) if !port.capabilities().mapped => {
            let (node, link) = (row.name.clone(), row.link.clone());
            Err(RecipientError::Emulated { node, link, port })
        }
        _ => Ok(()),
    }
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
            xdp_received: None,
            xdp_sent: None,
            xdp_lost: None,
            topology: topology.into(),
            position,
            relay_addr: format!("{name}:1"),
            link: link.into(),
            role: "peer".into(),
            pressure: "none".into(),
            available_bytes: None,
            stall_ratio: None,
            draining: false,
            certificate_expires_s: None,
            refused: 0,
        }
    }

    #[test]
    fn pool_node_is_no_relay_node() {
        let mesh = |name, position| node(name, "mesh:3x1x1", Some(position), "");
        let pool = NodeRow { role: "pool".into(), ..mesh("node1", 0) };
        let rows = [pool, mesh("node2", 1), mesh("node3", 2)];
        let home = choose(&rows, PortKind::Udp, None).unwrap().unwrap();
        assert_eq!(home.name, "node2");
        let error = choose(&rows, PortKind::Udp, Some("node1")).unwrap_err().to_string();
        assert!(error.contains("node1 is a pool node"), "{error}");
    }

    #[test]
    fn unsupported_emulated_link_is_refused() {
        let rows = [node("node1", "", None, ""), node("node2", "", None, "latency=1us")];
        assert_eq!(choose(&rows, PortKind::Shm, None).unwrap(), None);
        for port in [PortKind::Udp, PortKind::Verbs] {
            let error = choose(&rows, port, None).unwrap_err().to_string();
            assert!(error.contains("node2 emulates the link latency=1us"), "{error}");
        }
        assert_eq!(choose(&rows[..1], PortKind::Udp, None).unwrap(), None);
    }

    #[test]
    fn first_node_is_the_default() {
        let row = |name, position| node(name, "mesh:2", Some(position), "latency=1us");
        let rows = [row("node2", 1), row("node1", 0)];
        let home = choose(&rows, PortKind::Udp, None).unwrap().unwrap();
        assert_eq!((home.name.as_str(), home.relay_addr.as_str()), ("node1", "node1:1"));
        let home = choose(&rows, PortKind::Udp, Some("node2")).unwrap().unwrap();
        assert_eq!(home.name, "node2");
        assert!(choose(&rows, PortKind::Shm, None).is_err());
    }
}
