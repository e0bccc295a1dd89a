//! A child process that does not outlive its guard.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{
    Pid, Signal, kill_process, kill_process_group, set_parent_process_death_signal,
};
use venice_memory::process_stat::ProcessStat;

/// Time between SIGTERM and SIGKILL.
const POLITE: Duration = Duration::from_secs(10);

/// Time limit for noticing the death of a child whose connection broke.
const DEATH: Duration = Duration::from_secs(5);

/// Lines of a child's log that an error message quotes.
const QUOTED_LINES: usize = 8;

/// A running child in its own process group: a Ctrl-C at the terminal reaches only this process,
/// which ends the children in the right order.
#[derive(Debug)]
pub struct ChildGuard {
    name: String,
    child: Child,
    log: PathBuf,
    status: Option<ExitStatus>,
}

impl ChildGuard {
    /// Starts `command` with its output and errors going to the file `log`.
    ///
    /// # Errors
    /// When the log cannot be made or the program cannot be started.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        end_with_parent(&mut command);
        Self::spawn_to_stay(name, command, log)
    }

    /// The same, for a child that must outlive a kill of this process: the kernel needs it.
    ///
    /// # Errors
    /// The same as [`Self::spawn`].
    pub fn spawn_to_stay(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let out = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let err = out.try_clone().context("cannot share the log between output and errors")?;
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {name} ({:?})", command.get_program()))?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned(), status: None })
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Checks that it runs.
    ///
    /// # Errors
    /// When the child has ended; the message quotes the end of its log.
    pub fn ensure_alive(&mut self) -> Result<()> {
        if let Some(status) = self.poll()? {
            bail!("{} ended early ({status}){}", self.name, quoted_tail(&self.log));
        }
        Ok(())
    }

    /// Waits for the child to end by itself.
    ///
    /// # Errors
    /// After `limit`, on an interrupt, or when it ended with a failure (quoting its log).
    pub fn wait_success(&mut self, limit: Duration) -> Result<()> {
        self.wait_success_unless(limit, || false).map(|_ended| ())
    }

    /// Waits for the child to end by itself, or for `stopped`, which abandons the wait; returns
    /// true if it ended.
    ///
    /// # Errors
    /// The same as [`Self::wait_success`].
    pub fn wait_success_unless(
        &mut self,
        limit: Duration,
        stopped: impl Fn() -> bool,
    ) -> Result<bool> {
        let name = format!("the end of {}", self.name);
        let status = crate::interrupt::wait_until(&name, limit, || {
            Ok(self.poll()?.map(Some).or_else(|| stopped().then_some(None)))
        })?;
        match status {
            Some(status) if !status.success() => {
                bail!("{} failed ({status}){}", self.name, quoted_tail(&self.log))
            }
            status => Ok(status.is_some()),
        }
    }

    /// Replaces a failed conversation's error by the child's death, if that is the cause. Death is
    /// noticed a moment after the connection has broken, and a supervisor first gives back what it
    /// borrowed.
    pub fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        if crate::interrupt::check().is_err() {
            return error;
        }
        let what = format!("the end of {}", self.name);
        let death = crate::interrupt::wait_until(&what, DEATH, || Ok(self.ensure_alive().err()));
        match death {
            Ok(death) => death.context(error),
            Err(_still_alive) => error,
        }
    }

    /// Returns the processes of the child's group.
    pub fn pids_of_group(&self) -> Vec<u32> {
        let group = self.child.id();
        pids_where(|stat| stat.group == group)
    }

    /// Sends SIGTERM to the child, and kills its whole group if it does not end in time.
    pub fn stop(&mut self) {
        let Some(pid) = Pid::from_raw(self.child.id() as i32) else { return };
        if !matches!(self.poll(), Ok(None)) {
            return;
        }
        // An error means that it has just ended.
        let _ = kill_process(pid, Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < POLITE {
            if !matches!(self.poll(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = kill_process_group(pid, Signal::KILL);
        self.status = self.child.wait().ok();
    }

    fn poll(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self
                .child
                .try_wait()
                .with_context(|| format!("cannot read the state of {}", self.name))?;
        }
        Ok(self.status)
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the processes that `is_wanted` takes, by what `/proc` says of them.
fn pids_where(is_wanted: impl Fn(&ProcessStat) -> bool) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| ProcessStat::of(*pid).is_some_and(|stat| is_wanted(&stat))).collect()
}

/// Returns the children of a process.
pub fn children_of(parent: u32) -> Vec<u32> {
    pids_where(|stat| stat.parent == parent)
}

/// Lets the kernel send SIGTERM to the child when this process is killed and no guard runs.
pub fn end_with_parent(command: &mut Command) {
    let ask = || Ok(set_parent_process_death_signal(Some(Signal::TERM))?);
    // SAFETY: between fork and exec the closure makes one system call and nothing else: it neither
    // allocates nor locks.
    unsafe { command.pre_exec(ask) };
}

/// Runs a helper program to its end and returns its output.
///
/// # Errors
/// When it is missing or fails; the message holds its standard error.
pub fn run_tool(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(find_program(program)?)
        .args(args)
        .stdin(Stdio::null())
        .process_group(0)
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{program} {}` failed: {}", args.join(" "), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Finds `program` in `PATH` or in the system directories that a user's `PATH` may lack.
///
/// # Errors
/// When it is in none of them.
pub fn find_program(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
        .with_context(|| format!("{program} is not installed"))
}

fn quoted_tail(log: &Path) -> String {
    let Ok(text) = std::fs::read(log) else { return String::new() };
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return String::new();
    }
    let tail = &lines[lines.len().saturating_sub(QUOTED_LINES)..];
    format!("; end of its log:\n  {}", tail.join("\n  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_child_quotes_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo out of luck; exit 3"]);
        let mut child =
            ChildGuard::spawn("the shell", command, &folder.path().join("log")).unwrap();
        let error = child.wait_success(Duration::from_secs(20)).unwrap_err().to_string();
        assert!(error.contains("the shell failed"), "{error}");
        assert!(error.contains("out of luck"), "{error}");
        assert!(child.ensure_alive().is_err());
    }

    #[test]
    fn dropped_guard_ends_child() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("/bin/sleep");
        command.arg("1000");
        let child = ChildGuard::spawn("sleep", command, &folder.path().join("log")).unwrap();
        let pid = child.child.id();
        drop(child);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn group_includes_grandchildren() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 1000 & wait"]);
        let child = ChildGuard::spawn("the shell", command, &folder.path().join("log")).unwrap();
        crate::interrupt::wait_until("the second process", Duration::from_secs(60), || {
            Ok((child.pids_of_group().len() == 2).then_some(()))
        })
        .unwrap();
        assert!(child.pids_of_group().contains(&child.pid()));
        assert_eq!(children_of(child.pid()).len(), 1);
        assert!(children_of(std::process::id()).contains(&child.pid()));
    }

    #[test]
    fn missing_tool_is_named() {
        let error = run_tool("no-such-tool-anywhere", &[]).unwrap_err().to_string();
        assert!(error.contains("no-such-tool-anywhere is not installed"), "{error}");
    }
}
