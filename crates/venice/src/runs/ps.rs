//! `venice ps`: the programs that run on borrowed memory, and the devices granted to programs.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use anyhow::bail;
use clap::Args;
use venice_control::GrantRow;
use venice_recipient::runs::{RunDevice, RunRow, total_bytes};

use super::{exposition, registry};
use crate::listing;
use crate::registry::{block_on, connect};
use venice_cli::terminal::{self, Align, remark};

/// `venice ps`
#[derive(Args, Debug)]
pub struct PsArgs {
    /// List the programs of all users, with their users (root only)
    #[arg(long)]
    all: bool,
    /// Print a list of objects; bytes, seconds and microseconds are numbers
    #[arg(long)]
    json: bool,
    /// Print metrics in Prometheus' text format, for node_exporter's textfile collector
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

/// Lists the runs.
pub fn execute(args: &PsArgs) -> anyhow::Result<i32> {
    let mut rows = if args.all { rows_of_all()? } else { registry::rows(&registry::own()?)? };
    fill_usage(&mut rows);
    fill_users(&mut rows);
    if args.json {
        terminal::say_json(&rows)?;
    } else if args.prometheus {
        terminal::say(exposition::text(&rows).trim_end())?;
    } else {
        terminal::say(table(&rows, args.all))?;
    }
    Ok(0)
}

/// Returns the runs that this user may list, those of all users for root; none where they cannot be
/// listed.
pub fn rows_of_machine() -> Vec<RunRow> {
    let rows = match rustix::process::geteuid().is_root() {
        true => rows_of_all(),
        false => registry::own().and_then(|dir| registry::rows(&dir)),
    };
    let mut rows: Vec<RunRow> = rows.unwrap_or_default();
    fill_users(&mut rows);
    rows
}

fn fill_users(rows: &mut [RunRow]) {
    for row in rows {
        row.user = user_of(row.run);
    }
}

fn rows_of_all() -> anyhow::Result<Vec<RunRow>> {
    if !rustix::process::geteuid().is_root() {
        bail!("--all needs root: the programs of other users are theirs");
    }
    let mut rows = Vec::new();
    for dir in registry::controlled()? {
        rows.extend(registry::rows(&dir)?);
    }
    rows.sort_by_key(|row| row.run);
    Ok(rows)
}

/// Returns the name of a process's user, or the number of one without a name; empty if it has ended.
fn user_of(pid: u32) -> String {
    let Ok(found) = std::fs::metadata(format!("/proc/{pid}")) else { return String::new() };
    let user = nix::unistd::User::from_uid(found.uid().into()).ok().flatten();
    user.map_or_else(|| found.uid().to_string(), |user| user.name)
}

/// Fills in the usage of devices, as their Monitor Nodes have it. One that does not answer is
/// reported on stderr.
fn fill_usage(rows: &mut [RunRow]) {
    let mut granted: BTreeMap<String, Vec<GrantRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.devices.is_empty()) {
        if granted.contains_key(&row.monitor) {
            continue;
        }
        let asked = block_on(async { connect(&row.monitor).await?.grants().await });
        let grants = asked.unwrap_or_else(|error| {
            remark(format!("venice: the usage of devices is unknown: {error:#}"));
            Vec::new()
        });
        granted.insert(row.monitor.clone(), grants);
    }
    for row in rows {
        let Some(grants) = granted.get(&row.monitor) else { continue };
        for device in &mut row.devices {
            let is_it = |it: &&GrantRow| it.id == device.grant && it.donor == device.node;
            let Some(grant) = grants.iter().find(is_it) else { continue };
            device.busy_ratio = grant.busy_ratio;
            device.in_bytes = grant.in_bytes;
            device.out_bytes = grant.out_bytes;
            device.commands = grant.commands;
        }
    }
}

fn devices_table(rows: &[RunRow]) -> String {
    let columns = [
        ("run", Align::Right),
        ("grant", Align::Right),
        ("node", Align::Left),
        ("device", Align::Left),
        ("busy", Align::Right),
        ("in", Align::Right),
        ("out", Align::Right),
        ("commands", Align::Right),
    ];
    let line = |row: &RunRow, device: &RunDevice| {
        vec![
            row.run.to_string(),
            device.grant.to_string(),
            device.node.clone(),
            format!("{}:{}", device.kind, device.address),
            listing::busy(device.busy_ratio),
            listing::counted_bytes(device.in_bytes),
            listing::counted_bytes(device.out_bytes),
            listing::counted(device.commands),
        ]
    };
    let lines = rows.iter().flat_map(|row| row.devices.iter().map(move |it| line(row, it)));
    terminal::table(&columns, lines.collect())
}

fn table(rows: &[RunRow], with_users: bool) -> String {
    let mut columns = vec![
        ("run", Align::Right),
        ("pid", Align::Right),
        ("mode", Align::Left),
        ("local", Align::Right),
        ("resident", Align::Right),
        ("unmanaged", Align::Right),
        ("remote", Align::Right),
        ("borrowed", Align::Right),
        ("replicas", Align::Left),
        ("faults/s", Align::Right),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("age", Align::Right),
        ("donors", Align::Left),
        ("command", Align::Left),
    ];
    if with_users {
        columns.insert(0, ("user", Align::Left));
    }
    let has_budget = |row: &RunRow, bytes| match row.mode.as_str() {
        "devices" => "-".to_owned(),
        _ => terminal::bytes(bytes),
    };
    let micros = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1} µs"));
    let line = |row: &RunRow| {
        let user = with_users.then(|| row.user.clone());
        let cells = [
            row.run.to_string(),
            row.pid.to_string(),
            row.mode.clone(),
            has_budget(row, row.local_bytes),
            terminal::bytes(row.resident_bytes),
            terminal::bytes(total_bytes(&row.unmanaged)),
            has_budget(row, row.remote_bytes),
            has_budget(row, row.borrowed_bytes),
            row.replicas.clone(),
            format!("{:.0}", row.faults_per_s),
            micros(row.fault_p50_us),
            micros(row.fault_p99_us),
            terminal::seconds(row.age_s),
            donors(row),
            row.command.clone(),
        ];
        user.into_iter().chain(cells).collect()
    };
    let table = terminal::table(&columns, rows.iter().map(line).collect());
    let missing = rows.iter().filter_map(|row| Some((row.run, row.missing.as_ref()?)));
    let missing = missing.map(|(run, what)| format!("\nrun {run}: {what}"));
    let unmanaged = rows
        .iter()
        .flat_map(|row| row.unmanaged.iter().map(move |part| format!("\nrun {}: {part}", row.run)));
    let bound = rows.iter().filter_map(|row| Some((row.run, row.refault_bound.as_ref()?)));
    let bound = bound.map(|(run, bound)| format!("\nrun {run}: {bound}"));
    let notes: String = missing.chain(unmanaged).chain(bound).collect();
    let table = if notes.is_empty() { table } else { format!("{table}\n{notes}") };
    match rows.iter().any(|row| !row.devices.is_empty()) {
        true => format!("{table}\n\n{}", devices_table(rows)),
        false => table,
    }
}

/// Donor names; lost, transferred and leaving ones are marked.
fn donors(row: &RunRow) -> String {
    let mark = |name: &String| match row.lost_donors.contains(name) {
        true if row.transferred_donors.contains(name) => format!("{name}(transferred)"),
        true => format!("{name}(lost)"),
        false if row.leaving_donors.contains(name) => format!("{name}(leaving)"),
        false => name.clone(),
    };
    row.donors.iter().map(mark).collect::<Vec<_>>().join(",")
}
