//! `venice run --mode swap` by members of a group, by the swap helper.

use std::fs;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg,
};
use rustix::process::{Gid, Pid, PidfdFlags, Signal, Uid, pidfd_open};
use serde_json::{Value, json};
use venice_swap::cgroup::Hierarchy;
use venice_testkit::process::ChildGuard;

use super::can_swap;
use super::programs::{Donors, GROUP, ended_right, filled, grants, list, pages, relay};
use crate::common::{Daemon, Said, finish, kill, pid, runs, wait, wait_until};

/// A user whose number is the group's too, and one who is in no group by himself.
pub const NOBODY: u32 = 65534;
pub const DAEMON: u32 = 1;

/// A rack whose helper serves the members of [`GROUP`].
pub struct Members {
    pub place: Donors,
    venice: PathBuf,
}

impl Members {
    /// Starts a rack with the helper of its first agent.
    pub fn of_rack(nodes: u32, lend: &str) -> Members {
        if venice_testkit::guest::is_inside() {
            let members = Members::of(Donors::start(nodes, lend));
            let run_dir = members.place.run_dir();
            fs::set_permissions(run_dir, fs::Permissions::from_mode(0o755)).unwrap();
            return members;
        }
        let place = crate::common::Place::new();
        let words = ["up", "--lend", lend, "--socket-group", GROUP, "--nodes"];
        place.venice(&[&words[..], &[&nodes.to_string()]].concat()).expect(0);
        Members::of(Donors::Up(place))
    }

    fn of(place: Donors) -> Members {
        let open = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let mut members = Members { venice: env!("CARGO_BIN_EXE_venice").into(), place };
        open(members.pages().parent().unwrap(), 0o711);
        fs::copy(pages(), members.pages()).unwrap();
        let mut test = Command::new("setpriv");
        test.args(["--reuid=65534", "--clear-groups", "test", "-x"]).arg(&members.venice);
        if !test.status().unwrap().success() {
            let there = members.place.file("venice");
            fs::copy(&members.venice, &there).unwrap();
            members.venice = there;
        }
        for user in [NOBODY, DAEMON] {
            let dir = members.session_dir(user);
            fs::create_dir(&dir).unwrap();
            chown(&dir, Some(user), None).unwrap();
        }
        members
    }

    fn pages(&self) -> PathBuf {
        self.place.file("pages")
    }

    fn session_dir(&self, user: u32) -> PathBuf {
        self.place.file(&format!("session-{user}"))
    }

    /// A command of a user who is in the group `gid` alone, without any privilege.
    pub fn command_of(&self, user: u32, gid: u32, words: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        let ids = [format!("--reuid={user}"), format!("--regid={gid}")];
        command.args(ids).args(["--clear-groups", "--bounding-set=-all"]);
        command.arg(&self.venice).args(words).current_dir("/");
        let own = self.place.command(&[]);
        command.envs(own.get_envs().filter_map(|(key, value)| Some((key, value?))));
        for (key, _) in own.get_envs().filter(|(_, value)| value.is_none()) {
            command.env_remove(key);
        }
        command.env("XDG_RUNTIME_DIR", self.session_dir(user));
        command
    }

    pub fn venice(&self, words: &[&str]) -> Said {
        finish(self.command_of(NOBODY, NOBODY, words), words)
    }

    /// Starts the program that swaps, and waits until it has filled its memory.
    fn filled(&self) -> Child {
        let program = self.pages().display().to_string();
        filled(self.command_of(
            NOBODY,
            NOBODY,
            &[&RUN[..], &["--", &program, "24", "wait"]].concat(),
        ))
    }

    /// The socket of the helper of `venice up`.
    pub fn socket(&self) -> PathBuf {
        self.place.run_dir().join("swap.sock")
    }

    pub fn expect_nothing_left(&self) {
        wait_until("the device is gone", || list(&self.place).is_empty());
        wait_until("the grants are gone", || grants(&self.place) == 0);
        wait_until("the cgroups are gone", || groups().is_empty());
    }
}

