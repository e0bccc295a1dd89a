//! The system under test: a Monitor Node in a process of its own, and its store.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use venice_control::Caller;
use venice_control::User;
use venice_control::client::{Access, Login, MonitorClient};
use venice_control::identity::{Authority, Holder};

use super::StoreKind;
use super::etcd::Etcd;
use crate::cpu_time::of_processes_s;
use venice_measure::child::ChildGuard;
use venice_measure::cpus;
use venice_measure::interrupt;
use venice_measure::resident::resident_bytes;

/// Time limit for the Monitor Node's first answer.
const START: Duration = Duration::from_secs(30);
/// Descriptors of a donor in this process besides its connection: its listener, and the Monitor
/// Node's connection to it.
const DESCRIPTORS_OF_DONOR: u64 = 2;
/// Other descriptors.
const DESCRIPTORS_ELSE: u64 = 500;

/// Raises the descriptor limit of this process and its children to what the agents need.
///
/// # Errors
/// When the hard limit is too low; the message gives the remedy.
pub(super) fn make_room_for(agents: u32, donors: u32) -> Result<()> {
    let of_donors = u64::from(donors) * DESCRIPTORS_OF_DONOR;
    let needed = u64::from(agents) + of_donors + DESCRIPTORS_ELSE;
    let limits = getrlimit(Resource::Nofile);
    if limits.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    // Root may raise the hard limit too.
    let maximum = limits.maximum.map(|maximum| maximum.max(needed));
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }).with_context(|| {
        format!(
            "{agents} agents, {donors} of them donors, need {needed} open files, and the limit is \
             {}: raise it (`ulimit -Hn {needed}` as root), or reduce --agents or --donors",
            limits.maximum.unwrap_or_default()
        )
    })
}

/// A Monitor Node for the benchmark. Dropping it ends it and removes its files.
pub(super) struct MonitorUnderTest {
    // The fields are in drop order.
    monitor: ChildGuard,
    etcd: Option<Etcd>,
    authority: Authority,
    addr: String,
    _folder: TempDir,
}

impl MonitorUnderTest {
    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// When it does not answer; the message quotes its log.
    pub(super) fn prepare(store: StoreKind) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("venice-bench-monitor-").tempdir()?;
        let state = folder.path().join("state");
        std::fs::create_dir(&state).context("cannot make the Monitor Node's directory")?;
        let authority = Authority::create(&state.join("identity"))?;
        let etcd = match store {
            StoreKind::File => None,
            StoreKind::Etcd => Some(Etcd::start(folder.path())?),
        };
        let addr = format!("127.0.0.1:{}", free_port()?);
        let program = venice_measure::program::venice()?;
        let mut command = Command::new(program);
        command
            .args(["monitor", "--listen", &addr, "--local-socket", "none"])
            .arg("--state-dir")
            .arg(&state)
            .env_remove("VENICE_MONITOR")
            .env("VENICE_RUN_DIR", folder.path().join("run"))
            .env("VENICE_LOG", "error");
        if let Some(etcd) = &etcd {
            command.args(["--store", &etcd.location()]);
        }
        let log = folder.path().join("monitor.log");
        let monitor =
            on_its_own_processor(|| ChildGuard::spawn("the Monitor Node", command, &log))?;
        let mut monitor_node = Self { monitor, etcd, authority, addr, _folder: folder };
        monitor_node.wait_until_it_listens()?;
        Ok(monitor_node)
    }

    fn wait_until_it_listens(&mut self) -> Result<()> {
        let addr = self.addr.clone();
        interrupt::wait_until("the Monitor Node's start", START, || {
            self.monitor.ensure_alive()?;
            Ok(std::net::TcpStream::connect(&addr).ok().map(drop))
        })
    }

    /// Makes a credential signed by the rack's authority.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn holder(&self, caller: &Caller) -> Result<Holder> {
        Ok(Holder::new(self.authority.credential(caller)?)?)
    }

    /// Returns the access to the Monitor Node with that credential.
    pub(super) fn access(&self, holder: Holder) -> Access {
        Access::new(self.addr.clone(), Login::held(holder))
    }

    /// Connects as a program on `node`.
    ///
    /// # Errors
    /// When the connection fails.
    pub(super) async fn recipient(&self, node: &str) -> Result<MonitorClient> {
        // The bounds on one user's calls do not apply to an administrator.
        let user =
            User { node: node.to_owned(), uid: 1000, name: "bench".to_owned(), is_admin: true };
        let access = self.access(self.holder(&Caller::User(user))?);
        MonitorClient::connect(&access).await.context("cannot reach the Monitor Node")
    }

    /// Checks that the Monitor Node runs.
    ///
    /// # Errors
    /// When it has ended; the message quotes its log.
    pub(super) fn ensure_alive(&mut self) -> Result<()> {
        self.monitor.ensure_alive()
    }

    /// Returns the processor seconds that the Monitor Node has used, and those of its store in
    /// another process.
    pub(super) fn used_s(&self) -> (f64, Option<f64>) {
        let store = self.etcd.as_ref().map(|etcd| of_processes_s(&[etcd.pid()]));
        (of_processes_s(&[self.monitor.pid()]), store)
    }

    /// Returns the resident bytes of the Monitor Node.
    pub(super) fn resident_bytes(&self) -> u64 {
        resident_bytes(self.monitor.pid()).unwrap_or_default()
    }
}

/// Starts the Monitor Node on the first processor and keeps this thread, with all that it starts
/// later, off it: the rest of a rack runs on other machines. A single processor is shared.
fn on_its_own_processor(start: impl FnOnce() -> Result<ChildGuard>) -> Result<ChildGuard> {
    let all = cpus::allowed()?;
    let [first, others @ ..] = &all[..] else { unreachable!("at least one") };
    if others.is_empty() {
        return start();
    }
    cpus::pin_to(*first)?;
    let started = start();
    cpus::stay_on(others)?;
    started
}

/// Returns a port that is free at this moment.
pub(super) fn free_port() -> Result<u16> {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").context("no port is free")?;
    Ok(probe.local_addr()?.port())
}
