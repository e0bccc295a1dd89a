//! The command that runs while grants are held.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use venice_recipient::HeldEvent;

use super::{GotRow, Heard};
use crate::run::{Child, Ended, find_program};
use venice_cli::failure::EXIT_FAILURE;
use venice_cli::terminal;

/// Interval between two checks whether the command has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A command ready to start.
pub struct Command {
    program: PathBuf,
    words: Vec<OsString>,
}

impl Command {
    /// Finds the program; `None` without a command.
    ///
    /// # Errors
    /// Fails if there is no such program.
    pub fn of(words: &[OsString]) -> anyhow::Result<Option<Self>> {
        let Some(name) = words.first() else { return Ok(None) };
        Ok(Some(Self { program: find_program(name)?, words: words.to_vec() }))
    }

    /// Runs the command. If a grant of `rows` is lost, or its notice period ends, the command
    /// receives SIGTERM and, after `grace`, SIGKILL: the resource may soon have another recipient.
    pub fn run(
        &self,
        rows: &[GotRow],
        grace: Duration,
        heard: Receiver<Heard>,
    ) -> anyhow::Result<Outcome> {
        let mut start = std::process::Command::new(&self.program);
        start.envs(environment(rows));
        let mut child = Child::start_bound(start, &self.program, &self.words)?;
        let signal = child.signaller();
        let (ended, is_lost) = std::thread::scope(|scope| {
            let (tell, has_ended) = std::sync::mpsc::channel::<()>();
            let watcher = scope.spawn(move || watch(&heard, &has_ended, grace, signal));
            let ended = child.wait(|| ());
            drop(tell);
            (ended, watcher.join().expect("the watcher does not panic"))
        });
        if is_lost {
            // Its children may still use the device.
            child.kill_group();
        }
        Ok(Outcome { ended: ended?, is_lost })
    }
}

/// Reports events until the command has ended, and ends it when a grant is lost or due. Returns
/// true in that case.
fn watch(
    heard: &Receiver<Heard>,
    has_ended: &Receiver<()>,
    grace: Duration,
    signal: impl Fn(Signal),
) -> bool {
    let mut lost_at = None;
    let mut is_killed = false;
    while has_ended.try_recv() == Err(TryRecvError::Empty) {
        if let Ok(Heard::News(news)) = heard.recv_timeout(LOOK_EVERY) {
            terminal::remark(format!("venice: {news}"));
            if matches!(news.event, HeldEvent::Lost(_) | HeldEvent::Due) && lost_at.is_none() {
                lost_at = Some(Instant::now());
                signal(Signal::TERM);
                // A stopped process would not receive it.
                signal(Signal::CONT);
            }
        }
        if !is_killed && lost_at.is_some_and(|at: Instant| at.elapsed() >= grace) {
            is_killed = true;
            terminal::remark("venice: the command ignored SIGTERM: killed");
            signal(Signal::KILL);
        }
    }
    lost_at.is_some()
}

/// Result of a command.
pub struct Outcome {
    ended: Ended,
    is_lost: bool,
}

impl Outcome {
    /// Returns the command's exit code, or a failure if a grant was lost. If a signal ended the
    /// command, the same signal ends this process.
    pub fn pass_on(&self) -> i32 {
        if self.is_lost { EXIT_FAILURE } else { self.ended.pass_on() }
    }
}

/// Returns the environment variables that describe the grants.
fn environment(rows: &[GotRow]) -> Vec<(&'static str, String)> {
    let list = |of: &dyn Fn(&GotRow) -> String| rows.iter().map(of).collect::<Vec<_>>().join(",");
    vec![
        ("VENICE_GRANT_ID", list(&|row| row.id.to_string())),
        ("VENICE_GRANT_KIND", list(&|row| row.kind.clone())),
        ("VENICE_GRANT_NODE", list(&|row| row.node.clone())),
        ("VENICE_GRANT_ADDRESS", list(&|row| row.address.clone())),
        ("VENICE_GRANT_BYTES", list(&|row| row.bytes.to_string())),
        ("VENICE_GRANT_CAPABILITIES", list(&|row| row.capabilities.join(","))),
    ]
}
