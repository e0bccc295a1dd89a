//! A service that misbehaves in every way, and what comes of it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use venice_service::wire::CloseCode;
use venice_service::{
    CallGroup, ClientError, Endpoint, HostEvent, HostSpec, Measure, ServiceClient, ServiceSecret,
    wire,
};
use venice_testkit::random::SplitMix64;
use venice_testkit::wait::wait_until;

use crate::common::{Fixture, GRANT, LIMIT, SECRET, address, connect, skips_without_root};

const SPIN: u16 = 1;
const FORK_BOMB: u16 = 2;
const FILL_DISK: u16 = 3;
const GROW: u16 = 4;
const OPEN: u16 = 5;
const SOCKET: u16 = 6;
const TRACE_INIT: u16 = 7;
const KILL: u16 = 8;
const IGNORE_SIGNALS: u16 = 9;
const ABORT: u16 = 10;
const LOG: u16 = 11;
const FACTS: u16 = 12;
const NEVER_ANSWERED: u16 = 13;
const LEAVE_NAMESPACES: u16 = 14;
const LEAVE_CHILD_BEHIND: u16 = 15;
const WRITE: u16 = 16;
const PANIC: u16 = 17;
const OPEN_MANY: u16 = 18;

fn call(client: &mut ServiceClient, opcode: u16, payload: &str) -> String {
    let (status, bytes) = client.call(1, opcode, payload.as_bytes()).unwrap();
    assert_eq!(status, 0);
    String::from_utf8(bytes).unwrap()
}

/// Sends a request whose answer never comes.
fn send(client: &mut ServiceClient, opcode: u16) {
    client.request(1, opcode, b"").unwrap();
    client.flush().unwrap();
}

fn with_processes(spec: &mut HostSpec) {
    spec.calls.push(CallGroup::Processes);
}

#[test]
fn host_sees_nothing_of_machine() {
    if skips_without_root("host_sees_nothing_of_machine") {
        return;
    }
    let fixture = Fixture::new();
    let mut client = fixture.torment(|_| {});
    let facts = call(&mut client, FACTS, "");
    let fact = |name: &str| {
        let line = facts.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {facts}")).to_owned()
    };
    assert!(fact("uid=").parse::<u32>().unwrap() >= 0x7000_0000, "{facts}");
    assert_eq!(fact("uid="), fact("gid="));
    assert_eq!((fact("pid="), fact("ppid=")), ("2".into(), "1".into()));
    assert_eq!((fact("groups="), fact("hostname=")), ("0".into(), "venice-host".into()));
    assert_eq!((fact("root="), fact("variables=")), ("PermissionDenied 13".into(), String::new()));
    // Three standard ones, and those of its endpoint and connection.
    assert!(fact("descriptors=").parse::<u32>().unwrap() < 24, "{facts}");
    for path in ["/etc/passwd", "/proc/self/status", "/dev/null", "/sys/kernel", "/tmp/../proc"] {
        assert!(call(&mut client, OPEN, path).starts_with("NotFound"), "{path}");
    }
    for path in ["/endpoint/file", "/file", "/dev/file"] {
        let refused = call(&mut client, WRITE, path);
        assert!(!refused.starts_with("ok"), "{path}: {refused}");
    }
    assert_eq!(call(&mut client, WRITE, "/tmp/file"), "ok");
    fixture.end();
}

#[test]
fn host_has_environment_of_spec() {
    let fixture = Fixture::new();
    let mut client = fixture.torment(|spec| {
        spec.environment.insert("CACHE_DIR".into(), "/tmp/cache".into());
    });
    let facts = call(&mut client, FACTS, "");
    assert!(facts.contains("\nvariables=CACHE_DIR:/tmp/cache\n"), "{facts}");
    fixture.end();
    for (name, value) in [("LD_PRELOAD", "/x.so"), ("GLIBC_TUNABLES", ""), ("A=B", ""), ("A", "\0")]
    {
        let mut spec = HostSpec::new("torment", SECRET);
        spec.environment.insert(name.into(), value.into());
        assert!(fixture.supervisor.start(GRANT, spec).is_err(), "{name}");
    }
}

#[test]
fn linked_tree_stays_a_link() {
    if !std::path::Path::new("/lib").is_symlink() {
        return println!("SKIPPED: linked_tree_stays_a_link: /lib is no link");
    }
    let fixture = Fixture::new();
    let mut client =
        fixture.torment(|spec| spec.read_paths = ["/lib", "/usr/share"].map(Into::into).into());
    for path in ["/lib/../lib", "/usr/lib", "/lib/../share"] {
        assert_eq!(call(&mut client, OPEN, path), "ok", "{path}");
    }
    assert!(call(&mut client, OPEN, "/usr/bin").starts_with("NotFound"));
    fixture.end();
}

