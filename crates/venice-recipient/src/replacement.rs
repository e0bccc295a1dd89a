//! Re-placement: the nodes that can lend for what a slab lacks, and the reasons against the others.

use std::collections::{BTreeMap, BTreeSet};

use venice_control::NodeRow;
use venice_wire::SLAB_BYTES;

/// Most names listed for one reason.
const MOST_NAMES: usize = 6;

/// The reason against a node, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Obstacle {
    HasOne,
    NotChosen,
    Down,
    Unreachable,
    Draining,
    Pressed,
    Full,
}

/// The relevant state of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    name: &'a str,
    free_bytes: u64,
    is_up: bool,
    /// True if it reports, and the Monitor Node cannot call it.
    is_unreachable: bool,
    is_draining: bool,
    /// True under memory pressure: it gets no new grants.
    is_pressed: bool,
    /// True if the caller has seen it die: the Monitor Node may not have noticed yet.
    is_dead: bool,
}

impl Candidate<'_> {
    /// Adds what the caller knows of dead nodes. One that has room again was restarted.
    pub(crate) fn among(self, dead: &BTreeSet<String>) -> Self {
        Candidate { is_dead: dead.contains(self.name), ..self }
    }
}

impl<'a> From<&'a NodeRow> for Candidate<'a> {
    fn from(row: &'a NodeRow) -> Self {
        Candidate {
            name: &row.name,
            free_bytes: row.free_bytes,
            is_up: row.reports(),
            is_unreachable: row.state == "unreachable",
            is_draining: row.draining,
            is_pressed: !matches!(&*row.pressure, "none" | ""),
            is_dead: false,
        }
    }
}

/// Returns the nodes with room, each with its slabs.
///
/// # Errors
/// If there is none: the reasons against each.
pub(crate) fn find<'a>(
    nodes: impl IntoIterator<Item = Candidate<'a>>,
    having: &BTreeSet<String>,
    chosen: &[String],
) -> Result<Vec<(String, u64)>, String> {
    let mut others = Vec::new();
    let mut excluded: BTreeMap<Obstacle, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        match obstacle(node, having, chosen) {
            None => others.push((node.name.to_owned(), node.free_bytes / SLAB_BYTES)),
            Some(why) => excluded.entry(why).or_default().push(node.name),
        }
    }
    let reasons = || excluded.iter().map(|(why, names)| why.reasons(names)).collect::<Vec<_>>();
    if others.is_empty() { Err(reasons().join("; ")) } else { Ok(others) }
}

fn obstacle(node: Candidate<'_>, having: &BTreeSet<String>, chosen: &[String]) -> Option<Obstacle> {
    let is_chosen = chosen.is_empty() || chosen.iter().any(|name| name == node.name);
    let is_full = node.free_bytes < SLAB_BYTES;
    let obstacles = [
        (having.contains(node.name), Obstacle::HasOne),
        (!is_chosen, Obstacle::NotChosen),
        (!node.is_up || node.is_dead && is_full, Obstacle::Down),
        (node.is_unreachable, Obstacle::Unreachable),
        (node.is_draining, Obstacle::Draining),
        (node.is_pressed, Obstacle::Pressed),
        (is_full, Obstacle::Full),
    ];
    obstacles.into_iter().find_map(|(is_so, why)| is_so.then_some(why))
}

impl Obstacle {
    fn reasons(self, names: &[&str]) -> String {
        let what = match (self, names.len()) {
            (Obstacle::HasOne, 1) => "has one already",
            (Obstacle::HasOne, _) => "have one already",
            (Obstacle::NotChosen, 1) => "is not among the donors named",
            (Obstacle::NotChosen, _) => "are not among the donors named",
            (Obstacle::Down, 1) => "is down",
            (Obstacle::Down, _) => "are down",
            (Obstacle::Unreachable, _) => "cannot be reached by the Monitor Node",
            (Obstacle::Draining, 1) => "is being drained",
            (Obstacle::Draining, _) => "are being drained",
            (Obstacle::Pressed, 1) => "is short of memory itself",
            (Obstacle::Pressed, _) => "are short of memory themselves",
            (Obstacle::Full, 1) => "has no room",
            (Obstacle::Full, _) => "have no room",
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
        Candidate {
            name,
            free_bytes,
            is_up: true,
            is_unreachable: false,
            is_draining: false,
            is_pressed: false,
            is_dead: false,
        }
    }

    #[test]
    fn error_lists_obstacle_of_each_node() {
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
        assert_eq!(why, "node7 is not among the donors named");
        let dead = BTreeSet::from(["node8".to_owned()]);
        let killed = Candidate { free_bytes: 0, ..well("node8") }.among(&dead);
        assert_eq!(find([killed], &having, &[]).unwrap_err(), "node8 is down");
        assert!(find([well("node8").among(&dead)], &having, &[]).is_ok(), "it was restarted");
        let names: Vec<String> = (0..9).map(|n| format!("n{n}")).collect();
        let many = names.iter().map(|name| Candidate { is_draining: true, ..well(name) });
        let why = find(many, &having, &[]).unwrap_err();
        assert_eq!(why, "n0, n1, n2, n3, n4, n5 and 3 more are being drained");
    }
}
