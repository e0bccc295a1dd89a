//! The server of one mode: a real memcached, in all but one mode behind the proxy.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use tempfile::TempDir;

use super::super::serve::{Client, Memcached, Room};
use super::clients::{self, Answers, Clients};
use super::proxy::VictimMemory;
use super::values::Values;
use venice_measure::child::ChildGuard;
use venice_measure::interrupt::wait_until;
use venice_measure::launch::Launch;
use venice_measure::rack::Rack;
use venice_measure::resident::resident_anonymous_bytes;
use venice_measure::scratch;

/// Time limit for the proxy to borrow its memory and to listen.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Bounds of the victim store's size: twice the values, since a value of half a MiB or more may
/// take twice its length in the object cache's blocks; and some blocks at least.
const VICTIM_ROOM: (u64, u64) = (2, 48 << 20);

/// The proxy in between, if there is one, and its task.
#[derive(Debug, Clone, Copy)]
pub(super) enum Front<'a> {
    /// Clients talk to memcached.
    None,
    /// It forwards.
    Proxy,
    /// It moves values beyond `near_bytes` into a victim store for `far_bytes`.
    Victims { memory: VictimMemory, rack: Option<&'a Rack>, near_bytes: u64, far_bytes: u64 },
}

impl Front<'_> {
    /// Returns memcached's room for `data_bytes`.
    fn room(self, data_bytes: u64) -> Room {
        match self {
            // memcached's size classes take up to a quarter, and it may not evict values that fit.
            Front::Victims { near_bytes, .. } => {
                Room { mib: ((near_bytes + near_bytes / 4) >> 20) + 16, evicts: false }
            }
            Front::None | Front::Proxy => Room::ample(data_bytes),
        }
    }
}

/// Returns the size of a victim store for `far_bytes` of values.
pub(super) fn victim_bytes(far_bytes: u64) -> u64 {
    let (times, more) = VICTIM_ROOM;
    far_bytes * times + more
}

/// A running server with all its values in their versions. Dropping it takes it down, the proxy
/// first.
pub(super) struct VictimServer<'a> {
    proxy: Option<ChildGuard>,
    memcached: Memcached,
    socket: PathBuf,
    values: &'a Values,
    versions: Vec<u64>,
    _folder: TempDir,
}

impl<'a> VictimServer<'a> {
    /// Starts it and stores every value of `keys`. `room` bounds memcached.
    ///
    /// # Errors
    /// When memcached or proxy fail, and on an interrupt.
    pub(super) fn start(
        launch: &Launch<'_>,
        front: Front<'_>,
        room: Option<Room>,
        (values, keys): (&'a Values, u64),
        label: &str,
    ) -> Result<Self> {
        let folder = scratch::folder(scratch::FOLDER)?;
        let data_bytes = keys * values.value_bytes as u64;
        let room = room.unwrap_or_else(|| front.room(data_bytes));
        let memcached = Memcached::start(launch, room, folder.path())?;
        let (proxy, socket) = match proxy_command(front)? {
            Some(command) => {
                let (guard, socket) = start_proxy(command, memcached.socket(), folder.path())?;
                (Some(guard), socket)
            }
            None => (None, memcached.socket().to_owned()),
        };
        let versions = vec![0; keys as usize];
        let mut server = Self { proxy, memcached, socket, values, versions, _folder: folder };
        let loaded =
            server.connect().and_then(|mut client| clients::load(&mut client, values, keys, label));
        loaded.map_err(|error| server.explain(error))?;
        Ok(server)
    }

    /// Connects `count` clients.
    ///
    /// # Errors
    /// When no server listens.
    pub(super) fn clients(&mut self, count: usize) -> Result<Clients<'a>> {
        let clients = (0..count).map(|_| self.connect()).collect::<Result<_>>();
        clients
            .map(|clients| Clients::of(clients, self.values))
            .map_err(|error| self.explain(error))
    }

    /// Runs its clients' requests; see [`Clients::ask`].
    ///
    /// # Errors
    /// When memcached or proxy fail, and on an interrupt.
    pub(super) fn ask(
        &mut self,
        clients: &mut Clients<'_>,
        requests: u64,
        seed: u64,
        limit: Duration,
    ) -> Result<Answers> {
        let answers = clients.ask(&mut self.versions, requests, seed, limit);
        answers.map_err(|error| self.explain(error))
    }

    /// Checks every value once.
    ///
    /// # Errors
    /// The same as [`VictimServer::ask`].
    pub(super) fn read_back(&mut self, label: &str) -> Result<Answers> {
        let read = self.connect().and_then(|mut client| {
            clients::read_back(&mut client, self.values, &self.versions, label)
        });
        read.map_err(|error| self.explain(error))
    }

    /// Returns the bytes of anonymous memory that memcached has resident.
    ///
    /// # Errors
    /// When it has ended.
    pub(super) fn resident_bytes(&self) -> Result<u64> {
        resident_anonymous_bytes(self.memcached.pid()?).context("memcached has ended")
    }

    /// Returns a count of the proxy; 0 without a proxy.
    ///
    /// # Errors
    /// The same as [`VictimServer::ask`].
    pub(super) fn count(&mut self, name: &str) -> Result<u64> {
        if self.proxy.is_none() {
            return Ok(0);
        }
        let stats = self.connect().and_then(|mut client| client.stats());
        let stats = stats.map_err(|error| self.explain(error))?;
        let of_name = stats.into_iter().find(|(of, _)| of == name);
        Ok(of_name.map_or(0, |(_, count)| count))
    }

    fn connect(&self) -> Result<Client> {
        Client::connect(&self.socket, self.values.value_bytes)
    }

    fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        let error = match &mut self.proxy {
            Some(proxy) => proxy.explain(error),
            None => error,
        };
        self.memcached.explain(error)
    }
}

/// Builds the proxy's command, without its sockets.
fn proxy_command(front: Front<'_>) -> Result<Option<Command>> {
    let plain = || -> Result<Command> {
        let program = std::env::current_exe().context("cannot find the running program")?;
        let mut command = Command::new(program);
        command.args(["bench", "victim-proxy"]);
        Ok(command)
    };
    let Front::Victims { memory, rack, near_bytes, far_bytes } = front else {
        return if matches!(front, Front::Proxy) { plain().map(Some) } else { Ok(None) };
    };
    let mut command = match rack {
        Some(rack) => {
            let mut command =
                rack.command(&std::env::current_exe().context("cannot find the running program")?);
            command.args(["bench", "victim-proxy"]);
            command
        }
        None => plain()?,
    };
    let name = memory.to_possible_value().expect("no memory is hidden");
    command.args(["--victims", name.get_name(), "--near", &near_bytes.to_string()]);
    command.args(["--size", &victim_bytes(far_bytes).to_string()]);
    Ok(Some(command))
}

fn start_proxy(
    mut command: Command,
    memcached: &Path,
    folder: &Path,
) -> Result<(ChildGuard, PathBuf)> {
    let socket = folder.join("proxy.sock");
    command.arg("--listen").arg(&socket).arg("--memcached").arg(memcached);
    let mut guard = ChildGuard::spawn("the proxy", command, &folder.join("proxy.log"))?;
    wait_until("the start of the proxy", START_LIMIT, || {
        guard.ensure_alive()?;
        Ok(Client::connect(&socket, 0).ok())
    })?;
    Ok((guard, socket))
}
