//! A rack of the test's own, and the `venice` command for it.

#![allow(dead_code, reason = "each test file uses its own part of this")]

pub mod machines;
pub mod rack;

use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use venice_testkit::process::ChildGuard;

/// Time limit of every command, even on a loaded machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Time limit in a guest, which is ten to thirty times slower.
const LIMIT_IN_GUEST: Duration = Duration::from_secs(300);

/// Ports of each test process: more than its tests ask for, so that no port is used twice.
const PORTS: u16 = 500;

/// Output and exit status of a command.
#[derive(Debug)]
pub struct Said {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Said {
    /// Returns the exit code.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    /// Fails the test unless the exit code is `code`.
    pub fn expect(self, code: i32) -> Said {
        assert_eq!(self.code(), code, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Parses standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the last line on stderr, which must be `venice: ...`.
    pub fn complaint(&self) -> &str {
        let line = self.err.lines().last().unwrap_or_default();
        assert!(line.starts_with("venice: "), "no one-line error at the end: {self:?}");
        line
    }
}

/// A run directory of the test's own. Dropping it stops the rack in it, if any.
pub struct Place {
    temp: TempDir,
    monitor_port: String,
    /// Address of a Monitor Node that was not started by `venice up`.
    monitor: OnceLock<String>,
}

impl Place {
    pub fn new() -> Place {
        // Short, because socket paths are limited.
        let temp = tempfile::Builder::new().prefix("vt").tempdir_in("/tmp").unwrap();
        Place { temp, monitor_port: port_of_its_own(), monitor: OnceLock::new() }
    }

    pub fn run_dir(&self) -> PathBuf {
        self.temp.path().join("run")
    }

    /// Sets the address of the Monitor Node for later commands.
    pub fn find_monitor_at(&self, addr: &str) {
        self.monitor.set(addr.to_owned()).unwrap();
    }

    /// Returns the path of a file beside the run directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_venice"));
        for (key, _) in std::env::vars_os() {
            if key.to_string_lossy().starts_with("VENICE_") {
                command.env_remove(key);
            }
        }
        command.args(words).env("VENICE_RUN_DIR", self.run_dir());
        command.envs(self.monitor.get().map(|addr| ("VENICE_MONITOR", addr)));
        command
    }

    /// Runs `venice WORDS` to its end.
    pub fn venice(&self, words: &[&str]) -> Said {
        finish(self.command(words), words)
    }

    /// Starts a rack of `nodes` small nodes. No other test takes its Monitor Node's port while it
    /// is dead.
    pub fn up(&self, nodes: u32) -> Said {
        let (nodes, port) = (nodes.to_string(), &self.monitor_port);
        let words = ["up", "--nodes", &nodes, "--lend", "32MiB", "--monitor-port", port];
        self.venice(&words).expect(0)
    }

    /// Joins a machine as the node `name`, with a token; returns the value for `--identity`.
    pub fn join(&self, name: &str, monitor: &str) -> String {
        let token = self.venice(&["token", "new", "--monitor", monitor]).expect(0).out;
        let dir = self.file(&format!("identity-{name}")).display().to_string();
        self.venice(&["join", "--name", name, "--identity", &dir, token.trim()]).expect(0);
        dir
    }

    /// Returns the output of `venice status --json`.
    pub fn status(&self) -> Value {
        self.venice(&["status", "--json"]).expect(0).json()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let said = self.venice(&["down"]);
        if said.code() != 0 && !thread::panicking() {
            panic!("venice down: {}", said.err);
        }
    }
}

/// A daemon in the foreground, that is killed when the test is over, if it still runs then.
pub struct Daemon(pub ChildGuard);

impl Daemon {
    pub fn start(place: &Place, words: &[&str]) -> Daemon {
        Daemon::start_named(place, words[0], words)
    }

    /// Starts one of several daemons, each with its own log.
    pub fn start_named(place: &Place, name: &str, words: &[&str]) -> Daemon {
        let log = File::create(place.file(&format!("{name}.log"))).unwrap();
        let mut command = place.command(words);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Daemon(ChildGuard(command.spawn().unwrap()))
    }

    /// Sends a signal that ends the daemon, and returns the exit code.
    pub fn stop(&mut self, how: Signal) -> Option<i32> {
        signal(self.0.id().into(), how);
        wait(&mut self.0, &["daemon"]).code()
    }
}

/// Returns a free port below the kernel's ephemeral range.
pub fn port_of_its_own() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let first = 20_000 + (std::process::id() % 20) as u16 * PORTS;
    let mut candidates = (0..PORTS).map(|_| first + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS);
    candidates.find(is_free).expect("no port is free").to_string()
}

/// Runs a command to its end; fails the test after a long timeout.
pub fn finish(mut command: Command, words: &[&str]) -> Said {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let out = reader(child.stdout.take().unwrap());
    let err = reader(child.stderr.take().unwrap());
    let status = wait(&mut child, words);
    Said { status, out: out.join().unwrap(), err: err.join().unwrap() }
}

fn limit() -> Duration {
    if venice_testkit::guest::is_inside() { LIMIT_IN_GUEST } else { LIMIT }
}

fn reader(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for the end of a child, with a long timeout.
pub fn wait(child: &mut Child, words: &[&str]) -> ExitStatus {
    let deadline = Instant::now() + limit();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            panic!("venice {words:?} did not end");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until `check` holds, a long while at most.
pub fn wait_until(what: &str, check: impl FnMut() -> bool) {
    venice_testkit::wait::wait_until(what, limit(), check);
}

/// Sends a signal.
pub fn signal(pid: u64, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Kills a process and waits until it is gone.
pub fn kill(pid: u64) {
    signal(pid, Signal::KILL);
    wait_until("a killed process is gone", || !runs(pid));
}

/// True if a process runs; a zombie does not.
pub fn runs(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Returns the pid in a row of `venice status --json`.
pub fn pid(row: &Value) -> u64 {
    row["pid"].as_u64().unwrap_or_else(|| panic!("no pid in {row}"))
}

/// Reports a skipped test.
pub fn skipped(test: &str, why: &str) {
    eprintln!("\n*** SKIPPED {test}: {why} ***\n");
}

/// True if the test runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// True if the file exists.
pub fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