const RUN: [&str; 7] = ["run", "--mode", "swap", "--port=shm", "--local", "8MiB", "--remote=48MiB"];

/// Returns the cgroups of all runs of this machine.
fn groups() -> Vec<PathBuf> {
    fn below(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                if entry.file_name().to_string_lossy().starts_with("venice-run-") {
                    found.push(path.clone());
                }
                below(&path, found);
            }
        }
    }
    let mut found = Vec::new();
    below(Hierarchy::find().unwrap().mount(), &mut found);
    found
}

/// A connection to a helper.
pub struct Connection(pub OwnedFd);

impl Connection {
    /// Connects as `user`, in the group.
    pub fn of(user: u32, socket: &Path) -> Connection {
        let connect = || {
            // The credentials of this thread alone, which the kernel reports to its peers.
            rustix::thread::set_thread_groups(&[]).unwrap();
            let gid = Gid::from_raw(NOBODY);
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            let uid = Uid::from_raw(user);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
            let fd = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
            rustix::net::connect(&fd, &SocketAddrUnix::new(socket).unwrap()).unwrap();
            fd
        };
        let fd = std::thread::scope(|scope| scope.spawn(connect).join().unwrap());
        set_socket_timeout(&fd, Timeout::Recv, Some(Duration::from_secs(120))).unwrap();
        Connection(fd)
    }

    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        self.try_send(bytes, fds).unwrap();
    }

    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    }

    /// Returns the answer; `null` if the other end has closed.
    pub fn hear(&self) -> Value {
        let mut bytes = vec![0; 1 << 20];
        match rustix::net::recv(&self.0, &mut bytes[..], RecvFlags::empty()) {
            Err(Errno::CONNRESET) | Ok((_, 0)) => Value::Null,
            Ok((_, length)) => serde_json::from_slice(&bytes[..length]).unwrap(),
            Err(error) => panic!("{error}"),
        }
    }

    pub fn ask(&self, question: &Value) -> Value {
        self.send(question.to_string().as_bytes(), &[]);
        self.hear()
    }

    pub fn admit(&self, fds: &[BorrowedFd<'_>]) -> Value {
        self.send(b"\"Admit\"", fds);
        self.hear()
    }
}

pub fn wants() -> Value {
    json!({
        "local_bytes": 8 << 20, "size": {"Exactly": 16 << 20}, "monitor": null, "port": null, "donors": [],
        "placement": null, "bandwidth_bps": 0,
        "waiting": {"wait_ms": 0, "rack_priority": 100, "preempt": false}, "copies": null,
        "reclaim_to": ["donors", "local"], "node": null, "purpose": "/bin/sleep",
    })
}

fn wants_with(field: &str, value: Value) -> Value {
    let mut wants = wants();
    wants[field] = value;
    wants
}

#[track_caller]
pub fn refusal(answer: &Value) -> &str {
    answer["Refused"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

/// A cgroup of a user's session, below one for all of the user's.
struct SessionGroup {
    above: PathBuf,
    own: PathBuf,
}

impl SessionGroup {
    fn make() -> SessionGroup {
        let hierarchy = Hierarchy::find().unwrap();
        let above = hierarchy.mount().join(format!("vt-user-{}", std::process::id()));
        let own = above.join("session");
        fs::create_dir_all(&own).unwrap();
        if let Hierarchy::V2(mount) = &hierarchy {
            for folder in [mount, &above] {
                fs::write(folder.join("cgroup.subtree_control"), "+memory +pids").unwrap();
            }
        }
        SessionGroup { above, own }
    }

    /// Has a command start in it.
    fn command(&self, inner: &Command) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(self.own.join("cgroup.procs"));
        command.arg(inner.get_program()).args(inner.get_args()).current_dir("/");
        command.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command
    }
}

impl Drop for SessionGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.own);
        let _ = fs::remove_dir(&self.above);
    }
}

