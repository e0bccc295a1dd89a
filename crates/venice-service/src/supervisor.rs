//! Supervisor of service hosts: the thread that starts, watches and ends their processes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use venice_ports::monotonic_ns;
use venice_wire::GrantId;

use crate::cache::{CacheConfig, CacheDir, CacheKeeper, CacheStore, KeepJob, KeptCache};
use crate::cgroup::{Hierarchies, HostGroups};
use crate::error::{StartError, SupervisorError};
use crate::gate::{Gate, MAX_MESSAGE_BYTES, Report};
use crate::host_processes::HostProcesses;
use crate::id_range::IdRange;
use crate::log_budget::LogBudget;
use crate::spec::{HostSpec, LaunchOrder, host_dir};
use crate::table::{HostAction, HostEvent, HostTable};
use crate::usage::{UsageReader, UsageSample};

/// Longest sleep of the thread in nanoseconds; a check for missed events follows.
const SLEEP_NS: u64 = 1_000_000_000;
/// Reports taken from one host at a time.
const REPORTS_AT_A_TIME: usize = 16;
/// Longest time that a supervisor that is dropped waits for the end of its hosts, in nanoseconds. A
/// process that the kernel holds up ends later; what it leaves is removed at the next start.
const STOP_NS: u64 = 10_000_000_000;

/// Configuration of a supervisor.
#[derive(Clone, Debug)]
pub struct SupervisorConfig {
    /// Directory of hosts, of this supervisor alone; made if it is not there.
    pub dir: PathBuf,
    /// Program that calls [`crate::host_main`].
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Most hosts at a time.
    pub max_hosts: usize,
    /// Ids of users and groups for hosts, the first and the number of them, if the supervisor runs
    /// as root. Nothing else on the machine may use them. `None`: a range that no other supervisor
    /// with the same `/run` has.
    pub ids: Option<(u32, u32)>,
    /// Store of the caches of hosts with an owner. `None`, or one that cannot be used: each host
    /// begins with empty ones.
    pub caches: Option<CacheConfig>,
}

impl SupervisorConfig {
    /// First id for hosts: above those of containers (systemd's table, UIDS-GIDS.md), below those
    /// that some programs take for negative.
    pub const FIRST_ID: u32 = 0x7000_0000;

    /// Returns the configuration of a supervisor whose hosts are this program's subcommand
    /// `service-host`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            program: PathBuf::from("/proc/self/exe"),
            arguments: vec![String::from("service-host")],
            max_hosts: 64,
            ids: None,
            caches: None,
        }
    }
}

/// Supervisor of the hosts in one directory. All of them end when it is dropped, which waits for
/// that, and when its process dies.
#[derive(Debug)]
pub struct HostSupervisor {
    commands: Sender<Order>,
    bell: Arc<OwnedFd>,
    usage: UsagePages,
    thread: Option<JoinHandle<()>>,
}

/// Pages for the usage of the hosts that are there.
type UsagePages = Arc<Mutex<BTreeMap<GrantId, UsageReader>>>;

#[derive(Debug)]
enum Order {
    Start { grant: GrantId, spec: Box<HostSpec>, answer: Option<Sender<Result<(), StartError>>> },
    End(GrantId),
    Stop,
}

