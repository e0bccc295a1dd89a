//! Which other nodes can lend for what a slab lacks, and why the others cannot.

use std::collections::{BTreeMap, BTreeSet};

use venice_control::NodeRow;
use venice_wire::SLAB_BYTES;

/// Most names told for one reason.
const MOST_NAMES: usize = 6;

/// What keeps a node from it. In the order in which they are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hindrance {
    HasOne,
    NotChosen,
    Down,
    Draining,
    Pressed,
    Full,
}

/// The nodes that have room, each with how many slabs.
///
/// # Errors
/// Where there is none: what is in the way of each.
pub(crate) fn find(
    rows: &[NodeRow],
    having: &BTreeSet<String>,
    chosen: &[String],
) -> Result<Vec<(String, u64)>, String> {
    let mut others = Vec::new();
    let mut hindered: BTreeMap<Hindrance, Vec<&str>> = BTreeMap::new();
    for row in rows {
        match hindrance(row, having, chosen) {
            None => others.push((row.name.clone(), row.free_bytes / SLAB_BYTES)),
            Some(why) => hindered.entry(why).or_default().push(&row.name),
        }
    }
    let told = || hindered.iter().map(|(why, names)| why.told(names)).collect::<Vec<_>>();
    if others.is_empty() { Err(told().join("; ")) } else { Ok(others) }
}

fn hindrance(row: &NodeRow, having: &BTreeSet<String>, chosen: &[String]) -> Option<Hindrance> {
    let hindrances = [
        (having.contains(&row.name), Hindrance::HasOne),
        (!chosen.is_empty() && !chosen.contains(&row.name), Hindrance::NotChosen),
        (row.state != "up", Hindrance::Down),
        (row.draining, Hindrance::Draining),
        (!matches!(&*row.pressure, "none" | ""), Hindrance::Pressed),
        (row.free_bytes < SLAB_BYTES, Hindrance::Full),
    ];
    hindrances.into_iter().find_map(|(is_so, why)| is_so.then_some(why))
}

impl Hindrance {
    fn told(self, names: &[&str]) -> String {
        let what = match (self, names.len()) {
            (Hindrance::HasOne, 1) => "has one already",
            (Hindrance::HasOne, _) => "have one already",
            (Hindrance::NotChosen, 1) => "is none of the donors asked for",
            (Hindrance::NotChosen, _) => "are none of the donors asked for",
            (Hindrance::Down, 1) => "is down",
            (Hindrance::Down, _) => "are down",
            (Hindrance::Draining, 1) => "is being drained",
            (Hindrance::Draining, _) => "are being drained",
            (Hindrance::Pressed, 1) => "is short of memory itself",
            (Hindrance::Pressed, _) => "are short of memory themselves",
            (Hindrance::Full, 1) => "has no room",
            (Hindrance::Full, _) => "have no room",
        };
        let shown = names[..names.len().min(MOST_NAMES)].join(", ");
        match names.len().saturating_sub(MOST_NAMES) {
            0 => format!("{shown} {what}"),
            more => format!("{shown} and {more} more {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, change: impl Fn(&mut NodeRow)) -> NodeRow {
        let mut row = NodeRow {
            name: name.to_owned(),
            node_id: 0,
            pid: None,
            state: "up".to_owned(),
            lent_bytes: 4 * SLAB_BYTES,
            free_bytes: 4 * SLAB_BYTES,
            granted_bytes: 0,
            epoch: 0,
            control_addr: String::new(),
            udp_addr: String::new(),
            shm_socket: String::new(),
            last_heartbeat_ms: None,
            protection: String::new(),
            replayed: 0,
            forged: 0,
            unsealed: 0,
            unknown_key: 0,
            xdp_received: None,
            xdp_sent: None,
            xdp_lost: None,
            topology: String::new(),
            position: None,
            relay_addr: String::new(),
            link: String::new(),
            role: String::new(),
            pressure: "none".to_owned(),
            available_bytes: None,
            stall_ratio: None,
            draining: false,
            certificate_expires_s: None,
            refused: 0,
        };
        change(&mut row);
        row
    }

    #[test]
    fn what_is_in_the_way_of_each_node_is_told() {
        let mut rows = vec![
            row("node1", |_| {}),
            row("node2", |row| row.draining = true),
            row("node3", |row| row.state = "down".into()),
            row("node4", |row| row.free_bytes = SLAB_BYTES - 1),
            row("node5", |row| row.free_bytes = 0),
            row("node6", |row| row.pressure = "low".into()),
        ];
        let having = BTreeSet::from(["node1".to_owned()]);
        let why = find(&rows, &having, &[]).unwrap_err();
        assert_eq!(
            why,
            "node1 has one already; node3 is down; node2 is being drained; node6 is short of memory \
             itself; node4, node5 have no room"
        );
        rows.push(row("node7", |_| {}));
        assert_eq!(find(&rows, &having, &[]), Ok(vec![("node7".to_owned(), 4)]));
        let why = find(&rows[6..], &having, &["node1".to_owned()]).unwrap_err();
        assert_eq!(why, "node7 is none of the donors asked for");
        let many: Vec<_> =
            (0..9).map(|n| row(&format!("n{n}"), |row| row.draining = true)).collect();
        let why = find(&many, &having, &[]).unwrap_err();
        assert_eq!(why, "n0, n1, n2, n3, n4, n5 and 3 more are being drained");
    }
}
