//! Processes of a rack: starts them so that they outlive `venice up`, identifies them, stops them.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use venice_cli::log::{FORMAT_VARIABLE, LOG_VARIABLE};
use venice_recipient::local_rack::RUN_DIR_VARIABLE;
pub use venice_recipient::runs::Identity;

use super::run_dir::RunDir;

/// Time for an orderly end before a kill.
const TERM_PATIENCE: Duration = Duration::from_secs(5);
/// Time for the kernel to remove a killed process.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// Liveness of a rack's process.
pub trait Lives {
    /// True if it still runs as a daemon of the rack in `dir`. False for a zombie and for a process
    /// that is ending: it has no command line any more.
    fn is_alive(&self, dir: &RunDir) -> bool;
}

impl Lives for Identity {
    fn is_alive(&self, dir: &RunDir) -> bool {
        self.exists() && is_daemon_of(self.pid, dir)
    }
}

/// True if `pid`'s command line names a ready file in `dir`, as that of every daemon of the rack
/// does.
fn is_daemon_of(pid: u32, dir: &RunDir) -> bool {
    let Ok(command_line) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    let mut words = command_line.split(|b| *b == 0);
    while let Some(word) = words.next() {
        if word == b"--ready-file" {
            let path = words.next().unwrap_or_default();
            return Path::new(&*String::from_utf8_lossy(path)).starts_with(dir.path());
        }
    }
    false
}

/// Returns all living daemons of the rack in `dir`, recorded or not (a killed `venice up` may not
/// have written its record).
pub fn find_all(dir: &RunDir) -> Vec<Identity> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| is_daemon_of(*pid, dir))
        .filter_map(Identity::of)
        .filter(|process| process.is_alive(dir))
        .collect()
}

/// Starts this program as a daemon: without a terminal, log to `name`'s file, without the caller's
/// VENICE_ settings (they could not override flags, but add to them), but those of the log and of a
/// stand-in for the CUDA driver.
pub fn spawn(dir: &RunDir, name: &str, arguments: &[String]) -> anyhow::Result<Child> {
    dir.create_process_dir(name)?;
    let log_path = dir.log_path(name);
    let log = File::options()
        .create(true)
        .append(true)
        .open(&log_path)
        .with_context(|| format!("opening {}", log_path.display()))?;
    let program = std::env::current_exe().context("finding the venice program itself")?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").stdin(Stdio::null());
    command.stdout(log.try_clone()?).stderr(log);
    for (key, _) in std::env::vars_os() {
        let of_venice = key.to_string_lossy().starts_with("VENICE_");
        let is_kept = [LOG_VARIABLE, FORMAT_VARIABLE, venice_accel::cuda::library::VARIABLE];
        if of_venice && is_kept.iter().all(|kept| key != *kept) {
            command.env_remove(key);
        }
    }
    // The server of a swap device reaches the rack through a socket in the run directory.
    command.env(RUN_DIR_VARIABLE, dir.path());
    command.spawn().with_context(|| format!("starting {name}"))
}

/// Stops the processes: in an orderly way for a while, then by a kill. Returns how many were
/// killed.
pub fn stop_all(processes: &[Identity], dir: &RunDir) -> anyhow::Result<usize> {
    let mut running: Vec<(Identity, OwnedFd)> = Vec::new();
    for process in processes {
        // The handle is opened before the check, so that a reused pid is not signalled.
        if let Some(handle) = handle(process.pid)
            && process.is_alive(dir)
        {
            running.push((*process, handle));
        }
    }
    signal(&running, Signal::TERM);
    wait_gone(&mut running, TERM_PATIENCE);
    let killed = running.len();
    signal(&running, Signal::KILL);
    wait_gone(&mut running, KILL_PATIENCE);
    match running.first() {
        None => Ok(killed),
        Some((process, _)) => anyhow::bail!(
            "process {} does not end even when killed: see /proc/{}/stack",
            process.pid,
            process.pid
        ),
    }
}

fn handle(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn signal(running: &[(Identity, OwnedFd)], signal: Signal) {
    for (_, handle) in running {
        // The only likely error is that the process has just ended.
        let _ = pidfd_send_signal(handle, signal);
    }
}

fn wait_gone(running: &mut Vec<(Identity, OwnedFd)>, patience: Duration) {
    let deadline = Instant::now() + patience;
    loop {
        running.retain(|(process, _)| process.exists());
        if running.is_empty() || Instant::now() > deadline {
            return;
        }
        std::thread::sleep(POLL);
    }
}

/// Waits, with a timeout, until processes that are about to end have ended: their successors need
/// what they still hold (addresses, file locks).
pub fn wait_for_dying(processes: &[Identity], dir: &RunDir) {
    let deadline = Instant::now() + KILL_PATIENCE;
    let dying = |process: &Identity| process.exists() && !process.is_alive(dir);
    while processes.iter().any(dying) && Instant::now() < deadline {
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_process_is_not_a_daemon() {
        let me = Identity::of(std::process::id()).unwrap();
        let dir = RunDir::locate();
        if let Ok(dir) = dir {
            assert!(!me.is_alive(&dir));
            assert_eq!(stop_all(&[me], &dir).unwrap(), 0);
        }
    }
}