/// The limits of a user's session go on applying to the program.
pub fn limits_of_session_stay(members: &Members) {
    let session = SessionGroup::make();
    let program = members.pages().display().to_string();
    let words = [&RUN[..], &["--", &program, "24", "wait"]].concat();
    let inner = members.command_of(NOBODY, NOBODY, &words);
    let child = filled(session.command(&inner));
    let made = groups();
    let is_v1 = matches!(Hierarchy::find(), Some(Hierarchy::V1(_)));
    let parent = if is_v1 { &session.own } else { &session.above };
    assert_eq!(made.iter().map(|it| it.parent().unwrap()).collect::<Vec<_>>(), [parent]);
    ended_right(child);
    members.expect_nothing_left();
    if !is_v1 {
        fs::write(session.own.join("pids.max"), "100").unwrap();
        let refused = finish(session.command(&inner), &words).expect(125);
        assert!(refused.complaint().contains("would leave the limit"), "{refused:?}");
        assert!(refused.complaint().contains("session/pids.max"), "{refused:?}");
        members.expect_nothing_left();
    }
}

#[test]
fn session_limits_stay_in_force() {
    let Some(_alone) = can_swap("session_limits_stay_in_force") else { return };
    limits_of_session_stay(&Members::of_rack(2, "128MiB"));
}

/// A user's program swaps by the helper of a rack.
pub fn members_program_runs(members: &Members) {
    let program = members.pages().display().to_string();
    let words = [&RUN[..], &["--stats", "--", &program, "24"]].concat();
    let said = members.venice(&words).expect(0);
    assert_eq!(said.out, "right\n", "{}", said.err);
    assert!(said.err.contains("swapped to 48MiB of node"), "{}", said.err);
    assert!(said.err.contains("; copies 2") && !said.err.contains("written 0B"), "{}", said.err);
    let failing = [&RUN[..], &["--", "sh", "-c", "exit 7"]].concat();
    assert_eq!(members.venice(&failing).code(), 7);
    members.expect_nothing_left();
}

#[test]
fn members_program_runs_on_swap() {
    let Some(_alone) = can_swap("members_program_runs_on_swap") else { return };
    let members = Members::of_rack(2, "128MiB");
    members_program_runs(&members);
    let outgrown = ["run", "--mode", "swap", "--local", "8MiB", "--remote", "16MiB", "--"];
    let program = members.pages().display().to_string();
    let outgrown = members.venice(&[&outgrown[..], &[&program, "32"]].concat());
    assert!(
        outgrown.err.contains("16MiB of its swap device: give it more --remote"),
        "{outgrown:?}"
    );
    // The program is static.
    let auto = ["run", "--local", "8MiB", "--remote", "48MiB", "--", &program, "16"];
    let auto = members.venice(&auto).expect(0);
    assert!(auto.err.contains("--mode auto is swap") && auto.out == "right\n", "{auto:?}");
    members.expect_nothing_left();
}