#[test]
fn sealed_host_makes_no_sockets() {
    let fixture = Fixture::new();
    let mut client = fixture.torment(|_| {});
    for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET]
    {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW] {
            let (_, answer) = client.call(1, SOCKET, &[family as u8, kind as u8]).unwrap();
            assert_eq!(answer, b"PermissionDenied 1", "family {family}, kind {kind}");
        }
    }
    fixture.end();
}

#[test]
fn fatal_calls_end_the_host() {
    for (opcode, name) in [(TRACE_INIT, "ptrace"), (LEAVE_NAMESPACES, "unshare")] {
        let fixture = Fixture::new();
        let mut client = fixture.torment(|_| {});
        send(&mut client, opcode);
        let why = fixture.death();
        assert!(why.starts_with("SIGSYS"), "{name}: {why}");
        assert!(client.answers().is_err());
        fixture.end();
    }
}

#[test]
fn crashes_are_reported_with_reason() {
    let fixture = Fixture::new();
    let mut client = fixture.torment(|_| {});
    send(&mut client, ABORT);
    assert!(fixture.death().starts_with("SIGABRT"));
    assert!(client.answers().is_err(), "the recipient's call fails");
    fixture.end();
    // A grant whose host died can have a new one, once it is asked for.
    let mut client = fixture.torment(|_| {});
    send(&mut client, PANIC);
    let why = fixture.death();
    assert!(why.contains("exit code 101") && why.contains("as asked"), "{why}");
    fixture.end();
}

#[test]
fn wrong_secrets_are_logged() {
    let fixture = Fixture::new();
    let (endpoints, _) = fixture.started(HostSpec::new("torment", SECRET));
    let wrong = ServiceSecret::from_bytes([8; 32]);
    let refused = ServiceClient::connect(&address(&endpoints[0]), "torment", wrong, Some(LIMIT));
    assert!(matches!(refused, Err(ClientError::Refused { code: CloseCode::Secret, .. })));
    send(&mut connect(&endpoints[0], "torment"), ABORT);
    let why = fixture.death();
    assert!(why.contains("1 callers with a wrong secret"), "{why}");
    fixture.end();
}

/// Connects again and again, without a word; the newest 1000 connections stay open.
fn intrude<T>(stop: &AtomicBool, connect: impl Fn() -> Option<T>) {
    let mut open = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        match connect() {
            Some(connection) => open.push_back(connection),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        if open.len() > 1000 {
            open.pop_front();
        }
    }
}

#[test]
fn silent_intruders_deny_nothing() {
    let fixture = Fixture::new();
    let mut spec = HostSpec::new("torment", SECRET);
    spec.limits.open_files = 16;
    let (endpoints, _) = fixture.started(spec);
    let stop = AtomicBool::new(false);
    let Endpoint::Ring(path) = &endpoints[0] else { panic!("not a ring") };
    // The first sort shows nothing, the second one anything.
    let silent = || {
        let socket = seqpacket().ok()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
        Some(socket)
    };
    let guessing = || {
        let socket = silent()?;
        rustix::net::send(&socket, &[8; 32], SendFlags::NOSIGNAL).ok()?;
        Some(socket)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| intrude(&stop, silent));
        scope.spawn(|| intrude(&stop, guessing));
        let served = std::panic::catch_unwind(|| {
            for _ in 0..10 {
                let mut client = connect(&endpoints[0], "torment");
                assert_eq!(call(&mut client, OPEN_MANY, "/tmp/file"), "ok");
            }
        });
        stop.store(true, Ordering::Relaxed);
        assert!(served.is_ok());
    });
    fixture.end();
}

fn seqpacket() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None)
}

