//! Two processes of one benchmark: a server at the far end, a client here.

use std::fs;
use std::path::{Path as FilePath, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::channels::measure::Ends;
use crate::channels::path::Path;
use venice_measure::child::{ChildGuard, find_program};
use venice_measure::interrupt;

/// Time limit for a server to listen.
const START: Duration = Duration::from_secs(5);
/// Delay between two attempts to connect.
const RETRY: Duration = Duration::from_millis(40);

/// Path and time limit of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// `None`: both on this machine's shared memory, with loopback for the connection.
    pub(super) path: Option<&'a Path>,
    pub(super) ends: Ends,
    /// Time limit of a client.
    pub(super) limit: Duration,
}

/// A program, the arguments of its two ends, and their environment.
#[derive(Debug, Clone, Default)]
pub(super) struct Pair {
    pub(super) program: &'static str,
    pub(super) server: Vec<String>,
    pub(super) client: Vec<String>,
    /// Environment of the near and the far end.
    pub(super) environment: [Vec<(&'static str, String)>; 2],
}

impl Pair {
    /// Runs both ends; returns the client's output. Neither outlives this call.
    ///
    /// # Errors
    /// When the client fails for any reason except a server that does not listen yet, or exceeds
    /// the time limit; and on an interrupt.
    pub(super) fn run(&self, place: Place<'_>) -> Result<String> {
        let (said, ended) = self.run_as_far_as_it_goes(place)?;
        ended.map(|()| said)
    }

    /// The same, with the client's output before a failure.
    ///
    /// # Errors
    /// When an end cannot be started, and on an interrupt.
    pub(super) fn run_as_far_as_it_goes(&self, place: Place<'_>) -> Result<(String, Result<()>)> {
        let folder = TempDir::with_prefix("venice-bench-peer-").context("no temporary folder")?;
        let mut server = self.start(place, &folder, true)?;
        let start = Instant::now();
        loop {
            interrupt::check()?;
            server.ensure_alive()?;
            let mut client = self.start(place, &folder, false)?;
            let ended = client.wait_success(place.limit);
            let said = fs::read_to_string(log(&folder, false)).unwrap_or_default();
            // iperf3 prints the refusal and exits with success.
            if start.elapsed() > START || !is_too_early(&said) {
                return Ok((said, ended));
            }
            std::thread::sleep(RETRY);
        }
    }

    fn start(&self, place: Place<'_>, folder: &TempDir, is_far: bool) -> Result<ChildGuard> {
        let program = find_program(self.program)?;
        let taskset = find_program("taskset")?;
        let mut command = match place.path.filter(|_| is_far) {
            Some(path) => path.far_command(&taskset)?,
            None => Command::new(taskset),
        };
        let cpu = if is_far { place.ends.far_cpu } else { place.ends.near_cpu };
        command.arg("--cpu-list").arg(cpu.to_string()).arg(program);
        command.args(if is_far { &self.server } else { &self.client });
        command
            .envs(self.environment[usize::from(is_far)].iter().map(|(name, value)| (name, value)));
        let name = format!("{} ({})", self.program, if is_far { "server" } else { "client" });
        ChildGuard::spawn(&name, command, &log(folder, is_far))
    }
}

fn log(folder: &TempDir, is_far: bool) -> PathBuf {
    FilePath::join(folder.path(), if is_far { "server" } else { "client" })
}

/// True if a client reports that the server does not listen yet.
fn is_too_early(said: &str) -> bool {
    let said = said.to_lowercase();
    ["connection refused", "connect: refused", "unable to connect"]
        .iter()
        .any(|sign| said.contains(sign))
}

/// Returns a TCP port that is free at the moment, for the server of a pair.
pub(super) fn free_port() -> Result<u16> {
    let socket =
        std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(socket.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(server: &str, client: &str) -> Pair {
        let script = |text: &str| vec!["-c".to_owned(), text.to_owned()];
        Pair { program: "sh", server: script(server), client: script(client), ..Pair::default() }
    }

    fn place() -> Place<'static> {
        Place { path: None, ends: Ends::choose().unwrap(), limit: Duration::from_secs(20) }
    }

    #[test]
    fn early_client_retries() {
        let folder = tempfile::tempdir().unwrap();
        let flag = folder.path().join("listens");
        let flag = flag.display();
        let pair = shell(
            &format!("sleep 0.2; touch {flag}; sleep 60"),
            &format!("test -e {flag} && echo figures || {{ echo connect: refused; exit 1; }}"),
        );
        assert_eq!(pair.run(place()).unwrap().trim(), "figures");
    }

    #[test]
    fn failing_client_is_quoted() {
        let error = shell("sleep 60", "echo no such provider; exit 3").run(place()).unwrap_err();
        assert!(error.to_string().contains("no such provider"), "{error:#}");
        let error =
            shell("echo dead; exit 1", "echo connect: refused; exit 1").run(place()).unwrap_err();
        assert!(error.to_string().contains("dead"), "{error:#}");
    }
}