#[test]
fn memory_is_granted_to_member() {
    let Some(_alone) = can_swap("memory_is_granted_to_member") else { return };
    let members = Members::of_rack(2, "128MiB");
    let child = members.filled();
    let rows = members.place.venice(&["grants", "--json"]).expect(0).json();
    let rows = rows.as_array().unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["owner_user"] == "nobody"), "{rows:?}");
    assert!(
        rows.iter().all(|row| row["purpose"].as_str().unwrap().ends_with("/pages")),
        "{rows:?}"
    );

    // Other programs' pages may lie there too.
    let ids: Vec<String> = rows.iter().map(|row| row["id"].to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let words = [&["grants", "transfer"][..], &ids, &["--to", "daemon"]].concat();
    let refused = members.venice(&words).expect(1);
    assert!(refused.complaint().contains("is of a swap device"), "{refused:?}");

    let row = members.venice(&["ps", "--json"]).expect(0).json()[0].clone();
    assert_eq!((&row["mode"], &row["local_bytes"]), (&"swap".into(), &(8 << 20).into()), "{row}");
    assert!(row["remote_bytes"].as_u64().unwrap() > 12 << 20, "{row}");
    let program = row["pid"].to_string();
    let limit = |size| members.venice(&["limit", &program, "--local", size, "--json"]);
    for (size, bytes) in [("40MiB", 40 << 20), ("12MiB", 12 << 20)] {
        assert_eq!(limit(size).expect(0).json()["local_bytes"], bytes);
    }
    // What it is and has stays the user's.
    let status = fs::read_to_string(format!("/proc/{program}/status")).unwrap();
    for line in ["Uid:\t65534\t65534\t65534\t65534", "CapBnd:\t0000000000000000"] {
        assert!(status.contains(line), "{status}");
    }
    let open = fs::read_dir(format!("/proc/{program}/fd")).unwrap();
    let open: Vec<PathBuf> = open.map(|it| fs::read_link(it.unwrap().path()).unwrap()).collect();
    let is_of_run = |to: &PathBuf| {
        let to = to.to_string_lossy();
        ["socket:", "anon_inode:", "cgroup"].iter().any(|kind| to.contains(kind))
    };
    assert!(!open.iter().any(is_of_run), "{open:?}");
    ended_right(child);
    members.expect_nothing_left();
}

#[test]
fn quota_bounds_members_swap() {
    let Some(_alone) = can_swap("quota_bounds_members_swap") else { return };
    let members = Members::of_rack(2, "128MiB");
    members.place.venice(&["quota", "set", "nobody", "memory=64MiB"]).expect(0);
    let words = [&RUN[..], &["--", "true"]].concat();
    let refused = members.venice(&words).expect(125);
    assert!(refused.complaint().contains("of a quota of 64MiB"), "{refused:?}");
    small_program_runs(&members, "32MiB");
}

#[test]
fn one_copy_is_refused() {
    let Some(_alone) = can_swap("one_copy_is_refused") else { return };
    let members = Members::of_rack(1, "128MiB");
    let refused =
        members.venice(&[&RUN[..], &["--copies", "1", "--", "true"]].concat()).expect(125);
    assert!(refused.complaint().contains("--copies 1 is too few"), "{refused:?}");
    let alone = members.venice(&[&RUN[..], &["--", "true"]].concat()).expect(125);
    assert!(alone.complaint().contains("keeps 2 copies at least"), "{alone:?}");
    // An operator may allow it.
    let socket = members.place.file("one.sock").display().to_string();
    let words =
        ["swap", "helper", "--socket", &socket, "--socket-group", GROUP, "--least-copies", "1"];
    let _helper = Daemon::start(&members.place, &words);
    wait_until("the helper listens", || Path::new(&socket).exists());
    let words = [&RUN[..], &["--", "true"]].concat();
    let mut command = members.command_of(NOBODY, NOBODY, &words);
    command.env("VENICE_SWAP_HELPER_SOCKET", &socket);
    let said = finish(command, &words).expect(0);
    assert!(said.err.contains("no room for two copies"), "{said:?}");
    members.expect_nothing_left();
}

#[test]
fn killed_member_run_leaves_nothing() {
    let Some(_alone) = can_swap("killed_member_run_leaves_nothing") else { return };
    let members = Members::of_rack(2, "128MiB");
    let mut run = members.filled();
    let program = pid(&json!({ "pid": members.venice(&["ps", "--json"]).json()[0]["pid"] }));
    assert_eq!(groups().len(), 1);
    run.kill().unwrap();
    wait(&mut run, &["run"]);
    wait_until("the program is gone", || !runs(program));
    members.expect_nothing_left();

    // The session is killed: the server ends the rest.
    let run = members.filled();
    let folder = groups().remove(0);
    let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
    kill(name.strip_prefix("venice-run-").unwrap().parse().unwrap());
    let output = run.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("session has ended"), "{err}");
    members.expect_nothing_left();
}

