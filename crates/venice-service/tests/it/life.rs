//! The life of a host: start, meeting, end, and every death.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::{Pid, Signal, kill_process};
use venice_ports::qpair::{QPairAddress, QPairSeal};
use venice_ports::seal::{SealedAs, node_key};
use venice_service::wire::{self, CloseCode, Hello, Message};
use venice_service::{
    ClientError, Endpoint, EndpointSpec, HostEvent, HostSpec, HostSupervisor, Measure, SealSpec,
    ServiceClient, ServiceSecret, ServiceUsage, StartError, SupervisorConfig, SupervisorError,
    echo, probe_confinement, sweep_dead_hosts,
};
use venice_testkit::process::ChildGuard;
use venice_testkit::random::SplitMix64;
use venice_testkit::wait::{wait_for, wait_until};
use venice_wire::{GrantId, KeyName, NodeSecret};

use crate::common::{Fixture, GRANT, LIMIT, SECRET, address, connect, skips_without_root};

#[test]
fn echo_is_served_and_ends() {
    let fixture = Fixture::new();
    let (endpoints, confinement) = fixture.started(HostSpec::new("echo", SECRET));
    println!("{confinement}");
    let mut client = connect(&endpoints[0], "echo");
    assert_eq!(client.call(1, echo::ECHO, b"hello").unwrap(), (0, b"hello".to_vec()));
    assert_eq!(client.call(1, echo::COUNT, b"hello").unwrap().1, 5u64.to_le_bytes());
    assert_eq!(client.call(1, 999, b"hello").unwrap(), (1, Vec::new()));
    fixture.end();
    assert!(client.call(2, echo::ECHO, b"gone").is_err());
}

#[test]
fn usage_of_host_is_read() {
    let fixture = Fixture::new();
    assert_eq!(fixture.supervisor.usage(GRANT), None, "no host");
    let (endpoints, _) = fixture.started(HostSpec::new("echo", SECRET));
    let mut client = connect(&endpoints[0], "echo");
    for id in 0..10 {
        client.call(id, echo::ECHO, &[1; 100]).unwrap();
    }
    let expected =
        ServiceUsage { busy_ns: None, in_bytes: Some(1000), out_bytes: Some(1000), commands: 10 };
    wait_until("the usage", LIMIT, || {
        fixture.supervisor.usage(GRANT).is_some_and(|sample| sample.usage == expected)
    });
    fixture.end();
    assert_eq!(fixture.supervisor.usage(GRANT), None, "it is gone");
}

#[test]
fn batches_are_answered_completely() {
    let fixture = Fixture::new();
    let (endpoints, _) = fixture.started(HostSpec::new("echo", SECRET));
    let mut client = connect(&endpoints[0], "echo");
    let mut outstanding = BTreeSet::new();
    for round in 0..50u64 {
        for id in round * 64..(round + 1) * 64 {
            client.request(id, echo::ECHO, &vec![id as u8; id as usize % 3000]).unwrap();
            outstanding.insert(id);
        }
        client.flush().unwrap();
        while !outstanding.is_empty() {
            for answer in client.answers().unwrap().entries() {
                assert!(outstanding.remove(&answer.id));
                assert_eq!(answer.payload, vec![answer.id as u8; answer.id as usize % 3000]);
            }
        }
    }
    fixture.end();
}

#[test]
fn udp_recipient_needs_the_seal() {
    let fixture = Fixture::new();
    let name = KeyName::Grant(GRANT);
    let key = node_key(&NodeSecret([3; 32]), name);
    let mut spec = HostSpec::new("echo", SECRET);
    spec.endpoints = vec![
        EndpointSpec::Ring,
        EndpointSpec::Udp {
            address: "127.0.0.1:0".parse().unwrap(),
            seal: Some(SealSpec { grant: GRANT, key: key.0 }),
        },
    ];
    let (endpoints, confinement) = fixture.started(spec);
    assert!(!confinement.is_active(Measure::NetworkNamespace), "it keeps the network for udp");
    let Endpoint::Udp(udp) = endpoints[1] else { panic!("{endpoints:?}") };
    let sealed =
        |key| QPairAddress::Udp { address: udp, seal: Some(QPairSeal::As(SealedAs { name, key })) };
    let connected = ServiceClient::connect(&sealed(key), "echo", SECRET, Some(LIMIT));
    let mut client = connected.unwrap();
    assert_eq!(client.call(1, echo::ECHO, b"sealed").unwrap().1, b"sealed");
    assert_eq!(connect(&endpoints[0], "echo").call(1, echo::ECHO, b"ring").unwrap().1, b"ring");
    fixture.end();
}