impl HostSupervisor {
    /// Opens the directory, removes what a dead supervisor left in it, and starts the thread, which
    /// calls `on_event` for each event.
    ///
    /// # Errors
    /// Fails if another process has the directory, or it cannot be used.
    pub fn open(
        config: SupervisorConfig,
        on_event: impl FnMut(HostEvent) + Send + 'static,
    ) -> Result<Self, SupervisorError> {
        let directory = HostDirectory::open(&config.dir)?;
        let claim = match config.ids {
            Some(ids) => IdRange::given(ids),
            None => IdRange::claim(&directory.path).map_err(SupervisorError::Ids)?,
        };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags).map_err(|error| SupervisorError::Thread(error.into()))?;
        let bell = Arc::new(bell);
        let (commands, received) = channel();
        let usage = UsagePages::default();
        let caches = config.caches.as_ref().and_then(|caches| {
            let opened = Caches::open(caches, Arc::clone(&bell));
            let warn = |error: &io::Error| {
                tracing::warn!(dir = %caches.dir.display(), %error, "no build caches");
            };
            opened.inspect_err(warn).ok()
        });
        let driver = Driver {
            table: HostTable::new(
                directory.path.clone(),
                config.max_hosts.min(claim.ids.1 as usize),
            ),
            config,
            claim,
            directory,
            hosts: BTreeMap::new(),
            commands: received,
            bell: Arc::clone(&bell),
            usage: Arc::clone(&usage),
            caches,
            buffer: vec![0; MAX_MESSAGE_BYTES],
        };
        // The parent of every launcher is this thread: its end, not only the process's, ends them.
        let thread = std::thread::Builder::new()
            .name(String::from("venice-hosts"))
            .spawn(move || driver.run(on_event))
            .map_err(SupervisorError::Thread)?;
        Ok(Self { commands, bell, usage, thread: Some(thread) })
    }

    /// Starts a host. [`HostEvent::Started`] or [`HostEvent::Failed`] follows, unless it is ended
    /// before. Waits some milliseconds for the supervisor's thread.
    ///
    /// # Errors
    /// Fails if the spec is invalid, a host of this grant is still there, or there are as many as
    /// allowed.
    pub fn start(&self, grant: GrantId, spec: HostSpec) -> Result<(), StartError> {
        let (answer, answered) = channel();
        let answer = Some(answer);
        self.send(Order::Start { grant, spec: Box::new(spec), answer });
        answered.recv().unwrap_or(Err(StartError::Closed))
    }

    /// Starts a host without a wait: what [`HostSupervisor::start`] returns as an error is reported
    /// as [`HostEvent::Failed`]. The grant must not have a host.
    pub fn begin(&self, grant: GrantId, spec: HostSpec) {
        self.send(Order::Start { grant, spec: Box::new(spec), answer: None });
    }

    /// Ends a host: kills all of its processes. [`HostEvent::Ended`] follows once nothing is left.
    pub fn end(&self, grant: GrantId) {
        self.send(Order::End(grant));
    }

    /// Returns the counters of a host's service as the host wrote them last, at most a second ago;
    /// `None`: it has not started, or is gone.
    pub fn usage(&self, grant: GrantId) -> Option<UsageSample> {
        let page = self.usage.lock().unwrap_or_else(PoisonError::into_inner).get(&grant).cloned();
        page?.read()
    }

    fn send(&self, command: Order) {
        // Fails once the thread has ended, and then there is nothing to do.
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}

