//! One running `redis-server`, unmodified, without persistence.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::resp::{Client, Reply};
use crate::child::{self, ChildGuard};
use crate::interrupt::wait_until;
use crate::launch::Launch;

/// Time limit for redis's first answer.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Finds redis-server.
///
/// # Errors
/// When redis-server is not installed; the message names its package.
pub fn find_program() -> Result<PathBuf> {
    child::find_program("redis-server")
        .context("the demo needs redis-server: apt-get install redis-server")
}

/// A redis process; dropping it ends the process.
#[derive(Debug)]
pub struct Redis {
    client: Client,
    socket: PathBuf,
    pid: u32,
    server: ChildGuard,
}

impl Redis {
    /// Starts redis in the way of `launch`, its socket and log in `folder` under `name`.
    ///
    /// # Errors
    /// When it does not start; the message quotes its log.
    pub fn start(program: &Path, launch: &Launch<'_>, folder: &Path, name: &str) -> Result<Self> {
        let socket = folder.join(format!("{name}.sock"));
        let mut command = launch.command(program);
        command
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"])
            .args(["--loglevel", "warning", "--dir"])
            .arg(folder)
            .arg("--unixsocket")
            .arg(&socket);
        let log = folder.join(format!("{name}.log"));
        let mut server = ChildGuard::spawn("redis-server", command, &log)?;
        let mut client = wait_until("the start of redis-server", START_LIMIT, || {
            server.ensure_alive()?;
            Ok(Client::connect(&socket).ok())
        })
        .context("redis-server does not run")?;
        let pid = process_id(&mut client)?;
        Ok(Self { client, socket, pid, server })
    }

    /// Returns the connection to the server.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Returns the socket for further clients.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the process that holds the data, which differs from the started one if a supervisor
    /// stands in between.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Replaces a failed conversation's error by the server's death, if that is the cause.
    pub fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.server.explain(error)
    }
}

fn process_id(client: &mut Client) -> Result<u32> {
    let Reply::Bulk(text) = client.call(&[b"INFO", b"server"])? else {
        bail!("redis does not answer INFO");
    };
    info_field(&String::from_utf8_lossy(text), "process_id")
        .and_then(|digits| digits.parse().ok())
        .context("redis does not report its process id")
}

fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_parsed() {
        let info = "# Server\r\nprocess_id_x:1\r\nprocess_id:4711\r\nport:0\r\n";
        assert_eq!(info_field(info, "process_id"), Some("4711"));
        assert_eq!(info_field(info, "absent"), None);
    }
}
