//! `venice forecast`: forecast needs of workloads and the memory reserved for them.

use venice_control::{ForecastRow, ResourceForecast, ResourceKind};

use crate::listing::ListArgs;
use crate::rack;
use crate::registry::{self, block_on};
use venice_cli::terminal::{self, Align};

/// Text below `venice forecast --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice forecast
  venice forecast --json | jq '.[] | {user, purpose, resources, reserved_bytes}'

A workload is all grants of one user for one purpose (`venice grants`). Every five minutes the Monitor
Node samples each workload's use; from the last day's samples it forecasts the peak of the coming hour
(`venice monitor --sample-s, --observe, --window`): of memory, and with --json of every kind.
PERSISTENCE is the naive forecast: the peak of the previous hour. MEAN-ERR is the
mean forecast error of memory so far; UNDER counts the hours whose peak was above the forecast.
RESERVED is free memory kept for the workload (`venice monitor --reserve-ahead`). A restarted Monitor
Node has no forecasts yet.";

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
        ("forecast", Align::Right),
        ("persistence", Align::Right),
        ("reserved", Align::Right),
        ("mean-err", Align::Right),
        ("persistence mean-err", Align::Right),
        ("under", Align::Right),
        ("persistence under", Align::Right),
    ];
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), terminal::bytes);
    let line = |row: &ForecastRow| {
        let ResourceForecast { in_use, forecast, persistence } =
            row.resources.get(&ResourceKind::Memory).copied().unwrap_or_default();
        let under = |under: u64| format!("{under}/{}", row.windows);
        vec![
            row.user.clone(),
            row.purpose.clone(),
            terminal::bytes(in_use),
            bytes(forecast),
            bytes(persistence),
            terminal::bytes(row.reserved_bytes),
            bytes(row.mean_error_bytes),
            bytes(row.persistence_mean_error_bytes),
            under(row.under_windows),
            under(row.persistence_under_windows),
        ]
    };
    terminal::table(&columns, rows.iter().map(line).collect())
}