impl Drop for HostSupervisor {
    fn drop(&mut self) {
        self.send(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The locked directory of a supervisor, with its control groups.
#[derive(Debug)]
struct HostDirectory {
    path: PathBuf,
    groups: Hierarchies,
    lock: fs::File,
}

impl Drop for HostDirectory {
    fn drop(&mut self) {
        // A child that another thread has just forked has the descriptor too, until it executes its
        // program: to close this one is not enough.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

impl HostDirectory {
    fn open(path: &Path) -> Result<Self, SupervisorError> {
        let failed = |source| SupervisorError::Directory { path: path.to_path_buf(), source };
        make_dir(path, 0o711).map_err(failed)?;
        let path = path.canonicalize().map_err(failed)?;
        let lock = fs::File::create(path.join("lock")).map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(SupervisorError::InUse { path }),
            Err(error) => return Err(failed(error.into())),
        }
        let groups = Hierarchies::find(&group_name(&path));
        let (found, left) = groups.sweep();
        let hosts = path.join("hosts");
        let swept = remove_dir(&hosts).and_then(|()| make_dir(&hosts, 0o711));
        swept.map_err(failed)?;
        if found > 0 {
            tracing::info!(found, left, "removed control groups of a dead supervisor's hosts");
        }
        Ok(Self { path, groups, lock })
    }

    fn host(&self, grant: GrantId) -> PathBuf {
        host_dir(&self.path, grant)
    }

    /// Makes the directory of a host, whose sockets `owner` makes.
    fn make_host(&self, grant: GrantId, owner: Option<(u32, u32)>) -> io::Result<PathBuf> {
        let dir = self.host(grant);
        make_dir(&dir, 0o711)?;
        for (name, mode) in [("root", 0o700), ("endpoint", 0o711), ("scratch", 0o700)] {
            make_dir(&dir.join(name), mode)?;
        }
        if let Some((uid, gid)) = owner {
            chown(dir.join("endpoint"), Some(uid), Some(gid))?;
            chown(dir.join("scratch"), Some(uid), Some(gid))?;
        }
        Ok(dir)
    }
}

/// Removes the control groups that a dead supervisor has left, with all processes in them; `dir` is
/// its directory. Returns how many groups of hosts there were; 0 if the supervisor lives.
pub fn sweep_dead_hosts(dir: &Path) -> usize {
    let path = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    let lock = fs::File::open(path.join("lock"));
    let is_alive = lock.as_ref().is_ok_and(|lock| {
        flock(lock, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK)
    });
    if is_alive {
        return 0;
    }
    let groups = Hierarchies::find_left(&group_name(&path));
    let (found, _) = groups.sweep();
    groups.remove();
    // A child that another thread has just forked has the descriptor too.
    let _ = lock.map(|lock| flock(&lock, FlockOperation::Unlock));
    found
}

/// Returns the name of the control group of all hosts in a directory.
fn group_name(dir: &Path) -> String {
    format!("venice-hosts-{:016x}", hash(dir.as_os_str().as_encoded_bytes()))
}

/// Hashes bytes (FNV-1a).
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, PermissionsExt::from_mode(mode))
}

fn remove_dir(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// A host of the driver: what has to be removed in the end, with its processes while there are some.
#[derive(Debug)]
struct DrivenHost {
    /// Place in the range of ids.
    slot: u32,
    groups: HostGroups,
    processes: Option<HostProcesses>,
    caches: Vec<CacheDir>,
    /// The owner's part of the store, if the caches are to be kept.
    kept: Option<KeptCache>,
    /// Directory of the caches, once init has brought it.
    cache: Option<OwnedFd>,
    /// True while the keeper has it; the host is removed after.
    is_keeping: bool,
}

/// The store of caches, and the thread that keeps them.
#[derive(Debug)]
struct Caches {
    store: Arc<CacheStore>,
    keeper: CacheKeeper,
}

impl Caches {
    fn open(config: &CacheConfig, bell: Arc<OwnedFd>) -> io::Result<Self> {
        let store = Arc::new(CacheStore::open(config)?);
        let keeper = CacheKeeper::start(Arc::clone(&store), bell)?;
        Ok(Self { store, keeper })
    }
}

/// Performs what the table decides.
struct Driver {
    config: SupervisorConfig,
    claim: IdRange,
    directory: HostDirectory,
    table: HostTable,
    hosts: BTreeMap<GrantId, DrivenHost>,
    commands: Receiver<Order>,
    bell: Arc<OwnedFd>,
    usage: UsagePages,
    caches: Option<Caches>,
    buffer: Vec<u8>,
}

impl Driver {
    fn run(mut self, mut on_event: impl FnMut(HostEvent)) {
        let mut stop_at_ns = None;
        loop {
            if self.take_commands() {
                stop_at_ns.get_or_insert(monotonic_ns() + STOP_NS);
            }
            let grants: Vec<_> = self.hosts.keys().copied().collect();
            grants.into_iter().for_each(|grant| self.look_at(grant));
            self.take_kept();
            self.table.handle_timeout(monotonic_ns());
            while let Some(action) = self.table.poll_action() {
                self.perform(action);
            }
            while let Some(event) = self.table.poll_event() {
                log_event(&event);
                on_event(event);
            }
            match stop_at_ns {
                Some(_) if self.table.is_empty() => break,
                Some(at_ns) if at_ns <= monotonic_ns() => {
                    tracing::error!(hosts = self.table.len(), "service hosts do not end");
                    break;
                }
                Some(_) | None => self.sleep(),
            }
        }
        self.directory.groups.remove();
    }

    /// Takes commands; returns true if the supervisor is to stop.
    fn take_commands(&mut self) -> bool {
        let mut stops = false;
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Order::Start { grant, spec, answer } => {
                    let taken = match (stops, spec.check()) {
                        (true, _) => Err(StartError::Closed),
                        (false, Err(why)) => Err(StartError::Invalid { why }),
                        (false, Ok(())) => self.table.handle_start(grant, *spec),
                    };
                    match (answer, taken) {
                        (Some(answer), taken) => drop(answer.send(taken)),
                        (None, Ok(())) => {}
                        (None, Err(error)) => self.table.handle_refused(grant, error.to_string()),
                    }
                }
                Order::End(grant) => self.table.handle_end(monotonic_ns(), grant),
                Order::Stop => stops = true,
            }
        }
        if stops {
            let grants: Vec<_> = self.table.grants().collect();
            grants.into_iter().for_each(|grant| self.table.handle_end(monotonic_ns(), grant));
        }
        stops
    }

    fn perform(&mut self, action: HostAction) {
        let now_ns = monotonic_ns();
        match action {
            HostAction::Spawn { grant, spec } => match self.spawn(grant, &spec) {
                Ok(()) => self.table.handle_spawned(now_ns, grant),
                Err(error) => self.table.handle_spawn_failed(grant, error.to_string()),
            },
            HostAction::Kill(grant) => {
                if let Some(host) = self.hosts.get_mut(&grant) {
                    host.kill();
                }
            }
            HostAction::Sweep(grant) if self.keep(grant) => {}
            HostAction::Sweep(grant) => {
                let is_removed = self.sweep(grant);
                self.table.handle_swept(now_ns, grant, is_removed);
            }
        }
    }

    fn spawn(&mut self, grant: GrantId, spec: &HostSpec) -> io::Result<()> {
        let taken: Vec<u32> = self.hosts.values().map(|host| host.slot).collect();
        let slot = (0..self.claim.ids.1).find(|slot| !taken.contains(slot));
        let slot = slot.ok_or_else(|| io::Error::other("no user id left for a host"))?;
        let id = self.claim.ids.0 + slot;
        let ids = usable_id(id).map(|()| (id, id));
        let groups = self.directory.groups.make(&format!("{:x}", grant.0), &spec.limits);
        let (procs, missing) = (groups.procs.clone(), groups.missing.clone());
        let owner = spec.cache_owner.as_deref().filter(|_| !spec.caches.is_empty());
        let caches = self.caches.as_ref().zip(owner);
        let kept = caches.and_then(|(caches, owner)| caches.store.owner(owner));
        let host = DrivenHost {
            slot,
            groups,
            processes: None,
            caches: spec.caches.clone(),
            kept: kept.clone(),
            cache: None,
            is_keeping: false,
        };
        self.hosts.insert(grant, host);
        let dir = self.directory.make_host(grant, ids.as_ref().ok().copied()).map_err(|error| {
            let dir = self.directory.host(grant);
            io::Error::new(error.kind(), format!("making {}: {error}", dir.display()))
        })?;
        let order = LaunchOrder {
            grant,
            spec: spec.clone(),
            ids,
            kept,
            dir,
            cgroups: procs,
            no_cgroups: missing,
        };
        let processes = self.launch(&order).map_err(|error| {
            let program = self.config.program.display();
            io::Error::new(error.kind(), format!("starting {program}: {error}"))
        })?;
        if let Some(host) = self.hosts.get_mut(&grant) {
            host.processes = Some(processes);
        }
        Ok(())
    }

    fn launch(&self, order: &LaunchOrder) -> io::Result<HostProcesses> {
        let (ours, theirs) = Gate::pair()?;
        let usage = UsageReader::make()?;
        let mut launcher = Command::new(&self.config.program)
            .args(&self.config.arguments)
            .env_clear()
            .envs(&order.spec.environment)
            .current_dir("/")
            .stdin(Stdio::from(theirs.into_fd()))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let prepared = || -> io::Result<_> {
            let id = Pid::from_child(&launcher);
            let pidfd = pidfd_open(id, PidfdFlags::empty())?;
            match ours.send_order(order, usage.file().as_fd()) {
                // It has ended; its exit code says more.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                sent => sent?,
            }
            Ok(pidfd)
        };
        let pidfd = match prepared() {
            Ok(pidfd) => pidfd,
            Err(error) => {
                // It waits for an order that will not come.
                let _ = launcher.kill();
                let _ = launcher.wait();
                return Err(error);
            }
        };
        self.usage().insert(order.grant, usage);
        HostProcesses::new(launcher, pidfd, ours, order.spec.limits.log_bytes_per_s)
    }

    /// Takes what the processes of a host brought.
    fn look_at(&mut self, grant: GrantId) {
        let Some(host) = self.hosts.get_mut(&grant) else { return };
        let Some(processes) = &mut host.processes else { return };
        let now_ns = monotonic_ns();
        // The ends first: what was reported before them is then in the gate.
        processes.look_for_ends();
        for _ in 0..REPORTS_AT_A_TIME {
            let Some(gate) = &processes.gate else { break };
            match gate.try_receive_report(&mut self.buffer) {
                // The launcher's, before anything else of the host runs: no later one counts.
                Ok((Report::Init, Some(fd))) if processes.init.is_none() => {
                    processes.init = Some(fd);
                    self.table.handle_report(now_ns, grant, Report::Init);
                }
                // Init's, before the host exists.
                Ok((Report::Cache, Some(fd))) if host.kept.is_some() && host.cache.is_none() => {
                    host.cache = Some(fd);
                    self.table.handle_report(now_ns, grant, Report::Cache);
                }
                Ok((Report::Init | Report::Cache, _)) => {
                    self.table.handle_bad_report(now_ns, grant)
                }
                Ok((report, _)) => self.table.handle_report(now_ns, grant, report),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    processes.gate = None;
                    if error.kind() == ErrorKind::Other {
                        self.table.handle_bad_report(now_ns, grant);
                    }
                }
            }
        }
        processes.read_log(grant, now_ns);
        processes.look_for_ends();
        if let Some(exit) = processes.gone() {
            processes.finish_log(grant);
            let hint = hint(&host.groups, &processes.log);
            host.processes = None;
            self.table.handle_gone(grant, exit, hint);
        } else if processes.launcher_exit.is_some() || processes.is_launcher_late(now_ns) {
            // One without the other: killed, or stopped, by someone else.
            host.kill();
        }
    }