/// A process whose number is none of those in a host's namespace, which are small.
fn bystander() -> std::process::Child {
    loop {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        if child.id() > 64 {
            return child;
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn signals_reach_nobody_else() {
    let fixture = Fixture::new();
    let mut client = fixture.torment(with_processes);
    let mut bystander = bystander();
    let number = bystander.id().to_string();
    assert_eq!(call(&mut client, KILL, &number), format!("Uncategorized {}", libc::ESRCH));
    assert!(bystander.try_wait().unwrap().is_none());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    // All processes, which are none but itself; then init, which the kernel protects.
    call(&mut client, KILL, "-1");
    call(&mut client, KILL, "1");
    // Init lives: else the host would be gone.
    assert_eq!(call(&mut client, WRITE, "/tmp/alive"), "ok");
    fixture.end();
}

#[test]
fn forks_need_permission() {
    let fixture = Fixture::new();
    let mut client = fixture.torment(|_| {});
    assert_eq!(call(&mut client, FORK_BOMB, ""), "0 PermissionDenied 1");
    fixture.end();
}

#[test]
fn fork_bomb_is_bounded_and_reaped() {
    let fixture = Fixture::new();
    let mut client = fixture.torment(|spec| {
        with_processes(spec);
        spec.limits.processes = 20;
    });
    let answer = call(&mut client, FORK_BOMB, "");
    let children: u32 = answer.split(' ').next().unwrap().parse().unwrap();
    assert!(children < 20 && answer.contains(" 11"), "{answer}");
    fixture.end();
}

#[test]
fn orphans_end_with_host() {
    if skips_without_root("orphans_end_with_host") {
        return;
    }
    let fixture = Fixture::new();
    let mut client = fixture.torment(with_processes);
    let facts = call(&mut client, FACTS, "");
    let uid = facts.lines().find_map(|line| line.strip_prefix("uid=")).unwrap().to_owned();
    assert!(call(&mut client, LEAVE_CHILD_BEHIND, "").parse::<u32>().is_ok());
    // Init and host, two at least, and the child.
    assert!(processes_of(&uid) >= 3);
    send(&mut client, ABORT);
    fixture.death();
    fixture.end();
    assert_eq!(processes_of(&uid), 0);
}

/// Returns the number of processes of a user.
fn processes_of(uid: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let statuses =
        entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok());
    statuses.filter(|status| status.contains(&format!("Uid:\t{uid}\t"))).count()
}

#[test]
fn stopped_host_is_ended() {
    if skips_without_root("stopped_host_is_ended") {
        return;
    }
    let fixture = Fixture::new();
    let mut client = fixture.torment(|_| {});
    let facts = call(&mut client, FACTS, "");
    let uid = facts.lines().find_map(|line| line.strip_prefix("uid=")).unwrap();
    let stopped = std::process::Command::new("pkill").args(["-STOP", "--uid", uid]).status();
    assert!(stopped.unwrap().success());
    fixture.end();
    assert_eq!(processes_of(uid), 0);
}

#[test]
fn full_disk_is_its_own() {
    let fixture = Fixture::new();
    let mut client = fixture.torment(|spec| spec.limits.scratch_bytes = 4 << 20);
    let answer = call(&mut client, FILL_DISK, "/tmp/full");
    let (bytes, error) = answer.split_once(' ').unwrap();
    assert_eq!(error, libc::ENOSPC.to_string());
    assert!(bytes.parse::<u64>().unwrap() <= 4 << 20, "{answer}");
    fixture.end();
}

#[test]
fn outgrown_memory_is_named() {
    let fixture = Fixture::new();
    fixture
        .supervisor
        .start(GRANT, {
            let mut spec = HostSpec::new("torment", SECRET);
            spec.limits.memory_bytes = 48 << 20;
            spec.require.push(Measure::MemoryCgroup);
            spec
        })
        .unwrap();
    let endpoints = match fixture.event() {
        HostEvent::Started { endpoints, .. } => endpoints,
        HostEvent::Failed { why, .. } => {
            println!("SKIPPED: outgrown_memory_is_named: no memory-cgroup: {why}");
            return;
        }
        other => panic!("{other:?}"),
    };
    let mut client = connect(&endpoints[0], "torment");
    send(&mut client, GROW);
    let why = fixture.death();
    assert_eq!(why, "SIGKILL: outgrew its memory");
    fixture.end();
}

#[test]
fn spinning_host_is_ended() {
    let fixture = Fixture::new();
    let mut client = fixture.torment(|spec| spec.limits.cpu_percent = 10);
    send(&mut client, SPIN);
    client.set_timeout(Some(Duration::from_millis(50)));
    assert!(client.answers().is_err(), "it answers nothing");
    fixture.end();
}

#[test]
fn ignored_signals_do_not_matter() {
    let fixture = Fixture::new();
    let mut client = fixture.torment(|_| {});
    assert_eq!(call(&mut client, IGNORE_SIGNALS, ""), "ok");
    fixture.end();
}

#[test]
fn flood_of_logs_is_survived() {
    let fixture = Fixture::new();
    let mut client = fixture.torment(|spec| spec.limits.log_bytes_per_s = 1000);
    client.request(1, LOG, b"4000000").unwrap();
    client.flush().unwrap();
    // It may be held up by its own log; its end is not.
    fixture.end();
}

#[test]
fn random_bytes_close_the_connection() {
    let fixture = Fixture::new();
    let (endpoints, _) = fixture.started(HostSpec::new("torment", SECRET));
    let mut random = SplitMix64(1);
    for _ in 0..10 {
        let mut client = connect(&endpoints[0], "torment");
        let mut bytes = {
            let len = 1 + random.below(200) as usize;
            random.bytes(len)
        };
        // Half of them begin as messages do.
        if random.chance(500) {
            for (byte, right) in bytes.iter_mut().zip(*b"VNSV\x04\0") {
                *byte = right;
            }
        }
        client.socket().send(&bytes).unwrap();
        match client.answers() {
            Err(ClientError::Closed(CloseCode::Protocol)) => {}
            other => panic!("{other:?}"),
        }
    }
    // The host serves on.
    let mut client = connect(&endpoints[0], "torment");
    assert_eq!(call(&mut client, WRITE, "/tmp/alive"), "ok");
    fixture.end();
}

#[test]
fn huge_messages_are_refused() {
    let fixture = Fixture::new();
    let (endpoints, _) = fixture.started(HostSpec::new("torment", SECRET));
    let mut client = connect(&endpoints[0], "torment");
    client.socket().send(&vec![0; wire::MAX_MESSAGE_BYTES + 1]).unwrap();
    assert!(matches!(client.answers(), Err(ClientError::Closed(CloseCode::Protocol))));
    let mut client = connect(&endpoints[0], "torment");
    client.request(1, WRITE, &[0; 60_001]).unwrap();
    client.flush().unwrap();
    assert!(matches!(client.answers(), Err(ClientError::Closed(CloseCode::TooLong))));
    fixture.end();
}

#[test]
fn rules_of_ids_are_enforced() {
    let fixture = Fixture::new();
    let (endpoints, _) = fixture.started(HostSpec::new("torment", SECRET));
    let mut client = connect(&endpoints[0], "torment");
    for id in 0..5 {
        client.request(id, NEVER_ANSWERED, b"").unwrap();
    }
    client.flush().unwrap();
    assert!(matches!(client.answers(), Err(ClientError::Closed(CloseCode::Outstanding))));
    let mut client = connect(&endpoints[0], "torment");
    client.request(7, NEVER_ANSWERED, b"").unwrap();
    client.request(7, NEVER_ANSWERED, b"").unwrap();
    client.flush().unwrap();
    assert!(matches!(client.answers(), Err(ClientError::Closed(CloseCode::DuplicateId))));
    fixture.end();
}

#[test]
fn flood_without_reading_is_bounded() {
    let fixture = Fixture::new();
    let (endpoints, _) = fixture.started(HostSpec::new("echo", SECRET));
    let mut flooder = connect(&endpoints[0], "echo");
    flooder.set_timeout(Some(Duration::from_millis(200)));
    let payload = vec![1; 60_000];
    // The host stops reading, and with it the sender, long before its memory is full.
    let mut taken = 0;
    while taken < 10_000 && flooder.request(taken, 1, &payload).is_ok() && flooder.flush().is_ok() {
        taken += 1;
    }
    assert!(taken < 1000, "{taken} messages of 60 000 bytes");
    let mut other = connect(&endpoints[0], "echo");
    assert_eq!(other.call(1, 1, b"x").unwrap().1, b"x");
    fixture.end();
}

#[test]
fn connections_are_bounded() {
    let fixture = Fixture::new();
    let mut spec = HostSpec::new("echo", SECRET);
    spec.limits.connections = 2;
    let (endpoints, _) = fixture.started(spec);
    let first = connect(&endpoints[0], "echo");
    let _second = connect(&endpoints[0], "echo");
    let third = ServiceClient::connect(&address(&endpoints[0]), "echo", SECRET, Some(LIMIT));
    assert!(matches!(third, Err(ClientError::Refused { code: CloseCode::Full, .. })));
    // Room is made by a connection that ends.
    drop(first);
    wait_until("room for another connection", LIMIT, || {
        ServiceClient::connect(&address(&endpoints[0]), "echo", SECRET, Some(LIMIT)).is_ok()
    });
    fixture.end();
}