/// Processes that fork and end at once are gone before a list of them is read.
#[test]
fn forking_program_ends_with_run() {
    let Some(_alone) = can_swap("forking_program_ends_with_run") else { return };
    let members = Members::of_rack(2, "128MiB");
    let program = members.place.file("relay");
    fs::copy(relay(), &program).unwrap();
    let program = program.display().to_string();
    // The kernel's memory of processes that end is counted too, and cannot be swapped.
    let room = ["run", "--mode=swap", "--port=shm", "--local=48MiB", "--remote=16MiB"];
    let words = [&room[..], &["--", &program, "40", "600"]].concat();
    let mut command = members.command_of(NOBODY, NOBODY, &words);
    let said = members.place.file("said");
    let run = command.stdout(Stdio::null()).stderr(fs::File::create(&said).unwrap()).spawn();
    let mut run = ChildGuard(run.unwrap());
    wait_until("the program runs", || {
        let ended = run.try_wait().unwrap();
        assert_eq!(ended, None, "{}", fs::read_to_string(&said).unwrap());
        let group = groups().pop().map(|group| group.join("cgroup.procs"));
        let members = group.and_then(|group| fs::read_to_string(group).ok());
        members.is_some_and(|members| members.lines().count() > 20)
    });
    run.kill().unwrap();
    wait(&mut run, &["run"]);
    members.expect_nothing_left();
}

#[test]
fn member_run_outlives_helper() {
    let Some(_alone) = can_swap("member_run_outlives_helper") else { return };
    let members = Members::of_rack(2, "128MiB");
    let socket = members.place.file("swap.sock").display().to_string();
    let words = ["swap", "helper", "--socket", &socket, "--socket-group", GROUP];
    let program = members.pages().display().to_string();
    let run = [&RUN[..], &["--", &program, "24", "wait"]].concat();
    let command = || {
        let mut command = members.command_of(NOBODY, NOBODY, &run);
        command.env("VENICE_SWAP_HELPER_SOCKET", &socket);
        command
    };
    let mut helper = Daemon::start(&members.place, &words);
    wait_until("the helper listens", || Path::new(&socket).exists());
    let child = filled(command());
    helper.stop(Signal::KILL);
    let refused = finish(command(), &run).expect(125);
    assert!(refused.complaint().contains("start venice-swap-helper"), "{refused:?}");
    let mut helper = Daemon::start(&members.place, &words);
    let listens = |said: Said| said.code() == 0;
    wait_until("another helper listens", || {
        let words = [&RUN[..], &["--", "true"]].concat();
        let mut command = members.command_of(NOBODY, NOBODY, &words);
        command.env("VENICE_SWAP_HELPER_SOCKET", &socket);
        listens(finish(command, &words))
    });
    assert_eq!(helper.stop(Signal::TERM), Some(0));
    assert!(!Path::new(&socket).exists());
    ended_right(child);
    members.expect_nothing_left();
}

/// A process of a user, which may be given away.
fn sleeper(user: u32, words: &[&str]) -> ChildGuard {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={NOBODY}")]);
    command.arg("--clear-groups").args(words).args(["sleep", "600"]);
    let child = command.spawn().unwrap();
    let comm = format!("/proc/{}/comm", child.id());
    wait_until("it sleeps", || fs::read_to_string(&comm).unwrap() == "sleep\n");
    ChildGuard(child)
}

fn pidfd(child: &Child) -> OwnedFd {
    pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap()
}

fn groups_of(child: &Child) -> String {
    fs::read_to_string(format!("/proc/{}/cgroup", child.id())).unwrap()
}

