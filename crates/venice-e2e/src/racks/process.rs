//! A process of the rack, seen by its parent.

use std::io::{BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::racks::orders::{Order, Reply, each_line};

/// A child process; dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
}

/// A reply of a process; `None`: its output has ended.
pub type Said<T> = (T, Option<Reply>);

impl Process {
    /// Starts `program` with `arguments`, in a network namespace if one is named; its replies go to
    /// `replies` together with `name`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start<T: Clone + Send + 'static>(
        program: &Path,
        arguments: &[String],
        namespace: Option<&str>,
        name: T,
        replies: Sender<Said<T>>,
    ) -> Result<Self> {
        let mut command = match namespace {
            None => Command::new(program),
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(program);
                command
            }
        };
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let output = child.stdout.take().context("the child has no output")?;
        let input = child.stdin.take();
        std::thread::spawn(move || {
            let said = |reply| replies.send((name.clone(), Some(reply))).is_ok();
            let _ = each_line(BufReader::new(output), said);
            let _ = replies.send((name, None));
        });
        Ok(Self { child, input })
    }

    /// Sends it an order. A dead process ignores it.
    pub fn order(&mut self, order: Order) {
        let line = serde_json::to_string(&order).expect("an order has only plain data");
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{line}");
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process has a number");
        // It is not reaped before it is killed, so the process id is still its own.
        let _ = kill_process(pid, signal);
    }

    /// Kills it at once, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
