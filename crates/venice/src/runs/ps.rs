//! `venice ps`: the programs that run on borrowed memory.

use clap::Args;
use venice_recipient::runs::{RunRow, total_bytes};

use super::registry;
use crate::rack::RunDir;
use venice_cli::terminal::{self, Align};

/// `venice ps`
#[derive(Args, Debug)]
pub struct PsArgs {
    /// Print a list of objects; bytes, seconds and microseconds are numbers
    #[arg(long)]
    json: bool,
}

/// Lists the runs.
pub fn execute(args: &PsArgs) -> anyhow::Result<i32> {
    let rows = registry::rows(&RunDir::locate()?)?;
    if args.json {
        terminal::say_json(&rows)?;
    } else {
        terminal::say(table(&rows))?;
    }
    Ok(0)
}

fn table(rows: &[RunRow]) -> String {
    let columns = [
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
    let micros = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1} µs"));
    let line = |row: &RunRow| {
        vec![
            row.run.to_string(),
            row.pid.to_string(),
            row.mode.clone(),
            terminal::bytes(row.local_bytes),
            terminal::bytes(row.resident_bytes),
            terminal::bytes(total_bytes(&row.unmanaged)),
            terminal::bytes(row.remote_bytes),
            terminal::bytes(row.borrowed_bytes),
            row.replicas.clone(),
            format!("{:.0}", row.faults_per_s),
            micros(row.fault_p50_us),
            micros(row.fault_p99_us),
            terminal::seconds(row.age_s),
            donors(row),
            row.command.clone(),
        ]
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
    if notes.is_empty() { table } else { format!("{table}\n{notes}") }
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