#[test]
fn foreign_process_is_refused() {
    let Some(_alone) = can_swap("foreign_process_is_refused") else { return };
    let members = Members::of_rack(2, "64MiB");
    let connection = Connection::of(NOBODY, &members.socket());
    let opened = connection.ask(&json!({ "Open": wants() }));
    assert_eq!(opened["Device"]["state"], "up", "{opened}");
    for (user, words, why) in [
        (DAEMON, &["--no-new-privs"][..], "not the user's own"),
        (0, &["--no-new-privs"], "not the user's own"),
        (NOBODY, &[], "may gain privileges"),
    ] {
        let child = sleeper(user, words);
        let before = groups_of(&child);
        let answer = connection.admit(&[pidfd(&child).as_fd()]);
        assert!(refusal(&answer).contains(why), "{answer}");
        assert_eq!(groups_of(&child), before);
    }
    let mut ended = sleeper(NOBODY, &["--no-new-privs"]);
    let of_ended = pidfd(&ended);
    ended.kill().unwrap();
    wait(&mut ended, &["sleep"]);
    assert!(refusal(&connection.admit(&[of_ended.as_fd()])).contains("has ended"));
    let file = fs::File::open("/proc/1").unwrap();
    assert!(refusal(&connection.admit(&[file.as_fd()])).contains("names no process"));
    assert!(refusal(&connection.admit(&[])).contains("no process came"));
    assert_eq!(groups(), Vec::<PathBuf>::new());

    let (own, other) = (sleeper(NOBODY, &["--no-new-privs"]), sleeper(NOBODY, &["--no-new-privs"]));
    // One more descriptor than there should be.
    let answer = connection.admit(&[pidfd(&own).as_fd(), file.as_fd()]);
    assert_eq!(answer, "Done");
    assert!(groups_of(&own).contains("venice-run-"));
    assert!(refusal(&connection.admit(&[pidfd(&other).as_fd()])).contains("for one program"));
    let group = connection.ask(&json!("Group"));
    assert_eq!(group["Group"]["members"], json!([own.id()]));
    drop(connection);
    wait_until("its process is killed", || !runs(own.id().into()));
    assert!(runs(other.id().into()));
    members.expect_nothing_left();
}

#[test]
fn nonsense_is_refused() {
    let Some(_alone) = can_swap("nonsense_is_refused") else { return };
    let members = Members::of_rack(2, "64MiB");
    let socket = members.socket();
    let first = |bytes: &[u8]| {
        let connection = Connection::of(NOBODY, &socket);
        connection.send(bytes, &[]);
        let answer = connection.hear();
        refusal(&answer).to_owned()
    };
    let long = vec![b'x'; 150_000];
    assert!(first(&long).contains("longer than"));
    for bytes in [&b"\0"[..], b"\xff\xff", b"{\"Open\":{}}", b"[[[[", &[b'['; 100_000]] {
        assert!(first(bytes).contains("invalid message"), "{bytes:?}");
    }
    for question in ["Group", "Device", "Admit", "Close"] {
        assert!(first(json!(question).to_string().as_bytes()).contains("first question"));
    }
    for (field, value, why) in [
        ("local_bytes", json!(0), "too little"),
        ("local_bytes", json!(u64::MAX), "more than this machine has"),
        ("size", json!({ "Exactly": u64::MAX }), "--remote"),
        ("size", json!({ "UpTo": 1 }), "--remote"),
        ("size", json!({ "Exactly": 1u64 << 49 }), "no room"),
        ("copies", json!(9), "--copies"),
        ("donors", json!(["no/such"]), "no/such"),
        ("node", json!("a\u{1b}[2J"), "control characters"),
        ("purpose", json!("a\nb"), "control characters"),
        ("reclaim_to", json!(["disk:/etc"]), "invalid message"),
        ("monitor", json!("127.0.0.1:1"), "not the one at 127.0.0.1:1"),
        ("owner_pid", json!(1), "invalid message"),
        ("waiting", json!({ "wait_ms": 0, "rack_priority": 255, "preempt": false }), "root"),
    ] {
        let said = first(json!({ "Open": wants_with(field, value) }).to_string().as_bytes());
        assert!(said.contains(why), "{field}: {said}");
    }
    // One that goes away at once, or while it waits for room.
    drop(Connection::of(NOBODY, &socket));
    let holding = Connection::of(NOBODY, &socket);
    let held = wants_with("size", json!({ "Exactly": 48 << 20 }));
    assert_eq!(holding.ask(&json!({ "Open": held }))["Device"]["state"], "up");
    let waiting = Connection::of(NOBODY, &socket);
    let wait = json!({ "wait_ms": 600_000, "rack_priority": 1, "preempt": false });
    let mut wants = wants_with("waiting", wait);
    wants["size"] = json!({ "Exactly": 32 << 20 });
    waiting.send(json!({ "Open": wants }).to_string().as_bytes(), &[]);
    let queue = || members.place.venice(&["queue", "--json"]).expect(0).json();
    wait_until("a session waits", || queue().as_array().unwrap().len() == 1);
    drop(waiting);
    wait_until("the wait is over", || queue().as_array().unwrap().is_empty());
    drop(holding);
    members.expect_nothing_left();
    small_program_runs(&members, "16MiB");
}

