//! `venice nodes`, `resources`, `grants`, `links`: the Monitor Node's tables.

use clap::Args;
use venice_control::{GrantRow, LinkRow, NodeRow, ResourceRow, bandwidth_text};

use venice_fabric::{Position, Topology};

use crate::certificate_text::left;
use crate::rack::{self, Lives, Record, RunDir};
use crate::registry::{self, block_on};
use venice_cli::terminal::{self, Align};

/// `venice nodes | resources | grants | links`
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Print a list of objects; bytes and seconds are numbers
    #[arg(long)]
    pub json: bool,
}

/// `venice nodes`
pub fn nodes(args: &ListArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let addr = rack::monitor_address(monitor)?;
    let mut rows = block_on(async { registry::connect(&addr).await?.nodes().await })?;
    fill_local_pids(&mut rows, &addr);
    rows.sort_by_cached_key(|row| by_name(&row.name));
    show(args, &rows, || nodes_table(&rows))
}

/// `venice resources`
pub fn resources(args: &ListArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let addr = rack::monitor_address(monitor)?;
    let mut rows = block_on(async { registry::connect(&addr).await?.resources().await })?;
    rows.sort_by_cached_key(|row| by_name(&row.node));
    show(args, &rows, || resources_table(&rows))
}

/// `venice grants`
pub fn grants(args: &ListArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let addr = rack::monitor_address(monitor)?;
    let rows = block_on(async { registry::connect(&addr).await?.grants().await })?;
    show(args, &rows, || grants_table(&rows))
}

/// `venice links`
pub fn links(args: &ListArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let addr = rack::monitor_address(monitor)?;
    let mut rows = block_on(async { registry::connect(&addr).await?.links().await })?;
    rows.sort_by_cached_key(|row| (by_name(&row.from), by_name(&row.to), row.port.clone()));
    show(args, &rows, || links_table(&rows))
}

/// Returns a sort key that orders names with numbers: node2 before node10.
fn by_name(name: &str) -> (String, u64, String) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = name[stem.len()..].parse().unwrap_or(0);
    (stem.to_string(), number, name.to_string())
}

fn show<T: serde::Serialize>(
    args: &ListArgs,
    rows: &[T],
    table: impl FnOnce() -> String,
) -> anyhow::Result<i32> {
    if args.json {
        terminal::say_json(rows)?;
    } else {
        terminal::say(table())?;
    }
    Ok(0)
}

/// Fills in the process ids of nodes on this machine, if their Monitor Node is the local rack's.
fn fill_local_pids(rows: &mut [NodeRow], addr: &str) {
    let Ok(dir) = RunDir::locate() else { return };
    let Ok(Some(record)) = Record::load(&dir) else { return };
    if record.monitor.addr != addr {
        return;
    }
    for row in rows {
        let local = record.agents.iter().find(|agent| agent.name == row.name);
        let process = local.and_then(|agent| agent.process).filter(|p| p.is_alive(&dir));
        if let Some(process) = process {
            row.pid = Some(process.pid);
        }
    }
}

fn nodes_table(rows: &[NodeRow]) -> String {
    let columns = [
        ("name", Align::Left),
        ("state", Align::Left),
        ("role", Align::Left),
        ("pid", Align::Right),
        ("lent", Align::Right),
        ("granted", Align::Right),
        ("free", Align::Right),
        ("pressure", Align::Left),
        ("heartbeat", Align::Right),
        ("certificate", Align::Right),
        ("refused", Align::Right),
        ("place", Align::Left),
        ("past kernel", Align::Right),
        ("control", Align::Left),
        ("udp", Align::Left),
    ];
    let line = |row: &NodeRow| {
        vec![
            row.name.clone(),
            state(row),
            if row.role == "peer" { dash() } else { named(&row.role) },
            row.pid.map_or_else(dash, |pid| pid.to_string()),
            terminal::bytes(row.lent_bytes),
            terminal::bytes(row.granted_bytes),
            terminal::bytes(row.free_bytes),
            if row.pressure == "none" { dash() } else { named(&row.pressure) },
            heartbeat(row.last_heartbeat_ms),
            row.certificate_expires_s.map_or_else(dash, left),
            if row.refused == 0 { dash() } else { row.refused.to_string() },
            place(row).unwrap_or_else(dash),
            past_kernel(row).unwrap_or_else(dash),
            row.control_addr.clone(),
            row.udp_addr.clone(),
        ]
    };
    table_without(
        &["role", "pressure", "refused", "place", "past kernel"],
        &columns,
        rows.iter().map(line).collect(),
    )
}

