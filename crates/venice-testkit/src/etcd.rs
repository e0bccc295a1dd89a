//! etcd for tests: Debian's etcd with any number of members, on this machine or in its network
//! namespaces, removed with the test.

use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

use crate::process::ChildGuard;

/// Time that members may take to find each other.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ports of each test process.
const PORTS: u16 = 200;

/// Prefix of the records that fill an etcd.
const FILLER: &str = "filler/";
const FILLER_BYTES: usize = 100_000;

/// Members of one etcd.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    folder: TempDir,
    limits: Limits,
}

/// Limits of the members.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Largest number of changes in one transaction.
    txn_ops: usize,
    /// Storage quota in bytes; 0: etcd's default.
    quota_bytes: u64,
}

/// Limits that a Monitor Node needs.
const LIMITS: Limits = Limits { txn_ops: 2048, quota_bytes: 0 };

/// A network namespace, and its address.
#[derive(Debug, Clone)]
pub struct Namespace {
    /// Its name for `ip netns`.
    pub name: String,
    /// Its address for other namespaces.
    pub address: String,
}

#[derive(Debug)]
struct Member {
    /// `None`: the test's own namespace.
    namespace: Option<Namespace>,
    client_port: u16,
    peer_port: u16,
    process: Option<ChildGuard>,
}

impl Etcd {
    /// Starts members that accept the transactions of a Monitor Node, and waits until they answer.
    ///
    /// # Panics
    /// Without etcd, or when they do not answer.
    pub fn start(members: usize) -> Self {
        Self::start_members(of(members), LIMITS)
    }

    /// Starts them with another limit for transactions.
    ///
    /// # Panics
    /// The same as [`Etcd::start`].
    pub fn start_with(members: usize, txn_ops: usize) -> Self {
        Self::start_members(of(members), Limits { txn_ops, ..LIMITS })
    }

    /// Starts members with a storage quota.
    ///
    /// # Panics
    /// The same as [`Etcd::start`].
    pub fn start_small(members: usize, quota_bytes: u64) -> Self {
        Self::start_members(of(members), Limits { quota_bytes, ..LIMITS })
    }

    /// Starts a member in each of these namespaces.
    ///
    /// # Panics
    /// The same as [`Etcd::start`].
    pub fn start_in(namespaces: &[Namespace]) -> Self {
        Self::start_members(namespaces.iter().map(Member::within).collect(), LIMITS)
    }

