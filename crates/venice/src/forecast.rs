//! `venice forecast`: what workloads are foretold to need, and what is kept for them.

use venice_control::{ForecastRow, ResourceForecast};

use crate::listing::ListArgs;
use crate::rack;
use crate::registry::{self, block_on};
use crate::terminal::{self, Align};

/// Text below `venice forecast --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice forecast
  venice forecast --json | jq '.[] | {user, purpose, memory_bytes, reserved_bytes}'

A workload is what a user has for one purpose (`venice grants`). The Monitor Node looks every five minutes
what each has, and foretells from the last day the most it will have in the hour that begins
(`venice monitor --sample-s, --observe, --window`): memory, and with --json accelerators, network cards
and storage, each from all of them. Persistence is the peak of the hour before: what one would say who
foretells nothing. Off is by how much each was wrong so far, of memory, short how many hours had a higher
peak than it said. Kept is free memory that others do not get (`venice monitor --reserve-ahead`).
A Monitor Node that has been started anew knows nothing yet.";

/// `venice forecast`
pub fn execute(args: &ListArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let addr = rack::monitor_address(monitor)?;
    let rows = block_on(async { registry::connect(&addr).await?.forecasts().await })?;
    match args.json {
        true => terminal::say_json(&rows)?,
        false => terminal::say(table(&rows))?,
    }
    Ok(0)
}

fn table(rows: &[ForecastRow]) -> String {
    let columns = [
        ("user", Align::Left),
        ("purpose", Align::Left),
        ("in use", Align::Right),
        ("foretold", Align::Right),
        ("persistence", Align::Right),
        ("kept", Align::Right),
        ("off", Align::Right),
        ("persistence off", Align::Right),
        ("short", Align::Right),
        ("persistence short", Align::Right),
    ];
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), terminal::bytes);
    let line = |row: &ForecastRow| {
        let ResourceForecast { in_use, forecast, persistence } = row.memory_bytes;
        let short = |short: u64| format!("{short}/{}", row.windows);
        vec![
            row.user.clone(),
            row.purpose.clone(),
            terminal::bytes(in_use),
            bytes(foretold),
            bytes(persistence),
            terminal::bytes(row.reserved_bytes),
            bytes(row.mean_error_bytes),
            bytes(row.persistence_mean_error_bytes),
            short(row.under_windows),
            short(row.persistence_under_windows),
        ]
    };
    terminal::table(&columns, rows.iter().map(line).collect())
}
