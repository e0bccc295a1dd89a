//! A rack for tests.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::programs::running::Running;

/// Port between the nodes of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Shared memory.
    Shm,
    /// UDP datagrams.
    Udp,
}

impl Port {
    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Port::Shm => "shm",
            Port::Udp => "udp",
        }
    }
}

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A Monitor Node and four agents with a run directory of their own; dropping it takes them down.
///
/// A guardian process takes the rack down even if the test is killed: it waits on a pipe that this
/// process holds open.
pub struct Rack {
    run_dir: TempDir,
    guardian: Child,
    port: Port,
}

impl Rack {
    /// Starts a rack of four nodes, each lending `lend_mib` MiB.
    ///
    /// # Panics
    /// When `venice up` fails; the message quotes it.
    pub fn start(port: Port, lend_mib: u64) -> Rack {
        Rack::start_with(port, lend_mib, &[])
    }

    /// Starts one with more options for `venice up`, the same as [`Rack::start`].
    ///
    /// # Panics
    /// When `venice up` fails; the message quotes it.
    pub fn start_with(port: Port, lend_mib: u64, options: &[&str]) -> Rack {
        let mut with_nodes = vec!["--nodes", "4"];
        with_nodes.extend_from_slice(options);
        Rack::up(port, lend_mib, &with_nodes)
    }

    /// Starts a rack of so many nodes.
    ///
    /// # Panics
    /// When `venice up` fails; the message quotes it.
    pub fn of(port: Port, nodes: usize, lend_mib: u64) -> Rack {
        Rack::up(port, lend_mib, &["--nodes", &nodes.to_string()])
    }

    /// Starts a rack whose nodes relay, with `topology`, which includes its size.
    ///
    /// # Panics
    /// When `venice up` fails; the message quotes it.
    pub fn wired(topology: &str, lend_mib: u64, options: &[&str]) -> Rack {
        let mut wired = vec!["--topology", topology];
        wired.extend_from_slice(options);
        Rack::up(Port::Udp, lend_mib, &wired)
    }

    /// Starts a rack of three nodes that members of a group may use besides root.
    ///
    /// # Panics
    /// When `venice up` fails; the message quotes it.
    pub fn of_group(port: Port, lend_mib: u64, group: &str) -> Rack {
        let rack = Rack::begin(port);
        let public = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(rack.run_dir(), public).expect("it is this process's own");
        rack.go_up(lend_mib, &["--nodes", "3", "--socket-group", group]);
        rack
    }

    fn up(port: Port, lend_mib: u64, options: &[&str]) -> Rack {
        let rack = Rack::begin(port);
        rack.go_up(lend_mib, options);
        rack
    }

    fn begin(port: Port) -> Rack {
        // The path is short, because unix socket paths are.
        let run_dir = tempfile::Builder::new().prefix("venice-t").tempdir_in("/tmp").expect("/tmp");
        let guardian = guard(run_dir.path());
        Rack { run_dir, guardian, port }
    }

    fn go_up(&self, lend_mib: u64, options: &[&str]) {
        let lend = format!("{lend_mib}MiB");
        let mut up = vec!["up", "--lend", &lend, "--port", self.port.name()];
        up.extend_from_slice(options);
        let up = self.venice(&up);
        assert!(up.status.success(), "venice up: {}", String::from_utf8_lossy(&up.stderr));
    }

