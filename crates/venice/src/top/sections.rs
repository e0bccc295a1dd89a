//! The tables of a frame, for the screen and as plain text.

use venice_control::{EventRow, GrantRow, NodeRow, QueueRow};
use venice_recipient::runs::RunRow;

use super::data::Snapshot;
use crate::events;
use venice_cli::terminal::{self, Align};

/// The order of grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    #[default]
    Size,
    Age,
    Owner,
    Donor,
}

impl Order {
    pub fn next(self) -> Self {
        match self {
            Self::Size => Self::Age,
            Self::Age => Self::Owner,
            Self::Owner => Self::Donor,
            Self::Donor => Self::Size,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Age => "age",
            Self::Owner => "owner",
            Self::Donor => "donor",
        }
    }
}

/// The choices of the user.
#[derive(Debug, Clone, Default)]
pub struct View {
    pub order: Order,
    /// Grants scrolled past.
    pub skip: usize,
    pub is_paused: bool,
    pub is_helping: bool,
}

/// A table with a title.
pub struct Section {
    pub title: String,
    pub columns: Vec<(&'static str, Align)>,
    pub rows: Vec<Line>,
}

/// A line, and if it needs attention.
pub struct Line {
    pub cells: Vec<String>,
    pub is_alarming: bool,
}

impl Line {
    fn of(cells: Vec<String>) -> Self {
        Self { cells, is_alarming: false }
    }
}

/// Formats the first line: sums over the rack.
pub fn summary(snapshot: &Snapshot) -> String {
    let Snapshot { monitor, nodes, grants, queue, .. } = snapshot;
    let up = nodes.iter().filter(|row| row.state == "up").count();
    let sum = |of: fn(&NodeRow) -> u64| terminal::bytes(nodes.iter().map(of).sum());
    format!(
        "{}  {monitor}  nodes {up} up of {}, lent {}, granted {}, free {}, grants {}, queued {}",
        events::time_text(snapshot.time_ms),
        nodes.len(),
        sum(|row| row.lent_bytes),
        sum(|row| row.granted_bytes),
        sum(|row| row.free_bytes),
        grants.len(),
        queue.len(),
    )
}

/// Returns the sections, in the order of the screen. Those of programs and of the queue may be
/// empty.
pub fn sections(snapshot: &Snapshot, view: &View) -> [Section; 5] {
    let Snapshot { nodes: of_nodes, programs: of_programs, queue: of_queue, .. } = snapshot;
    [
        nodes(of_nodes),
        programs(of_programs),
        grants(snapshot.grants.clone(), view),
        queue(of_queue),
        recent(snapshot.events.iter()),
    ]
}

/// Formats a frame as plain text.
pub fn plain(snapshot: &Snapshot, view: &View) -> String {
    let mut text = summary(snapshot);
    for Section { title, columns, rows } in sections(snapshot, view) {
        if !rows.is_empty() {
            let rows = rows.into_iter().map(|line| line.cells).collect();
            text.push_str(&format!("\n\n{title}\n{}", terminal::table(&columns, rows)));
        }
    }
    text
}

fn nodes(rows: &[NodeRow]) -> Section {
    let line = |row: &NodeRow| {
        let used = row.granted_bytes as f64 / row.lent_bytes.max(1) as f64;
        let state = if row.draining { "draining" } else { &row.state };
        let heartbeat = row.last_heartbeat_ms.map(|ms| terminal::seconds(ms as f64 / 1e3));
        let available = row.available_bytes.map(terminal::bytes);
        Line {
            cells: vec![
                row.name.clone(),
                state.to_owned(),
                terminal::bytes(row.lent_bytes),
                terminal::bytes(row.granted_bytes),
                terminal::bytes(row.free_bytes),
                format!("{:.0} %", used * 100.0),
                row.pressure.clone(),
                available.unwrap_or_else(dash),
                heartbeat.unwrap_or_else(dash),
            ],
            is_alarming: !matches!(row.state.as_str(), "up" | "stopped") || row.pressure == "high",
        }
    };
    Section {
        title: "NODES".to_owned(),
        columns: vec![
            ("name", Align::Left),
            ("state", Align::Left),
            ("lent", Align::Right),
            ("granted", Align::Right),
            ("free", Align::Right),
            ("used", Align::Right),
            ("pressure", Align::Left),
            ("available", Align::Right),
            ("heartbeat", Align::Right),
        ],
        rows: rows.iter().map(line).collect(),
    }
}

fn programs(rows: &[RunRow]) -> Section {
    let micros = |us: Option<f64>| us.map_or_else(dash, |us| format!("{us:.1} µs"));
    let line = |row: &RunRow| Line {
        cells: vec![
            row.run.to_string(),
            row.mode.clone(),
            terminal::bytes(row.local_bytes),
            terminal::bytes(row.resident_bytes),
            terminal::bytes(row.remote_bytes),
            format!("{:.0}", row.faults_per_s),
            micros(row.fault_p99_us),
            row.replicas.clone(),
            row.command.clone(),
        ],
        is_alarming: row.short_slabs > 0 || !row.lost_donors.is_empty(),
    };
    Section {
        title: "PROGRAMS OF THIS MACHINE".to_owned(),
        columns: vec![
            ("run", Align::Right),
            ("mode", Align::Left),
            ("local", Align::Right),
            ("resident", Align::Right),
            ("remote", Align::Right),
            ("faults/s", Align::Right),
            ("p99", Align::Right),
            ("replicas", Align::Left),
            ("command", Align::Left),
        ],
        rows: rows.iter().map(line).collect(),
    }
}

fn grants(mut rows: Vec<GrantRow>, view: &View) -> Section {
    match view.order {
        Order::Size => rows.sort_by_key(|row| std::cmp::Reverse(row.bytes)),
        Order::Age => rows.sort_by(|a, b| a.age_s.total_cmp(&b.age_s)),
        Order::Owner => rows.sort_by_cached_key(|row| row.owner_user.clone()),
        Order::Donor => rows.sort_by_cached_key(|row| (row.donor.len(), row.donor.clone())),
    }
    let line = |row: &GrantRow| {
        let what = match row.address.as_str() {
            "" => row.kind.to_string(),
            address => format!("{}:{address}", row.kind),
        };
        let owner = match row.owner_user.as_str() {
            "" => dash(),
            user => format!("{user}@{}", row.owner_node),
        };
        Line {
            cells: vec![
                row.id.to_string(),
                row.donor.clone(),
                owner,
                what,
                terminal::bytes(row.bytes),
                row.preempted_in_s.map_or(row.state.clone(), |s| format!("preempted in {s:.0} s")),
                terminal::seconds(row.age_s),
                row.recipient.clone(),
                row.purpose.clone(),
            ],
            is_alarming: row.state == "lost" || row.preempted_in_s.is_some(),
        }
    };
    Section {
        title: format!("GRANTS, by {}", view.order.name()),
        columns: vec![
            ("id", Align::Right),
            ("donor", Align::Left),
            ("owner", Align::Left),
            ("kind", Align::Left),
            ("bytes", Align::Right),
            ("state", Align::Left),
            ("age", Align::Right),
            ("recipient", Align::Left),
            ("purpose", Align::Left),
        ],
        rows: rows.iter().skip(view.skip.min(rows.len().saturating_sub(1))).map(line).collect(),
    }
}

fn queue(rows: &[QueueRow]) -> Section {
    let line = |row: &QueueRow| {
        let wants = row.wants.iter().map(|want| want.want().to_string());
        Line::of(vec![
            row.rank.to_string(),
            format!("{}@{}", row.owner_user, row.owner_node),
            wants.collect::<Vec<_>>().join(" + "),
            row.priority.to_string(),
            terminal::seconds(row.waited_s),
            terminal::seconds(row.left_s),
            row.needs.clone(),
            row.purpose.clone(),
        ])
    };
    Section {
        title: "QUEUE".to_owned(),
        columns: vec![
            ("rank", Align::Right),
            ("owner", Align::Left),
            ("wants", Align::Left),
            ("priority", Align::Right),
            ("waited", Align::Right),
            ("left", Align::Right),
            ("needs", Align::Left),
            ("purpose", Align::Left),
        ],
        rows: rows.iter().map(line).collect(),
    }
}

fn recent<'a>(rows: impl DoubleEndedIterator<Item = &'a EventRow>) -> Section {
    let line = |row: &EventRow| Line {
        cells: vec![
            events::time_text(row.time_ms),
            row.kind.clone(),
            if row.node.is_empty() { dash() } else { row.node.clone() },
            match events::owner(row).as_str() {
                "" => dash(),
                owner => owner.to_owned(),
            },
            events::what(row),
        ],
        is_alarming: matches!(row.kind.as_str(), "node-down" | "lost" | "refused"),
    };
    Section {
        title: "EVENTS, the newest first".to_owned(),
        columns: vec![
            ("time", Align::Left),
            ("event", Align::Left),
            ("node", Align::Left),
            ("owner", Align::Left),
            ("what", Align::Left),
        ],
        rows: rows.rev().map(line).collect(),
    }
}

fn dash() -> String {
    "-".to_owned()
}
