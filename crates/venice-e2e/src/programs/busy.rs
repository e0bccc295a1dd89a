//! A program that uses its memory all the time, and detects any wrong byte.

use std::fs::File;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::programs::{CProgram, Rack, Running, wait_for};

/// Time limit for the program's start, and for its end.
const LIMIT: Duration = Duration::from_secs(120);

/// A program that writes and checks 64 MiB over and over with a quarter of them local.
pub struct Busy {
    program: CProgram,
    /// Its `venice run`.
    pub running: Running,
}

impl Busy {
    /// Starts it on so much borrowed memory with so many replicas, and waits until it uses all of
    /// it.
    pub fn start(rack: &Rack, remote: &str, copies: u32) -> Busy {
        Busy::start_with(rack, remote, copies, &[])
    }

    /// The same with more options for `venice run`.
    pub fn start_with(rack: &Rack, remote: &str, copies: u32, more: &[&str]) -> Busy {
        Busy::start_kept(rack, remote, &["--copies", &copies.to_string()], more)
    }

    /// Starts it as a process and a child with half as much memory, which begins with its parent's
    /// contents.
    pub fn start_forked(rack: &Rack, remote: &str, copies: u32, more: &[&str]) -> Busy {
        let kept = ["--copies", &copies.to_string()];
        Busy::start_program(rack, remote, &kept, more, &["32", "ready", "stop", "forked"])
    }

    /// Starts it on borrowed memory with these redundancy options.
    pub fn start_kept(rack: &Rack, remote: &str, kept: &[&str], more: &[&str]) -> Busy {
        Busy::start_program(rack, remote, kept, more, &["64", "ready", "stop"])
    }

    fn start_program(
        rack: &Rack,
        remote: &str,
        kept: &[&str],
        more: &[&str],
        arguments: &[&str],
    ) -> Busy {
        let program = CProgram::compile("keep_busy");
        let local: &[&str] = if more.contains(&"--local") { &[] } else { &["--local", "16MiB"] };
        let options = [local, &["--remote", remote, "--stats"], kept].concat();
        let options = [&options[..], more].concat();
        let running = rack.run(&options, &program.command(arguments));
        let mut busy = Busy { program, running };
        wait_for("the program to use its memory", LIMIT, || {
            if !busy.running.is_running() {
                return Some(false);
            }
            busy.program.dir().join("ready").exists().then_some(true)
        });
        busy
    }

    /// Checks that it has not ended.
    ///
    /// # Panics
    /// When it has; the message quotes its output.
    pub fn expect_running(&mut self) {
        if !self.running.is_running() {
            panic!("the program ended:\n{}", self.running.stderr_after_end());
        }
    }

    /// Checks that it does not end for so long.
    ///
    /// # Panics
    /// When it does; the message quotes its output.
    pub fn expect_running_for(&mut self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            self.expect_running();
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until its run reports that all reclaimed memory has moved; returns the run's row. A
    /// run reports its state a few times a second, so the node may be empty a moment earlier.
    pub fn wait_until_moved(&mut self, rack: &Rack) -> Value {
        wait_for("the run to say that all is moved", LIMIT, || {
            self.expect_running();
            let row = rack.run_row()?;
            let leaving = row["leaving_donors"].as_array()?.len();
            (leaving == 0 && row["moved"] == row["to_move"]).then_some(row)
        })
    }

    /// Waits until its run has noticed the loss of the donor `gone`, and has all replicas again.
    pub fn wait_for_replicas(&mut self, rack: &Rack, gone: &str) {
        wait_for("both copies to be there", LIMIT, || {
            self.expect_running();
            let run = rack.run_row()?;
            let is_lost = run["lost_donors"].as_array()?.iter().any(|name| name == gone);
            (is_lost && run["short_slabs"] == 0).then_some(())
        });
    }

    /// Lets it check everything once more and end; returns its standard error.
    ///
    /// # Panics
    /// When a byte was wrong.
    pub fn stop(self) -> String {
        File::create(self.program.dir().join("stop")).expect("a file");
        let outcome = self.running.finish(LIMIT);
        outcome.expect_code(0);
        assert_eq!(String::from_utf8_lossy(&outcome.stdout), "every byte right\n");
        outcome.stderr
    }
}
