//! `venice limit`: changes the local budget of a running program.

use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use clap::Args;
use venice_recipient::runs::{Answer, Question, RunRow, RunsDir, budget};
use venice_wire::ByteSize;

use super::registry;
use venice_cli::failure::Usage;
use venice_cli::terminal;

/// Interval between two looks at the program's row.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Gives up when no page has left for this long.
const PATIENCE: Duration = Duration::from_secs(10);

/// `venice limit`
#[derive(Args, Debug)]
pub struct LimitArgs {
    /// Process id of the program, of any of its processes, or of its `venice run`
    #[arg(value_name = "PID")]
    pid: u32,
    /// New limit of resident anonymous memory
    #[arg(long, value_name = "SIZE")]
    local: ByteSize,
    /// Return without waiting until the program is within the new budget
    #[arg(long)]
    no_wait: bool,
    /// Print the program's row as `venice ps --json` does, as one object
    #[arg(long)]
    json: bool,
}

/// Changes the budget and waits until the program is within it.
pub fn execute(args: &LimitArgs) -> anyhow::Result<i32> {
    let local_bytes = args.local.0;
    budget::check(local_bytes)?.map_err(Usage)?;
    let (dir, before) = registry::find(args.pid)?;
    let row = answered(&before, registry::ask(&dir, before.run, Question::Limit(local_bytes))?)?;
    // Memory mapped by a window does not leave.
    let row = if args.no_wait || row.mode == "window" { row } else { watch(&dir, row)? };
    if args.json {
        terminal::say_json(&row)?;
    } else {
        terminal::say(format!(
            "run {} ({}): {} local, was {}; {} resident.",
            row.run,
            row.command,
            ByteSize(row.local_bytes),
            ByteSize(before.local_bytes),
            ByteSize(row.resident_bytes)
        ))?;
    }
    Ok(0)
}

fn answered(of: &RunRow, answer: Option<Answer>) -> anyhow::Result<RunRow> {
    match answer {
        Some(Answer::Row(row)) => Ok(*row),
        Some(Answer::Refused(why)) => Err(anyhow!("run {} ({}): {why}", of.run, of.command)),
        Some(Answer::Core(_)) | None => bail!("run {} ({}) has ended", of.run, of.command),
    }
}

/// Waits while pages leave, with a progress bar.
fn watch(dir: &RunsDir, mut row: RunRow) -> anyhow::Result<RunRow> {
    let over = |row: &RunRow| row.resident_bytes.saturating_sub(row.local_bytes);
    let (at_first, mut least) = (over(&row), over(&row));
    let bar = terminal::progress(at_first >> 20, "leaving, MiB");
    let mut progressed = Instant::now();
    while over(&row) > 0 {
        if over(&row) < least {
            (least, progressed) = (over(&row), Instant::now());
            bar.set_position((at_first - least) >> 20);
        }
        let pid = row.pid;
        let is_stopped = registry::is_stopped(pid);
        if progressed.elapsed() > PATIENCE || is_stopped {
            bar.finish_and_clear();
            let why = match is_stopped {
                true => format!("the program is stopped: they leave after `kill -CONT {pid}`"),
                false => "locked memory and memory outside the pager stay resident".to_owned(),
            };
            bail!(
                "run {} ({}): {} resident, above the budget of {}, and no more pages leave: {why}",
                row.run,
                row.command,
                ByteSize(row.resident_bytes),
                ByteSize(row.local_bytes)
            );
        }
        std::thread::sleep(LOOK_EVERY);
        row = answered(&row, registry::ask(dir, row.run, Question::Row)?)?;
    }
    bar.finish_and_clear();
    Ok(row)
}