#[test]
fn zero_timeout_is_refused() {
    let nowhere = QPairAddress::ring("/nowhere.sock");
    let refused = ServiceClient::connect(&nowhere, "echo", SECRET, Some(Duration::ZERO));
    assert!(matches!(refused, Err(ClientError::NoTime)), "{refused:?}");
}

#[test]
fn wrong_hellos_are_refused() {
    let fixture = Fixture::new();
    let (endpoints, _) = fixture.started(HostSpec::new("echo", SECRET));
    let address = address(&endpoints[0]);
    let refusal =
        |service, secret| match ServiceClient::connect(&address, service, secret, Some(LIMIT)) {
            Err(ClientError::Refused { code, version }) => {
                assert_eq!(version, wire::VERSION);
                code
            }
            other => panic!("{other:?}"),
        };
    let wrong = ServiceSecret::from_bytes([8; 32]);
    assert_eq!(refusal("echo", wrong), CloseCode::Secret);
    assert_eq!(refusal("other", wrong), CloseCode::Secret, "strangers learn no names");
    assert_eq!(refusal("other", SECRET), CloseCode::Service);
    let mut client = connect(&endpoints[0], "echo");
    let mut bytes = Vec::new();
    Message::Hello(Hello { version: 1, secret: SECRET, service: "echo" }).emit(&mut bytes);
    client.socket().send(&bytes).unwrap();
    assert!(matches!(client.answers(), Err(ClientError::Closed(CloseCode::Protocol))));
    fixture.end();
}

#[test]
fn failed_starts_say_why() {
    let fixture = Fixture::new();
    let failure = |spec: HostSpec| {
        fixture.supervisor.start(GRANT, spec).unwrap();
        let HostEvent::Failed { grant, why } = fixture.event() else { panic!("not failed") };
        assert_eq!(grant, GRANT);
        fixture.end();
        why
    };
    assert_eq!(failure(HostSpec::new("none", SECRET)), "no service 'none' in this program");
    let mut spec = HostSpec::new("bad-start", SECRET);
    spec.options = String::from("GPU 3");
    assert_eq!(failure(spec), "no device: GPU 3");
    let mut spec = HostSpec::new("slow-start", SECRET);
    spec.limits.start_ms = 300;
    assert_eq!(failure(spec), "did not listen within 300 ms");
    let mut spec = HostSpec::new("echo", SECRET);
    spec.read_paths.push("/no/such/file".into());
    let why = failure(spec);
    assert!(why.contains("/no/such/file"), "{why}");
    let mut spec = HostSpec::new("echo", SECRET);
    spec.devices.push("/etc/passwd".into());
    assert!(failure(spec).contains("no device node"));
}