/// Number of datagrams that bypassed the kernel (AF_XDP).
fn past_kernel(row: &NodeRow) -> Option<String> {
    let moved = row.xdp_received? + row.xdp_sent?;
    Some(match row.xdp_lost? {
        0 => moved.to_string(),
        lost => format!("{moved} ({lost} lost)"),
    })
}

/// Position of a node in a network of relays: `1,0,1` in a mesh or torus.
fn place(row: &NodeRow) -> Option<String> {
    let position = Position(row.position?);
    let topology: Topology = row.topology.parse().ok()?;
    let Some([x, y, z]) = topology.coordinates(position) else {
        let is_router = topology.router() == Some(position);
        return Some(if is_router { "router".to_string() } else { position.0.to_string() });
    };
    Some(format!("{x},{y},{z}"))
}

fn resources_table(rows: &[ResourceRow]) -> String {
    let columns = [
        ("node", Align::Left),
        ("kind", Align::Left),
        ("bytes", Align::Right),
        ("free", Align::Right),
        ("slab", Align::Right),
        ("health", Align::Left),
        ("capabilities", Align::Left),
        ("address", Align::Left),
    ];
    let line = |row: &ResourceRow| {
        vec![
            row.node.clone(),
            row.kind.to_string(),
            sized(row.bytes),
            if row.slab_bytes > 0 { terminal::bytes(row.free_bytes) } else { whole(row) },
            sized(row.slab_bytes),
            row.health.clone(),
            named(&row.capabilities.join(",")),
            row.address.clone(),
        ]
    };
    terminal::table(&columns, rows.iter().map(line).collect())
}

/// Free column of a resource that is lent whole.
fn whole(row: &ResourceRow) -> String {
    if row.available { "whole".to_owned() } else { dash() }
}

/// Formats a size; devices may have none.
fn sized(bytes: u64) -> String {
    if bytes == 0 { dash() } else { terminal::bytes(bytes) }
}

/// State of a node: up or down; draining while it is being emptied, then drained.
fn state(row: &NodeRow) -> String {
    let word = match (row.draining, row.state.as_str(), row.granted_bytes) {
        (true, "up", 0) => "drained",
        (true, "up", _) => "draining",
        (_, state, _) => state,
    };
    word.to_owned()
}

fn grants_table(rows: &[GrantRow]) -> String {
    let columns = [
        ("id", Align::Right),
        ("donor", Align::Left),
        ("owner", Align::Left),
        ("recipient", Align::Left),
        ("home", Align::Left),
        ("hops", Align::Right),
        ("kind", Align::Left),
        ("address", Align::Left),
        ("bytes", Align::Right),
        ("bandwidth", Align::Right),
        ("state", Align::Left),
        ("priority", Align::Right),
        ("lease", Align::Right),
        ("age", Align::Right),
        ("busy", Align::Right),
        ("in", Align::Right),
        ("out", Align::Right),
        ("commands", Align::Right),
        ("purpose", Align::Left),
    ];
    let line = |row: &GrantRow| {
        vec![
            row.id.to_string(),
            row.donor.clone(),
            owner(row).unwrap_or_else(dash),
            unclaimed(row).unwrap_or_else(|| row.recipient.clone()),
            named(&row.home),
            row.hops.map_or_else(dash, |hops| hops.to_string()),
            if row.kind.is_device() { row.kind.to_string() } else { dash() },
            named(&row.address),
            sized(row.bytes),
            if row.bandwidth_bps > 0 { bandwidth_text(row.bandwidth_bps) } else { dash() },
            row.preempted_in_s.map_or(row.state.clone(), |s| format!("preempted in {s:.0} s")),
            row.priority.to_string(),
            terminal::seconds(row.lease_s),
            terminal::seconds(row.age_s),
            busy(row.busy_ratio),
            counted_bytes(row.in_bytes),
            counted_bytes(row.out_bytes),
            counted(row.commands),
            row.purpose.clone(),
        ]
    };
    let optional =
        ["home", "hops", "kind", "address", "bandwidth", "busy", "in", "out", "commands"];
    table_without(&optional, &columns, rows.iter().map(line).collect())
}

/// Formats the busy share of a device.
pub(crate) fn busy(ratio: Option<f64>) -> String {
    ratio.map_or_else(dash, |ratio| format!("{:.0} %", ratio * 100.0))
}