    /// Gives what the caches of an ended host hold to the keeper, once; false if there is nothing.
    fn keep(&mut self, grant: GrantId) -> bool {
        let Some(host) = self.hosts.get_mut(&grant) else { return false };
        let (Some(caches), Some(root), Some(kept)) =
            (&self.caches, host.cache.take(), host.kept.take())
        else {
            return false;
        };
        let dirs = std::mem::take(&mut host.caches);
        host.is_keeping = caches.keeper.put(KeepJob { grant, root, dirs, kept });
        host.is_keeping
    }

    /// Removes the hosts whose caches are kept.
    fn take_kept(&mut self) {
        let Some(caches) = &self.caches else { return };
        let mut kept = Vec::new();
        loop {
            match caches.keeper.done() {
                Ok(Some(grant)) => kept.push(grant),
                Ok(None) => break,
                Err(()) => {
                    let keeping = self.hosts.iter().filter(|(_, host)| host.is_keeping);
                    kept.extend(keeping.map(|(grant, _)| *grant));
                    break;
                }
            }
        }
        for grant in kept {
            if let Some(host) = self.hosts.get_mut(&grant) {
                host.is_keeping = false;
            }
            self.perform(HostAction::Sweep(grant));
        }
    }

    /// Removes what a host left; true if nothing is left.
    fn sweep(&mut self, grant: GrantId) -> bool {
        let Some(host) = self.hosts.get(&grant) else { return true };
        host.groups.kill();
        if !host.groups.remove() || remove_dir(&self.directory.host(grant)).is_err() {
            return false;
        }
        self.hosts.remove(&grant);
        self.usage().remove(&grant);
        true
    }

