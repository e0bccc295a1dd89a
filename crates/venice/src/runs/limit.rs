//! `venice limit`: another local budget for a program that runs.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use venice_recipient::runs::{Answer, Question, RunRow, budget};
use venice_wire::ByteSize;

use super::registry;
use crate::rack::RunDir;
use venice_cli::failure::Usage;
use venice_cli::terminal;

/// How often it looks how far the program is.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long it looks on while nothing leaves.
const PATIENCE: Duration = Duration::from_secs(10);

/// `venice limit`
#[derive(Args, Debug)]
pub struct LimitArgs {
    /// The program's process id, or that of its `venice run`
    #[arg(value_name = "PID")]
    pid: u32,
    /// Anonymous memory it keeps resident at most from now on
    #[arg(long, value_name = "SIZE")]
    local: ByteSize,
    /// Do not wait until the program is within the new budget
    #[arg(long)]
    no_wait: bool,
    /// Print the program's row as `venice ps --json` does, as one object
    #[arg(long)]
    json: bool,
}

/// Changes it, and waits until the program is within it.
pub fn execute(args: &LimitArgs) -> anyhow::Result<i32> {
    let local_bytes = args.local.0;
    budget::check(local_bytes)?.map_err(Usage)?;
    let dir = RunDir::locate()?;
    let before = find(&dir, args.pid)?;
    let row = answered(&before, registry::ask(&dir, before.run, Question::Limit(local_bytes))?)?;
    // What is mapped in a window does not leave.
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

/// The run that `pid` means. One that cannot be asked is an error if it is meant itself.
fn find(dir: &RunDir, pid: u32) -> anyhow::Result<RunRow> {
    let named = registry::ask(dir, pid, Question::Row).with_context(|| format!("run {pid}"))?;
    match named {
        Some(Answer::Row(row)) => return Ok(*row),
        Some(Answer::Refused(why)) => bail!("run {pid}: {why}"),
        None => {}
    }
    let found = registry::rows(dir)?.into_iter().find(|row| row.has(pid));
    found.with_context(|| {
        format!("process {pid} is no program on borrowed memory: `venice ps` shows those there are")
    })
}

fn answered(of: &RunRow, answer: Option<Answer>) -> anyhow::Result<RunRow> {
    match answer {
        Some(Answer::Row(row)) => Ok(*row),
        Some(Answer::Refused(why)) => Err(anyhow!("run {} ({}): {why}", of.run, of.command)),
        None => bail!("run {} ({}) has just ended", of.run, of.command),
    }
}

/// Looks on while pages leave.
fn watch(dir: &RunDir, mut row: RunRow) -> anyhow::Result<RunRow> {
    let over = |row: &RunRow| row.resident_bytes.saturating_sub(row.local_bytes);
    let (at_first, mut least) = (over(&row), over(&row));
    let bar = terminal::progress(at_first >> 20, "leaving, MiB");
    let mut progressed = Instant::now();
    while over(&row) > 0 {
        if over(&row) < least {
            (least, progressed) = (over(&row), Instant::now());
            bar.set_position((at_first - least) >> 20);
        }
        if progressed.elapsed() > PATIENCE {
            bar.finish_and_clear();
            bail!(
                "run {} ({}) has {} resident and {} as its budget, and nothing more leaves: memory \
                 that it has locked, or that is not its pager's, does not",
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