fn small_program_runs(members: &Members, remote: &str) {
    let words = ["run", "--mode", "swap", "--local", "8MiB", "--remote", remote, "--", "true"];
    members.venice(&words).expect(0);
    members.expect_nothing_left();
}

#[test]
fn sessions_of_user_are_bounded() {
    let Some(_alone) = can_swap("sessions_of_user_are_bounded") else { return };
    let members = Members::of_rack(2, "64MiB");
    let silent: Vec<Connection> =
        (0..8).map(|_| Connection::of(NOBODY, &members.socket())).collect();
    let ninth = Connection::of(NOBODY, &members.socket()).hear();
    assert!(refusal(&ninth).contains("you have 8 runs"), "{ninth}");
    let other = Connection::of(DAEMON, &members.socket());
    assert_eq!(other.ask(&json!("Check")), json!({ "Works": { "least_copies": 2 } }));
    // The silent ones are closed.
    assert!(silent.iter().all(|it| it.hear().is_null()));
    wait_until("they are forgotten", || {
        let again = Connection::of(NOBODY, &members.socket());
        again.ask(&json!("Check"))["Works"].is_object()
    });
}

#[test]
fn users_without_helper_are_told() {
    let Some(_alone) = can_swap("users_without_helper_are_told") else { return };
    let members = Members::of_rack(2, "64MiB");
    let words = [&RUN[..], &["--", "true"]].concat();
    let mut without = members.command_of(NOBODY, NOBODY, &words);
    without.env("VENICE_SWAP_HELPER_SOCKET", "none");
    let said = finish(without, &words).expect(125);
    assert!(said.complaint().contains("ask the administrator to start"), "{said:?}");
    // He may enter the directory, and is not in the group.
    fs::set_permissions(members.place.run_dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let said = finish(members.command_of(DAEMON, DAEMON, &words), &words).expect(125);
    assert!(said.complaint().contains("usermod -aG"), "{said:?}");
    let attach = members.venice(&["swap", "attach", "16MiB"]).expect(1);
    assert!(attach.complaint().contains("root"), "{attach:?}");

    let doctor = |user| {
        let said = finish(members.command_of(user, user, &["doctor", "--json"]), &["doctor"]);
        let report = said.json();
        let row = |it: &&Value| it["check"] == "swapping";
        report.as_array().unwrap().iter().find(row).unwrap().clone()
    };
    let (works, not) = (doctor(NOBODY), doctor(DAEMON));
    assert!(works["detail"].as_str().unwrap().contains("swap helper, with 2 copies"), "{works}");
    assert!(not["detail"].as_str().unwrap().contains("usermod -aG"), "{not}");
}
