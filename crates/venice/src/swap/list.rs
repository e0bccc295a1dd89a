//! `venice swap list`: the swap devices of this machine.

use std::fs;

use venice_recipient::Copies;

use super::ListArgs;
use super::control::{Look, look};
use super::plan::{names, process_name};
use super::status::{DEAD, SILENT, Status};
use crate::rack::RunDir;
use venice_cli::terminal::{self, Align};

/// `venice swap list`
pub fn execute(args: &ListArgs) -> anyhow::Result<i32> {
    let dir = RunDir::locate()?;
    dir.check_readable()?;
    let rows: Vec<Status> = names(&dir).iter().filter_map(|name| of_device(&dir, name)).collect();
    if args.json {
        terminal::say_json(&rows)?;
    } else {
        terminal::say(table(&rows))?;
    }
    Ok(0)
}

/// Returns the status of the device `name`: the server's answer, or the file it last wrote.
pub fn of_device(dir: &RunDir, name: &str) -> Option<Status> {
    let folder = dir.process_dir(&process_name(name));
    let state = match look(&folder) {
        Look::Serves(status) => return Some(*status),
        Look::Silent => SILENT,
        Look::Dead => DEAD,
    };
    let text = fs::read_to_string(folder.join("ready.json")).ok()?;
    let status: Status = serde_json::from_str(&text).ok()?;
    let used_bytes = venice_swap::used_bytes(&status.device).unwrap_or(0);
    Some(Status { state: state.into(), used_bytes, ..status })
}

fn table(rows: &[Status]) -> String {
    let columns = [
        ("name", Align::Left),
        ("device", Align::Left),
        ("state", Align::Left),
        ("size", Align::Right),
        ("used", Align::Right),
        ("far", Align::Right),
        ("port", Align::Left),
        ("donors", Align::Left),
        ("copies", Align::Left),
        ("queues", Align::Right),
        ("read", Align::Right),
        ("write", Align::Right),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("lost", Align::Left),
    ];
    let any_lost = rows.iter().any(|row| !row.copies.lost_donors.is_empty());
    let shown = if any_lost { columns.len() } else { columns.len() - 1 };
    let cells = rows.iter().map(|row| row_cells(row)[..shown].to_vec()).collect();
    terminal::table(&columns[..shown], cells)
}

fn row_cells(row: &Status) -> [String; 15] {
    let micros = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1} µs"));
    let rate = |bytes: u64| format!("{}/s", terminal::bytes(bytes));
    [
        row.name.clone(),
        row.device.display().to_string(),
        row.state.clone(),
        terminal::bytes(row.size_bytes),
        terminal::bytes(row.used_bytes),
        terminal::bytes(row.far_bytes),
        row.port.to_string(),
        row.donors.join(","),
        copies(&row.copies),
        row.queues.to_string(),
        rate(row.read_bytes_per_s),
        rate(row.written_bytes_per_s),
        micros(row.request_p50_us),
        micros(row.request_p99_us),
        row.copies.lost_donors.join(","),
    ]
}

/// Describes how many copies there are, and what is missing.
fn copies(of: &Copies) -> String {
    match (of.lost_slabs, of.short_slabs) {
        (0, 0) => of.copies.to_string(),
        (0, _) => format!("{} {}", of.copies, of.progress()),
        (lost, _) => format!("{}, {lost} of {} slabs lost", of.copies, of.slabs),
    }
}