    fn usage(&self) -> MutexGuard<'_, BTreeMap<GrantId, UsageReader>> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep(&mut self) {
        let now_ns = monotonic_ns();
        let mut until_ns = self.table.poll_timeout().unwrap_or(u64::MAX).min(now_ns + SLEEP_NS);
        let mut fds = vec![PollFd::new(&*self.bell, PollFlags::IN)];
        for processes in self.hosts.values().filter_map(|host| host.processes.as_ref()) {
            fds.extend(processes.watched(now_ns, &mut until_ns));
        }
        let timeout_ns = until_ns.saturating_sub(now_ns);
        let timeout = Timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as i64,
            tv_nsec: (timeout_ns % 1_000_000_000) as i64,
        };
        // The result is irrelevant: everything is looked at again.
        let _ = poll(&mut fds, Some(&timeout));
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
    }
}

impl DrivenHost {
    fn kill(&mut self) {
        if let Some(processes) = &mut self.processes {
            processes.kill();
        }
        self.groups.kill();
    }
}

/// Checks that a process of this one's may take the id of a user and group.
fn usable_id(id: u32) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err(String::from("not started by root"));
    }
    for map in ["/proc/self/uid_map", "/proc/self/gid_map"] {
        let text = fs::read_to_string(map).map_err(|error| format!("{map}: {error}"))?;
        if !is_mapped(&text, id) {
            return Err(format!("id {id} is not mapped in this user namespace"));
        }
    }
    Ok(())
}