/// A small file system, until dropped.
struct Small(PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn full_disk_fails_the_start() {
    if skips_without_root("full_disk_fails_the_start") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    // Its root, the directory, the lock and the folder of hosts; one more is the host's own.
    let options = c"nr_inodes=5";
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", place.path(), "tmpfs", flags, Some(options)).unwrap();
    let _small = Small(place.path().to_path_buf());
    let fixture = Fixture::with(|config| config.dir = place.path().join("dir"));
    fixture.supervisor.start(GRANT, HostSpec::new("echo", SECRET)).unwrap();
    let HostEvent::Failed { why, .. } = fixture.event() else { panic!("not failed") };
    let hosts = place.path().join("dir/hosts");
    assert!(why.contains(hosts.to_str().unwrap()) && why.contains("No space left"), "{why}");
    fixture.supervisor.end(GRANT);
    assert_eq!(fixture.event(), HostEvent::Ended { grant: GRANT });
    assert_eq!(std::fs::read_dir(hosts).unwrap().count(), 0);
    drop(fixture);
}

#[test]
fn missing_program_is_named() {
    let fixture = Fixture::with(|config| config.program = "/no/such/program".into());
    fixture.supervisor.start(GRANT, HostSpec::new("echo", SECRET)).unwrap();
    let HostEvent::Failed { why, .. } = fixture.event() else { panic!("not failed") };
    assert!(why.contains("/no/such/program"), "{why}");
    fixture.end();
}

#[test]
fn missing_requirement_fails_the_start() {
    let fixture = Fixture::new();
    let mut spec = HostSpec::new("echo", SECRET);
    spec.endpoints =
        vec![EndpointSpec::Udp { address: "127.0.0.1:0".parse().unwrap(), seal: None }];
    spec.require.push(Measure::NetworkNamespace);
    fixture.supervisor.start(GRANT, spec).unwrap();
    let HostEvent::Failed { why, .. } = fixture.event() else { panic!("not failed") };
    assert_eq!(why, "network-namespace is required: the host has a udp endpoint");
    fixture.end();
}

#[test]
fn invalid_specs_are_refused() {
    let fixture = Fixture::new();
    let refused = |change: &dyn Fn(&mut HostSpec)| {
        let mut spec = HostSpec::new("echo", SECRET);
        change(&mut spec);
        assert!(matches!(fixture.supervisor.start(GRANT, spec), Err(StartError::Invalid { .. })));
    };
    refused(&|spec| spec.service.clear());
    refused(&|spec| spec.service = "x".repeat(33));
    refused(&|spec| spec.endpoints.clear());
    refused(&|spec| spec.endpoints.push(EndpointSpec::Ring));
    for path in ["relative", "/", "/a/../b", "/tmp/x", "/endpoint"] {
        refused(&|spec| spec.read_paths.push(path.into()));
        refused(&|spec| spec.devices.push(path.into()));
    }
}

#[test]
fn hosts_are_bounded() {
    let fixture = Fixture::with(|config| config.max_hosts = 2);
    for grant in [1, 2] {
        fixture.supervisor.start(GrantId(grant), HostSpec::new("echo", SECRET)).unwrap();
    }
    let again = fixture.supervisor.start(GrantId(2), HostSpec::new("echo", SECRET));
    assert_eq!(again, Err(StartError::InUse { grant: GrantId(2) }));
    let third = fixture.supervisor.start(GrantId(3), HostSpec::new("echo", SECRET));
    assert_eq!(third, Err(StartError::TooMany { max_hosts: 2 }));
    for _ in 0..2 {
        assert!(matches!(fixture.event(), HostEvent::Started { .. }));
    }
    fixture.supervisor.end(GrantId(1));
    assert_eq!(fixture.event(), HostEvent::Ended { grant: GrantId(1) });
    fixture.supervisor.start(GrantId(3), HostSpec::new("echo", SECRET)).unwrap();
    assert!(matches!(fixture.event(), HostEvent::Started { .. }));
}

#[test]
fn devices_and_paths_are_bound() {
    if skips_without_root("devices_and_paths_are_bound") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().canonicalize().unwrap().join("shown");
    std::fs::write(&file, "seen").unwrap();
    // Its parent has the mode 0700, which an empty root does not inherit.
    let fixture = Fixture::new();
    let mut client = fixture.torment(|spec| {
        spec.devices.push("/dev/zero".into());
        // Places under /tmp are the host's own.
        spec.read_paths.push("/etc/hostname".into());
    });
    let mut outcome = |opcode: u16, path: &str| {
        String::from_utf8(client.call(1, opcode, path.as_bytes()).unwrap().1).unwrap()
    };
    assert_eq!(outcome(5, "/dev/zero"), "ok");
    assert_eq!(outcome(5, "/etc/hostname"), "ok");
    assert!(!outcome(16, "/etc/hostname").starts_with("ok"));
    assert!(outcome(5, "/dev/null").starts_with("NotFound"));
    assert!(outcome(5, "/etc/passwd").starts_with("NotFound"));
    fixture.end();
}

/// Returns the processes with this process as an ancestor that run the host program, as pairs of id
/// and parent.
fn descendants(of: u32) -> Vec<(u32, u32)> {
    let parent = |id: u32| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut all: Vec<(u32, u32)> = ids.filter_map(|id| Some((id, parent(id)?))).collect();
    let (mut known, mut found) = (BTreeSet::from([of]), Vec::new());
    loop {
        let (children, rest): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, parent)| known.contains(parent));
        if children.is_empty() {
            return found;
        }
        known.extend(children.iter().map(|(id, _)| *id));
        found.extend(children);
        all = rest;
    }
}