    fn start_members(members: Vec<Member>, limits: Limits) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut etcd = Self { members, folder, limits };
        for member in 0..etcd.members.len() {
            etcd.spawn(member, "new");
        }
        etcd.wait_for_all();
        etcd
    }

    /// Returns `host:port,host:port...` of the members, for clients.
    pub fn addresses(&self) -> String {
        let each = self.members.iter().map(|member| member.address(member.client_port));
        each.collect::<Vec<_>>().join(",")
    }

    /// Kills a member with SIGKILL.
    ///
    /// # Panics
    /// When it is not running.
    pub fn kill(&mut self, member: usize) {
        let mut process = self.members[member].process.take().expect("the member does not run");
        process.kill().expect("the member cannot be killed");
        process.wait().expect("the member does not end");
    }

    /// Restarts a killed member.
    ///
    /// # Panics
    /// When it runs.
    pub fn restart(&mut self, member: usize) {
        assert!(self.members[member].process.is_none(), "the member runs");
        self.spawn(member, "existing");
    }

    /// Kills all members and starts empty ones at the same addresses.
    ///
    /// # Panics
    /// The same as [`Etcd::start`], and when one is not running.
    pub fn begin_anew(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill(member));
        for member in 0..self.members.len() {
            std::fs::remove_dir_all(self.data_dir(member))
                .expect("the member's data cannot be removed");
            self.spawn(member, "new");
        }
        self.wait_for_all();
    }

    /// Stops a member by SIGSTOP, like a machine that hangs.
    ///
    /// # Panics
    /// When it is not running.
    pub fn stall(&self, member: usize) {
        self.signal(member, Signal::STOP);
    }

    /// Resumes it.
    ///
    /// # Panics
    /// When it is not running.
    pub fn go_on(&self, member: usize) {
        self.signal(member, Signal::CONT);
    }

    /// Returns the leading member; `None` without a leader.
    pub fn leader(&self) -> Option<usize> {
        let is_leader = |member: &Member| {
            let status = self.status(member);
            let leader = field(&status, "Leader");
            leader.is_some() && leader == field(&status, "MemberID")
        };
        self.members.iter().position(is_leader)
    }

    fn status(&self, member: &Member) -> String {
        self.ctl(member, &["endpoint", "status", "-w", "fields"])
    }

    /// Stores foreign records until the quota is reached.
    pub fn fill(&self) {
        let value = "x".repeat(FILLER_BYTES);
        let is_taken = |number: u64| {
            let key = format!("{FILLER}{number}");
            self.ctl(&self.members[0], &["put", &key, &value]).starts_with("OK")
        };
        assert!(!(0..1000).all(is_taken), "etcd does not reach its quota");
    }

    /// Removes them, and compacts and defragments like an operator.
    ///
    /// # Panics
    /// When a member does not report its revision.
    pub fn make_room(&self) {
        self.ctl(&self.members[0], &["del", "--prefix", FILLER]);
        let status = self.status(&self.members[0]);
        self.ctl(&self.members[0], &["compact", &field(&status, "Revision").expect("a revision")]);
        for member in &self.members {
            self.ctl(member, &["defrag"]);
        }
        self.ctl(&self.members[0], &["alarm", "disarm"]);
    }

    /// Compacts the history before this revision.
    pub fn compact(&self, revision: u64) {
        self.ctl(&self.members[0], &["compact", &revision.to_string()]);
    }

    /// Stores a record without its clients' knowledge.
    pub fn put(&self, key: &str, value: &str) {
        self.ctl(&self.members[0], &["put", key, value]);
    }

    /// Removes a record without its clients' knowledge.
    pub fn remove(&self, key: &str) {
        self.ctl(&self.members[0], &["del", key]);
    }

    fn signal(&self, member: usize, signal: Signal) {
        let process = self.members[member].process.as_ref().expect("the member does not run");
        kill_process(Pid::from_child(process), signal).expect("the member cannot be signalled");
    }

    fn data_dir(&self, member: usize) -> PathBuf {
        self.folder.path().join(format!("member{member}"))
    }

    fn spawn(&mut self, member: usize, state: &str) {
        let peer_url = |member: &Member| format!("http://{}", member.address(member.peer_port));
        let all = self.members.iter().enumerate();
        let all = all.map(|(number, member)| format!("member{number}={}", peer_url(member)));
        let all = all.collect::<Vec<_>>().join(",");
        let (data_dir, limits) = (self.data_dir(member), self.limits);
        let [txn_ops, quota] = [limits.txn_ops as u64, limits.quota_bytes].map(|it| it.to_string());
        let log = std::fs::File::create(data_dir.with_extension("log")).expect("a log file");
        let ours = &self.members[member];
        let client_url = format!("http://{}", ours.address(ours.client_port));
        let peer_url = peer_url(ours);
        let mut command = ours.command("etcd");
        command
            .args(["--name", &format!("member{member}"), "--initial-cluster", &all])
            .args(["--initial-cluster-state", state, "--logger", "zap"])
            .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--max-txn-ops", &txn_ops, "--quota-backend-bytes", &quota, "--data-dir"])
            .arg(&data_dir);
        // The settings of the package's own service are not inherited.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ETCD_")) {
            command.env_remove(name);
        }
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let process = process.expect("etcd (package etcd-server) starts");
        self.members[member].process = Some(ChildGuard(process));
    }

    /// Waits until each of them has a leader: a member that never came up would make the next death
    /// one too many.
    fn wait_for_all(&self) {
        let follows = |member: &Member| {
            field(&self.status(member), "Leader").is_some_and(|leader| leader != "0")
        };
        let began = Instant::now();
        while !self.members.iter().all(follows) {
            assert!(began.elapsed() < PATIENCE, "members are not up; logs in {:?}", self.folder);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the output of `etcdctl` for one member.
    fn ctl(&self, member: &Member, arguments: &[&str]) -> String {
        let endpoint = member.address(member.client_port);
        let output = member
            .command("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--dial-timeout", "1s", "--command-timeout", "2s", "--endpoints", &endpoint])
            .args(arguments)
            .stderr(Stdio::null())
            .output();
        let output = output.expect("etcdctl (package etcd-client) starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn of(members: usize) -> Vec<Member> {
    (0..members).map(|_| Member::new()).collect()
}

/// Returns a field of the output of `etcdctl -w fields`.
fn field(said: &str, name: &str) -> Option<String> {
    let line = said.lines().find(|line| line.starts_with(&format!("\"{name}\"")))?;
    line.split(':').nth(1).map(|value| value.trim().to_owned())
}

/// Returns a port of this process's own range, below the kernel's ephemeral ports: no other socket
/// takes it before its member listens, nor between two starts.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 50) as u16 * PORTS;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let mut candidates = (0..PORTS).map(|_| first + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS);
    candidates.find(is_free).expect("a free port")
}

impl Member {
    fn new() -> Self {
        let (client_port, peer_port) = (free_port(), free_port());
        Self { namespace: None, client_port, peer_port, process: None }
    }

    /// Returns etcd's standard ports, which are free in the namespace.
    fn within(namespace: &Namespace) -> Self {
        let namespace = Some(namespace.clone());
        Self { namespace, client_port: 2379, peer_port: 2380, process: None }
    }

    fn address(&self, port: u16) -> String {
        let host = self.namespace.as_ref().map_or("127.0.0.1", |it| &it.address);
        format!("{host}:{port}")
    }

    fn command(&self, program: &str) -> Command {
        let Some(Namespace { name, .. }) = &self.namespace else { return Command::new(program) };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", name, program]);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: an outgoing connection once took such a port, and etcd's third member never came
    /// up.
    #[test]
    fn ports_are_below_the_ephemeral_range() {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
        let ports: std::collections::BTreeSet<u16> = (0..20).map(|_| free_port()).collect();
        assert!(ports.len() == 20 && ports.iter().all(|port| *port < first), "{ports:?}");
    }
}
