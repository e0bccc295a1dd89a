//! `venice top`: the rack at a glance, live in a terminal.

mod data;
mod screen;
mod sections;

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;

use crate::rack;
use crate::registry::block_on;
use venice_cli::terminal;

use data::Source;
use sections::View;

/// Text below `venice top --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice top
  venice top --interval 0.5
  venice top --once                           one frame as plain tables
  venice top --once | head -20
  venice top --json | jq '.nodes[] | {name, free_bytes}'

Nodes, the programs of this machine, grants, the queue and recent events, of a rack. Keys: q quits, p
or space pauses, s changes the order of grants (size, age, owner, donor), up and down scroll through
them, h helps. Without a terminal, as in a pipe, one frame is printed. NO_COLOR turns colours off.
--json prints one object: monitor, time_ms, nodes, programs, grants, queue (as `venice nodes`, `ps`,
`grants` and `queue` print them) and events, the newest 100.";

/// `venice top`
#[derive(Args, Debug)]
pub struct TopArgs {
    /// Seconds between two updates, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = interval)]
    interval: Duration,
    /// Print one frame as plain tables and exit
    #[arg(long)]
    once: bool,
    /// Print one object and exit
    #[arg(long, conflicts_with = "once")]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    let seconds = seconds.ok_or("write seconds between 0.1 and 3600")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// `venice top`
pub fn execute(args: &TopArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let mut source = Source::new(rack::monitor_address(monitor)?);
    let is_live = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if is_live && !args.once && !args.json {
        block_on(screen::run(source, args.interval))?;
        return Ok(0);
    }
    let snapshot = block_on(source.snapshot())?;
    match args.json {
        true => terminal::say_json(&snapshot)?,
        false => terminal::say(sections::plain(&snapshot, &View::default()))?,
    }
    Ok(0)
}