/// A supervisor in a process of its own.
struct OtherProcess {
    dir: PathBuf,
    child: ChildGuard,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl OtherProcess {
    fn start(dir: &Path, change: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(crate::common::program());
        command.arg("supervise").arg(dir).stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        Self { dir: dir.to_path_buf(), child: ChildGuard(child), lines }
    }

    /// Reads until the host has started; returns what was printed before.
    fn started(&mut self) -> Vec<String> {
        let mut before = Vec::new();
        loop {
            let line = self.lines.next().expect("a supervisor says how it went").unwrap();
            assert!(!line.starts_with("failed"), "{line}");
            if line == "started" {
                return before;
            }
            before.push(line);
        }
    }

    /// Returns launcher, init and host.
    fn processes(&self) -> [Pid; 3] {
        let found = wait_for("three processes", LIMIT, || {
            Some(descendants(self.child.id())).filter(|found| found.len() == 3)
        });
        found
            .iter()
            .map(|(id, _)| Pid::from_raw(*id as i32).unwrap())
            .collect::<Vec<_>>()
            .try_into()
            .unwrap()
    }

    fn next_line(&mut self) -> String {
        self.lines.next().expect("another line").unwrap()
    }
}

/// Removes the control groups that a killed supervisor leaves to the next one.
impl Drop for OtherProcess {
    fn drop(&mut self) {
        // Both fail where the test has done so.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = HostSupervisor::open(SupervisorConfig::new(&self.dir), |_| {});
    }
}

fn is_running(id: Pid) -> bool {
    let path = format!("/proc/{}/status", id.as_raw_nonzero());
    std::fs::read_to_string(path).is_ok_and(|status| !status.contains("State:\tZ"))
}

#[test]
fn killed_supervisor_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut other = OtherProcess::start(dir.path(), |_| {});
    other.started();
    let processes = other.processes();
    let endpoint = dir.path().join("hosts/1/endpoint/qpair.sock");
    let mut client = connect(&Endpoint::Ring(endpoint.clone()), "torment");
    // A second supervisor is kept out while the first one lives.
    let config = SupervisorConfig::new(dir.path());
    let second = HostSupervisor::open(config.clone(), |_| {});
    assert!(matches!(second, Err(SupervisorError::InUse { .. })), "{second:?}");
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    wait_until("the end of all processes", LIMIT, || !processes.iter().any(|id| is_running(*id)));
    assert!(client.call(1, 16, b"/tmp/x").is_err(), "the recipient notices");
    assert!(endpoint.exists(), "the socket's file stays");
    // The next supervisor removes it.
    let third = HostSupervisor::open(config, |_| {}).unwrap();
    assert_eq!(std::fs::read_dir(dir.path().join("hosts")).unwrap().count(), 0);
    drop(third);
    assert_eq!(groups_left(dir.path()), Vec::<String>::new());
}

/// Returns the control groups of a supervisor's hosts that are left.
fn groups_left(dir: &Path) -> Vec<String> {
    let bytes = dir.canonicalize().unwrap();
    let hash =
        bytes.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let name = format!("venice-hosts-{hash:016x}");
    let found = Command::new("find")
        .args(["/sys/fs/cgroup", "-type", "d", "-name", &name])
        .output()
        .unwrap();
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn each_killed_process_ends_all() {
    for (victim, what) in ["launcher", "init", "host"].into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let mut other = OtherProcess::start(dir.path(), |_| {});
        other.started();
        let processes = other.processes();
        kill_process(processes[victim], Signal::KILL).unwrap();
        let line = other.next_line();
        assert_eq!(line, "died: SIGKILL", "{what}");
        assert!(!processes.iter().any(|id| is_running(*id)), "{what}: nothing runs on");
    }
}

#[test]
fn interrupted_terminal_spares_hosts() {
    let dir = tempfile::tempdir().unwrap();
    let mut other = OtherProcess::start(dir.path(), |_| {});
    other.started();
    let group = |id| rustix::process::getpgid(Some(id)).unwrap();
    let own = group(Pid::from_child(&other.child));
    // A key of the terminal signals the whole group.
    assert!(!other.processes().map(group).contains(&own));
}

#[test]
fn stopped_processes_end_too() {
    for victim in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let mut other = OtherProcess::start(dir.path(), |_| {});
        other.started();
        let processes = other.processes();
        kill_process(processes[victim], Signal::STOP).unwrap();
        other.child.kill().unwrap();
        other.child.wait().unwrap();
        wait_until("the end of a stopped host", LIMIT, || {
            !processes.iter().any(|id| is_running(*id))
        });
    }
}