/// Formats bytes that a donor may not know.
pub(crate) fn counted_bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(dash, terminal::bytes)
}

/// Formats a count that a donor may not know.
pub(crate) fn counted(count: Option<u64>) -> String {
    count.map_or_else(dash, |count| count.to_string())
}

/// Recipient of a transferred grant that no program of its owner has claimed.
fn unclaimed(row: &GrantRow) -> Option<String> {
    (row.recipient.is_empty() && row.ownership > 1).then(|| "(unclaimed)".to_owned())
}

/// Owner of a grant, as user@node.
fn owner(row: &GrantRow) -> Option<String> {
    let GrantRow { owner_user, owner_node, .. } = row;
    (!owner_user.is_empty()).then(|| format!("{owner_user}@{owner_node}"))
}

fn links_table(rows: &[LinkRow]) -> String {
    let columns = [
        ("from", Align::Left),
        ("to", Align::Left),
        ("port", Align::Left),
        ("state", Align::Left),
        ("latency", Align::Right),
        ("loss", Align::Right),
        ("bandwidth", Align::Right),
        ("traffic", Align::Right),
        ("protection", Align::Left),
        ("emulated", Align::Left),
        ("hops", Align::Right),
        ("via", Align::Left),
        ("reported by", Align::Left),
    ];
    let line = |row: &LinkRow| {
        vec![
            row.from.clone(),
            row.to.clone(),
            row.port.clone(),
            row.state.clone(),
            row.latency_us.map_or_else(dash, |us| format!("{us:.1} µs")),
            row.loss_ratio.map_or_else(dash, |ratio| format!("{:.1} %", ratio * 100.0)),
            row.bandwidth_mbps.map_or_else(dash, |mbps| bandwidth_text((mbps * 1e6) as u64)),
            row.bytes_per_s.map_or_else(dash, |rate| format!("{}/s", terminal::bytes(rate as u64))),
            row.protection.clone(),
            named(&row.emulated),
            row.hops.map_or_else(dash, |hops| hops.to_string()),
            named(&row.via.join(" ")),
            row.reported_by.clone(),
        ]
    };
    let columns_of_some = ["bandwidth", "emulated", "hops", "via"];
    table_without(&columns_of_some, &columns, rows.iter().map(line).collect())
}

/// Lays out a table without the `optional` columns that are empty.
pub(crate) fn table_without(
    optional: &[&str],
    columns: &[(&str, Align)],
    mut rows: Vec<Vec<String>>,
) -> String {
    let has_something = |(at, (title, _)): (usize, &(&str, Align))| {
        !optional.contains(title) || rows.iter().any(|row| row[at] != "-")
    };
    let kept: Vec<bool> = columns.iter().enumerate().map(has_something).collect();
    for row in &mut rows {
        let mut at = 0..;
        row.retain(|_| at.next().is_some_and(|at| kept[at]));
    }
    let shown = columns.iter().zip(&kept).filter(|(_, kept)| **kept);
    let shown: Vec<_> = shown.map(|(column, _)| *column).collect();
    terminal::table(&shown, rows)
}

fn named(name: &str) -> String {
    if name.is_empty() { dash() } else { name.to_string() }
}

fn heartbeat(age_ms: Option<u64>) -> String {
    age_ms.map_or_else(dash, |ms| format!("{} ago", terminal::seconds(ms as f64 / 1000.0)))
}

fn dash() -> String {
    "-".to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_optional_columns_are_omitted() {
        let columns = [("a", Align::Left), ("b", Align::Left), ("c", Align::Left)];
        let row = |cells: [&str; 3]| cells.map(str::to_string).to_vec();
        let table = |rows| table_without(&["b", "c"], &columns, rows);
        let words = |text: String| text.split_whitespace().map(str::to_string).collect::<Vec<_>>();
        assert_eq!(words(table(vec![row(["-", "-", "3"])])), ["A", "C", "-", "3"]);
        let both = table(vec![row(["1", "-", "3"]), row(["1", "2", "-"])]);
        assert_eq!(words(both), ["A", "B", "C", "1", "-", "3", "1", "2", "-"]);
    }

    #[test]
    fn names_sort_by_number() {
        let mut names = ["node10", "gpu", "node2", "node", "node1"];
        names.sort_by_key(|name| by_name(name));
        assert_eq!(names, ["gpu", "node", "node1", "node2", "node10"]);
    }
}
