//! The command that runs while grants are held.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use venice_recipient::Held;

use super::Heard;
use crate::client_drivers::{Installed, Source};
use crate::granted::{GrantedRow, environment, watch};
use crate::run::{Child, Ended, find_program};
use venice_cli::failure::EXIT_RUNNER;

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
    /// receives SIGTERM and, after a grace, SIGKILL: the resource may soon have another recipient.
    /// It does not if a client driver tells it.
    pub fn run(
        &self,
        rows: &[GrantedRow],
        (held, source): (&Arc<Held>, Source),
        heard: Receiver<Heard>,
    ) -> anyhow::Result<Outcome> {
        let grace = held.grace();
        let mut start = std::process::Command::new(&self.program);
        let drivers = Installed::of(rows, held, source)?;
        start.envs(environment(rows)).envs(drivers.variables().iter().cloned());
        let mut child = Child::start_bound(start, &self.program, &self.words)?;
        let signal = child.signaller();
        let (ended, is_lost) = std::thread::scope(|scope| {
            let (tell, has_ended) = std::sync::mpsc::channel::<()>();
            let drivers = &drivers;
            let watcher = scope.spawn(move || {
                let news = |within| match heard.recv_timeout(within) {
                    Ok(Heard::News(news)) => Some(news),
                    _ => None,
                };
                watch(news, drivers, &has_ended, grace, signal)
            });
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

/// Result of a command.
pub struct Outcome {
    ended: Ended,
    is_lost: bool,
}

impl Outcome {
    /// Returns the command's exit code, or a failure if a grant was lost. If a signal ended the
    /// command, the same signal ends this process.
    pub fn pass_on(&self) -> i32 {
        if self.is_lost { EXIT_RUNNER } else { self.ended.pass_on() }
    }
}