#[test]
fn groups_of_killed_supervisor_go() {
    let dir = tempfile::tempdir().unwrap();
    let mut other = OtherProcess::start(dir.path(), |_| {});
    other.started();
    let groups = groups_left(dir.path());
    assert_eq!(sweep_dead_hosts(dir.path()), 0, "it lives");
    assert_eq!(groups_left(dir.path()), groups);
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    sweep_dead_hosts(dir.path());
    assert_eq!(groups_left(dir.path()), Vec::<String>::new(), "of {groups:?}");
}

#[test]
fn supervisor_killed_at_any_time() {
    let mut random = SplitMix64(3);
    for round in 0..12 {
        let dir = tempfile::tempdir().unwrap();
        // A program of its own, by which its processes are found.
        let program = dir.path().canonicalize().unwrap().join("program");
        copy_program(&program);
        let hosts = dir.path().join("hosts");
        let mut command = Command::new(&program);
        command.arg("supervise").arg(&hosts).stdout(Stdio::null());
        let mut child = ChildGuard(command.spawn().unwrap());
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until("the end of all processes", LIMIT, || !runs(&program));
        drop(HostSupervisor::open(SupervisorConfig::new(&hosts), |_| {}).unwrap());
        assert_eq!(groups_left(&hosts), Vec::<String>::new(), "round {round}");
    }
}

/// Copies the test program, by a process of its own: a descriptor of this one that is open for
/// writing could get into a child of another test, and the program could not be started.
fn copy_program(to: &Path) {
    let copied = Command::new("cp").arg(crate::common::program()).arg(to).status().unwrap();
    assert!(copied.success());
}

/// True if a process runs this program.
fn runs(program: &Path) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut links = entries.filter_map(|entry| std::fs::read_link(entry.path().join("exe")).ok());
    links.any(|link| link == program)
}

#[test]
fn dropped_supervisor_ends_hosts() {
    let fixture = Fixture::new();
    let (endpoints, _) = fixture.started(HostSpec::new("echo", SECRET));
    let mut client = connect(&endpoints[0], "echo");
    let hosts = fixture.dir.path().join("hosts");
    drop(fixture.supervisor);
    assert_eq!(std::fs::read_dir(&hosts).unwrap().count(), 0);
    assert_eq!(groups_left(fixture.dir.path()), Vec::<String>::new());
    assert!(client.call(1, echo::ECHO, b"x").is_err());
}

#[test]
fn probe_reports_confinement() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = SupervisorConfig::new(dir.path());
    config.program = crate::common::program();
    let confinement = probe_confinement(config.clone(), "echo").unwrap();
    assert!(confinement.is_active(Measure::Seccomp), "{confinement}");
    config.arguments = vec![String::from("nonsense")];
    let why = probe_confinement(config, "echo").unwrap_err();
    assert!(why.contains("exit code 2") && why.contains("usage"), "{why}");
}

#[test]
fn pending_start_ends_with_drop() {
    let fixture = Fixture::new();
    for grant in 0..4 {
        fixture.supervisor.start(GrantId(grant), HostSpec::new("echo", SECRET)).unwrap();
    }
    let hosts = fixture.dir.path().join("hosts");
    drop(fixture.supervisor);
    assert_eq!(std::fs::read_dir(&hosts).unwrap().count(), 0);
}

#[test]
fn other_users_reach_the_host() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if skips_without_root("other_users_reach_the_host") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = dir.path().join("program");
    copy_program(&program);
    // Whatever the mask of the agent is.
    let fixture = Fixture::with(|config| config.dir = dir.path().join("below/hosts"));
    let (endpoints, _) = fixture.started(HostSpec::new("echo", SECRET));
    let Endpoint::Ring(path) = &endpoints[0] else { panic!("{endpoints:?}") };
    let called = Command::new(&program).arg("call").arg(path).uid(65_534).gid(65_534).output();
    let called = called.unwrap();
    assert!(called.status.success(), "{}", String::from_utf8_lossy(&called.stderr));
    // Nobody else sees what is in the host's directory.
    let listed = Command::new("ls").arg(path.parent().unwrap()).uid(65_534).output().unwrap();
    assert!(!listed.status.success());
}

#[test]
fn unknown_host_ends_at_once() {
    let fixture = Fixture::new();
    fixture.supervisor.end(GrantId(99));
    assert_eq!(fixture.event(), HostEvent::Ended { grant: GrantId(99) });
}

