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

/// What counts of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    name: &'a str,
    free_bytes: u64,
    is_up: bool,
    is_draining: bool,
    /// Nothing is placed on it.
    is_pressed: bool,
}

impl<'a> From<&'a NodeRow> for Candidate<'a> {
    fn from(row: &'a NodeRow) -> Self {
        Candidate {
            name: &row.name,
            free_bytes: row.free_bytes,
            is_up: row.state == "up",
            is_draining: row.draining,
            is_pressed: !matches!(&*row.pressure, "none" | ""),
        }
    }
}

/// The nodes that have room, each with how many slabs.
///
/// # Errors
/// Where there is none: what is in the way of each.
pub(crate) fn find<'a>(
    nodes: impl IntoIterator<Item = Candidate<'a>>,
    having: &BTreeSet<String>,
    chosen: &[String],
) -> Result<Vec<(String, u64)>, String> {
    let mut others = Vec::new();
    let mut hindered: BTreeMap<Hindrance, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        match hindrance(node, having, chosen) {
            None => others.push((node.name.to_owned(), node.free_bytes / SLAB_BYTES)),
            Some(why) => hindered.entry(why).or_default().push(node.name),
        }
    }
    let told = || hindered.iter().map(|(why, names)| why.told(names)).collect::<Vec<_>>();
    if others.is_empty() { Err(told().join("; ")) } else { Ok(others) }
}

fn hindrance(
    node: Candidate<'_>,
    having: &BTreeSet<String>,
    chosen: &[String],
) -> Option<Hindrance> {
    let is_chosen = chosen.is_empty() || chosen.iter().any(|name| name == node.name);
    let hindrances = [
        (having.contains(node.name), Hindrance::HasOne),
        (!is_chosen, Hindrance::NotChosen),
        (!node.is_up, Hindrance::Down),
        (node.is_draining, Hindrance::Draining),
        (node.is_pressed, Hindrance::Pressed),
        (node.free_bytes < SLAB_BYTES, Hindrance::Full),
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

    fn well(name: &str) -> Candidate<'_> {
        let free_bytes = 4 * SLAB_BYTES;
        Candidate { name, free_bytes, is_up: true, is_draining: false, is_pressed: false }
    }

    #[test]
    fn what_is_in_the_way_of_each_node_is_told() {
        let mut nodes = vec![
            well("node1"),
            Candidate { is_draining: true, ..well("node2") },
            Candidate { is_up: false, ..well("node3") },
            Candidate { free_bytes: SLAB_BYTES - 1, ..well("node4") },
            Candidate { free_bytes: 0, ..well("node5") },
            Candidate { is_pressed: true, ..well("node6") },
        ];
        let having = BTreeSet::from(["node1".to_owned()]);
        let why = find(nodes.iter().copied(), &having, &[]).unwrap_err();
        assert_eq!(
            why,
            "node1 has one already; node3 is down; node2 is being drained; node6 is short of memory \
             itself; node4, node5 have no room"
        );
        nodes.push(well("node7"));
        let found = find(nodes.iter().copied(), &having, &[]);
        assert_eq!(found, Ok(vec![("node7".to_owned(), 4)]));
        let why = find([well("node7")], &having, &["node1".to_owned()]).unwrap_err();
        assert_eq!(why, "node7 is none of the donors asked for");
        let names: Vec<String> = (0..9).map(|n| format!("n{n}")).collect();
        let many = names.iter().map(|name| Candidate { is_draining: true, ..well(name) });
        let why = find(many, &having, &[]).unwrap_err();
        assert_eq!(why, "n0, n1, n2, n3, n4, n5 and 3 more are being drained");
    }
}