    /// Returns the rack that all tests of one binary share: over `port`, 512 MiB a node.
    pub fn shared(port: Port) -> &'static Rack {
        static SHM: OnceLock<Rack> = OnceLock::new();
        static UDP: OnceLock<Rack> = OnceLock::new();
        let cell = match port {
            Port::Shm => &SHM,
            Port::Udp => &UDP,
        };
        cell.get_or_init(|| Rack::start(port, 512))
    }

    /// Returns a `venice` command for this rack.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(venice_binary());
        command.args(args).env("VENICE_RUN_DIR", self.run_dir.path()).env_remove("VENICE_MONITOR");
        command
    }

    /// Runs a `venice` command of this rack to its end.
    pub fn venice(&self, args: &[&str]) -> Output {
        let output = self.command(args).stdin(Stdio::null()).output();
        output.unwrap_or_else(|error| panic!("{}: {error}", venice_binary().display()))
    }

    /// Returns the output of `venice ARGS --json`.
    pub fn json(&self, args: &[&str]) -> Value {
        let mut with_json = args.to_vec();
        with_json.push("--json");
        let output = self.venice(&with_json);
        assert!(
            output.status.success(),
            "venice {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("venice {args:?} --json: {error}: {}", String::from_utf8_lossy(&output.stdout))
        })
    }

    /// Starts `venice run` with `options` before the program; the program is not yet finished.
    pub fn run(&self, options: &[&str], program: &Command) -> Running {
        let mut command = self.command(&["run", "--port", self.port.name()]);
        command.args(options).arg("--").arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(dir) = program.get_current_dir() {
            command.current_dir(dir);
        }
        Running::spawn(command, true)
    }

    /// Returns the row of the first run in `venice status`: its last report, a moment old.
    pub fn run_row(&self) -> Option<Value> {
        self.json(&["status"])["runs"].as_array()?.first().cloned()
    }

    /// Returns the row of the first run in `venice ps`.
    pub fn run_row_of_ps(&self) -> Option<Value> {
        self.json(&["ps"]).as_array()?.first().cloned()
    }

    /// Returns the ids of all grants in the Monitor Node's table, in order.
    pub fn grant_ids(&self) -> Vec<String> {
        let mut ids: Vec<String> =
            rows(&self.json(&["grants"])).iter().map(|row| row["id"].to_string()).collect();
        ids.sort();
        ids
    }

    /// Returns the bytes lent out and not free, summed over all nodes.
    pub fn granted_bytes(&self) -> u64 {
        rows(&self.json(&["nodes"]))
            .iter()
            .map(|row| number(&row["lent_bytes"]) - number(&row["free_bytes"]))
            .sum()
    }

    /// Returns the process id of the Monitor Node.
    pub fn monitor_pid(&self) -> u32 {
        number(&self.json(&["status"])["monitor"]["pid"]) as u32
    }

    /// Returns the process id of an agent.
    pub fn agent_pid(&self, name: &str) -> u32 {
        let status = self.json(&["status"]);
        let agent = rows(&status["agents"]).iter().find(|agent| agent["name"] == name).cloned();
        number(&agent.unwrap_or_else(|| panic!("no agent {name} in {status}"))["pid"]) as u32
    }

    /// Returns the directory of the rack's state.
    pub fn run_dir(&self) -> &Path {
        self.run_dir.path()
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        // Closing the pipe wakes the guardian, which takes the rack down.
        drop(self.guardian.stdin.take());
        let _ = self.guardian.wait();
    }
}

/// Returns the rows of a JSON list.
fn rows(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("not a list: {value}"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a number: {value}"))
}

/// Starts the guardian, which takes the rack down once this process is gone or closes the pipe.
fn guard(run_dir: &Path) -> Child {
    let script = r#"read -r _; timeout 30 "$1" down >/dev/null 2>&1; rm -rf "$VENICE_RUN_DIR""#;
    Command::new("sh")
        .args(["-c", script, "guardian"])
        .arg(venice_binary())
        .env("VENICE_RUN_DIR", run_dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell")
}

/// Returns the binary under test: `$VENICE_BIN`, else the one built beside this test.
///
/// # Panics
/// When it is missing.
pub fn venice_binary() -> PathBuf {
    let path = std::env::var_os("VENICE_BIN").map_or_else(
        || {
            let test = std::env::current_exe().expect("a test knows its own path");
            test.ancestors().nth(2).expect("target/PROFILE/deps/TEST").join("venice")
        },
        PathBuf::from,
    );
    assert!(path.exists(), "{} is not built: run `make build`", path.display());
    path
}

/// Kills a process outright and waits until it is gone.
pub fn kill_now(pid: u32) {
    signal_and_wait(pid, Signal::KILL);
}

/// Ends a daemon by SIGTERM, and waits until it is gone.
pub fn stop_now(pid: u32) {
    signal_and_wait(pid, Signal::TERM);
}

fn signal_and_wait(pid: u32, signal: Signal) {
    let target = Pid::from_raw(pid as i32).expect("a process id");
    kill_process(target, signal).unwrap_or_else(|error| panic!("{signal:?} to {pid}: {error}"));
    crate::programs::wait_for("a process to go", Duration::from_secs(10), || {
        (!crate::programs::is_alive(pid)).then_some(())
    });
}