#[test]
fn early_end_is_confirmed() {
    let fixture = Fixture::new();
    for _ in 0..20 {
        fixture.supervisor.start(GRANT, HostSpec::new("echo", SECRET)).unwrap();
        fixture.supervisor.end(GRANT);
        loop {
            match fixture.event() {
                HostEvent::Started { .. } => {}
                HostEvent::Ended { .. } => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(fixture.left(), Vec::<PathBuf>::new());
    }
}

/// Starts a supervisor as root of a user namespace that has one id and may make no other.
fn in_user_namespace(dir: &Path, then: &str) -> Option<OtherProcess> {
    let works = Command::new("unshare").args(["--user", "--map-root-user", "true"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let script = format!(
        "echo 0 >/proc/sys/user/max_user_namespaces; exec {then} {} supervise {}",
        crate::common::program().display(),
        dir.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", &script]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    Some(OtherProcess { dir: dir.to_path_buf(), child: ChildGuard(child), lines })
}

#[test]
fn container_root_keeps_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut other) = in_user_namespace(dir.path(), "") else {
        println!("SKIPPED: container_root_keeps_its_id: no user-namespaces");
        return;
    };
    let report = other.started().join("\n");
    let state = |measure: &str| report.lines().find(|line| line.starts_with(measure)).unwrap();
    assert!(state("user-ids").contains("not mapped"), "{report}");
    assert!(state("user-namespace").contains("missing"), "{report}");
    assert!(state("empty-root").contains("active"), "{report}");
}

#[test]
fn bare_process_starts_no_host() {
    let dir = tempfile::tempdir().unwrap();
    // Without a capability, and without user namespaces to gain one in.
    let Some(mut other) = in_user_namespace(dir.path(), "setpriv --bounding-set=-all") else {
        println!("SKIPPED: bare_process_starts_no_host: no user-namespaces");
        return;
    };
    let line = other.next_line();
    assert_eq!(
        line,
        "failed: pid-namespace or pids-cgroup is required: the machine grants neither"
    );
}

#[test]
fn strangers_make_room_again() {
    let fixture = Fixture::new();
    let (endpoints, _) = fixture.started(HostSpec::new("echo", SECRET));
    let Endpoint::Ring(path) = &endpoints[0] else { panic!("{endpoints:?}") };
    let strangers: Vec<_> = (0..400)
        .map_while(|_| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
            let socket = socket.unwrap();
            rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).ok()?;
            Some(socket)
        })
        .collect();
    assert!(strangers.len() > 100, "{} strangers", strangers.len());
    drop(strangers);
    let mut client = connect(&endpoints[0], "echo");
    assert_eq!(client.call(1, echo::ECHO, b"x").unwrap().1, b"x");
    fixture.end();
}

#[test]
fn host_without_root_is_confined() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if skips_without_root("host_without_root_is_confined") {
        return;
    }
    const USER: u32 = 65_534;
    let dir = tempfile::tempdir().unwrap();
    // A copy that another user may execute, whatever the folders above the program allow.
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = dir.path().join("program");
    copy_program(&program);
    let hosts = dir.path().join("hosts-of-user");
    std::fs::create_dir(&hosts).unwrap();
    std::os::unix::fs::chown(&hosts, Some(USER), Some(USER)).unwrap();
    let mut command = Command::new(&program);
    command.arg("supervise").arg(&hosts).stdout(Stdio::piped());
    let mut child = command.uid(USER).gid(USER).spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let child = ChildGuard(child);
    let mut other = OtherProcess { dir: hosts.clone(), child, lines };
    let report = other.started().join("\n");
    println!("{report}");
    let state = |measure: &str| report.lines().find(|line| line.starts_with(measure)).unwrap();
    assert!(state("user-ids").contains("missing: not started by root"), "{report}");
    assert!(state("memory-cgroup").contains("missing"), "{report}");
    if state("user-namespace").contains("missing") {
        println!("SKIPPED: host_without_root_is_confined: no user-namespaces");
        return;
    }
    for measure in
        ["mount-namespace", "pid-namespace", "network-namespace", "empty-root", "seccomp"]
    {
        assert!(state(measure).contains("active"), "{report}");
    }
    let processes = other.processes();
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    wait_until("the end of all processes", LIMIT, || !processes.iter().any(|id| is_running(*id)));
}