/// True if an id is in a map of ids (user_namespaces(7)): lines of first id, first id outside, count.
fn is_mapped(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> =
            line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        matches!(numbers[..], [first, _, count]
            if (first..first + count).contains(&u64::from(id)))
    })
}

/// Returns what else is known about the end of a host.
fn hint(groups: &HostGroups, log: &LogBudget) -> Option<String> {
    if groups.memory_kills() > 0 {
        return Some(String::from("outgrew its memory"));
    }
    Some(log.last_lines()).filter(|words| !words.is_empty()).map(|words| format!("'{words}'"))
}

fn log_event(event: &HostEvent) {
    match event {
        HostEvent::Started { grant, endpoints, confinement } => {
            tracing::info!(grant = grant.0, ?endpoints, "service host started");
            for (measure, why) in confinement.missing() {
                tracing::warn!(grant = grant.0, %measure, why, "service host is confined in part");
            }
        }
        HostEvent::Failed { grant, why } => {
            tracing::error!(grant = grant.0, why, "service host did not start");
        }
        HostEvent::Died { grant, why, .. } => {
            tracing::error!(grant = grant.0, why, "service host died");
        }
        HostEvent::Ended { grant } => tracing::info!(grant = grant.0, "service host ended"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_ids_are_read() {
        assert!(is_mapped("         0          0 4294967295\n", 0x7000_0000));
        assert!(!is_mapped("0 1000 1\n1 100000 65536\n", 0x7000_0000));
        assert!(is_mapped("0 1000 1\n1 100000 65536\n", 65_536));
        assert!(!is_mapped("nonsense\n", 0));
    }
}
