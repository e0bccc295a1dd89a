//! Kernels in a host with the spec of its device: well-behaved, and hostile ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime};

use venice_accel::opencl::found::OpenClDevice;
use venice_accel::opencl::{SERVICE, drivers, listing};
use venice_ports::qpair::QPairAddress;
use venice_service::{
    CacheConfig, Confinement, Endpoint, HostEvent, HostSupervisor, ServiceClient, ServiceSecret,
    SupervisorConfig,
};
use venice_wire::GrantId;

const LIMIT: Duration = Duration::from_secs(120);
const SECRET: ServiceSecret = ServiceSecret::from_bytes([7; 32]);
const GRANT: GrantId = GrantId(0x2a);
const BYTES: u64 = 256 << 20;
const ADDS_ONE: &str = "kernel void f(global float *v) { v[get_global_id(0)] += 1; }";

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_venice-accel-torment"))
}

/// Returns PoCL's device; `None`, with a remark: it is not there, or hosts cannot be confined.
pub fn pocl(test: &str) -> Option<OpenClDevice> {
    let listed = listing::devices_by(&program());
    let devices = listed.inspect_err(|error| println!("SKIPPED: {test}: {error}")).ok()?;
    let pocl = devices.into_iter().find(|it| it.platform == "Portable Computing Language");
    if pocl.is_none() {
        println!("SKIPPED: {test}: no PoCL");
    }
    pocl
}

struct Fixture {
    supervisor: HostSupervisor,
    events: Receiver<HostEvent>,
    device: OpenClDevice,
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new(device: OpenClDevice) -> Self {
        let dir = tempfile::Builder::new().prefix("venice-hosts").tempdir().unwrap();
        let mut config = SupervisorConfig::new(dir.path().join("hosts"));
        let builds = dir.path().join("builds");
        config.caches = Some(CacheConfig { dir: builds, owner_bytes: 64 << 20 });
        config.program = program();
        config.arguments = vec!["kernel-host".to_owned()];
        let (send, events) = channel();
        let opened = HostSupervisor::open(config, move |event| drop(send.send(event)));
        Self { supervisor: opened.unwrap(), events, device, dir }
    }

    fn event(&self) -> HostEvent {
        self.events.recv_timeout(LIMIT).expect("an event follows")
    }

    fn start(&self) -> (ServiceClient, Confinement) {
        self.start_for(None)
    }

    /// Starts a host for an owner.
    fn start_for(&self, owner: Option<&str>) -> (ServiceClient, Confinement) {
        let mut spec = drivers::host_spec(&self.device, BYTES, SECRET);
        if let Some(owner) = owner {
            drivers::keep_caches(&mut spec, owner.to_owned(), 64 << 20);
        }
        self.supervisor.start(GRANT, spec).unwrap();
        match self.event() {
            HostEvent::Started { endpoints, confinement, .. } => {
                (connect(&endpoints[0]), confinement)
            }
            other => panic!("not started: {other:?}"),
        }
    }

    fn end(&self) {
        self.supervisor.end(GRANT);
        assert_eq!(self.event(), HostEvent::Ended { grant: GRANT });
    }

    /// Has a host of an owner run a kernel, and kills it. Returns the libraries that are kept of the
    /// owner, with the times at which they were compiled.
    fn compile_for(&self, owner: &str) -> BTreeMap<PathBuf, SystemTime> {
        let (mut client, _) = self.start_for(Some(owner));
        assert_eq!(run(&mut client, ADDS_ONE), "1");
        self.end();
        let kept = self.dir.path().join("builds/owners").join(owner).join("files");
        let (mut libraries, mut waiting) = (BTreeMap::new(), vec![kept.clone()]);
        while let Some(dir) = waiting.pop() {
            for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
                let (path, found) = (entry.path(), entry.metadata().unwrap());
                if found.is_dir() {
                    waiting.push(path);
                } else if path.extension().is_some_and(|it| it == "so") {
                    let name = path.strip_prefix(&kept).unwrap().to_path_buf();
                    libraries.insert(name, found.modified().unwrap());
                }
            }
        }
        libraries
    }

    /// Waits for the death of the host; returns its reason.
    fn death(&self) -> String {
        match self.event() {
            HostEvent::Died { why, .. } => why,
            other => panic!("not dead: {other:?}"),
        }
    }

    /// Starts a host, and checks that it runs kernels.
    fn check_clean_host(&self) {
        let (mut client, _) = self.start();
        assert_eq!(run(&mut client, ADDS_ONE), "1");
        self.end();
    }
}

fn connect(endpoint: &Endpoint) -> ServiceClient {
    let Endpoint::Ring(path) = endpoint else { panic!("{endpoint:?}") };
    ServiceClient::connect(&QPairAddress::ring(path), SERVICE, SECRET, Some(LIMIT)).unwrap()
}

fn run(client: &mut ServiceClient, source: &str) -> String {
    let (status, answer) = client.call(1, 1, source.as_bytes()).unwrap();
    assert_eq!(status, 0);
    String::from_utf8(answer).unwrap()
}

/// Sends a kernel whose answer never comes.
fn send(client: &mut ServiceClient, source: &str) {
    client.request(1, 1, source.as_bytes()).unwrap();
    client.flush().unwrap();
}

#[test]
fn kernels_run_fully_confined() {
    let Some(device) = pocl("kernels_run_fully_confined") else { return };
    println!("{device:?}");
    let fixture = Fixture::new(device);
    let (mut client, confinement) = fixture.start();
    println!("{confinement}");
    if rustix::process::geteuid().is_root() {
        let missing: Vec<_> = confinement.missing().collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
    assert_eq!(run(&mut client, ADDS_ONE), "1");
    let library = "kernel void f(global float *v) { size_t i = get_global_id(0); \
                   v[i] = (float)popcount((uint)i | 1) * exp2(3.0f) + (float)sqrt(4.0); }";
    assert_eq!(run(&mut client, library), "10");
    let error = run(&mut client, "kernel void f(global float *v) { v[0] = nothing; }");
    assert!(error.starts_with("clBuildProgram -11"), "{error}");
    fixture.end();
}

#[test]
fn owners_keep_own_builds() {
    let Some(device) = pocl("owners_keep_own_builds") else { return };
    let fixture = Fixture::new(device);
    let first = fixture.compile_for("ann@n1");
    assert!(!first.is_empty());
    let again = fixture.compile_for("ann@n1");
    assert_eq!(again, first, "nothing is compiled again");
    let other = fixture.compile_for("bob@n1");
    assert!(other.keys().eq(first.keys()));
    assert!(other.iter().all(|(name, time)| first[name] < *time), "compiled, not copied");
    fixture.check_clean_host();
    let owners = fs::read_dir(fixture.dir.path().join("builds/owners")).unwrap().count();
    assert_eq!(owners, 2, "nothing is kept of a host without an owner");
}

#[test]
fn wild_writes_kill_their_host() {
    let Some(device) = pocl("wild_writes_kill_their_host") else { return };
    let fixture = Fixture::new(device);
    let (mut client, _) = fixture.start();
    send(&mut client, "kernel void f(global float *v) { v[(size_t)1 << 40] = 1; }");
    let why = fixture.death();
    assert!(why.starts_with("SIGSEGV"), "{why}");
    assert!(client.answers().is_err(), "the recipient's call fails");
    fixture.end();
    fixture.check_clean_host();
}

#[test]
fn endless_kernel_ends_with_grant() {
    let Some(device) = pocl("endless_kernel_ends_with_grant") else { return };
    let fixture = Fixture::new(device);
    let (mut client, _) = fixture.start();
    let endless =
        "kernel void f(global float *v) { for (;;) { ((volatile global float *)v)[0] += 1; } }";
    send(&mut client, endless);
    // The host does not answer, and may be at any point of the kernel's life.
    std::thread::sleep(Duration::from_secs(1));
    fixture.end();
    fixture.check_clean_host();
}

/// Returns a kernel that makes a system call, and puts its result into all values.
fn calling(number: i64, arguments: [&str; 3]) -> String {
    let [a, b, c] = arguments;
    format!(
        "kernel void f(global float *v) {{ \
             if (get_global_id(0) != 0) return; \
             long result; char root[2] = {{'/', 0}}; \
             __asm__ volatile(\"syscall\" : \"=a\"(result) \
                 : \"a\"((long){number}), \"D\"((long){a}), \"S\"((long){b}), \"d\"((long){c}) \
                 : \"rcx\", \"r11\", \"memory\"); \
             v[0] = (float)result; }}"
    )
}

#[cfg(target_arch = "x86_64")]
#[test]
fn kernels_calls_stay_confined() {
    let Some(device) = pocl("kernels_calls_stay_confined") else { return };
    let fixture = Fixture::new(device);
    let (mut client, _) = fixture.start();
    let refused = |errno: i32| format!("-{errno}");
    let id = run(&mut client, &calling(libc::SYS_getpid, ["0", "0", "0"]));
    assert!(id.parse::<f32>().unwrap() < 100.0, "it sees its own PID namespace: {id}");
    let socket = calling(libc::SYS_socket, ["2", "1", "0"]);
    assert_eq!(run(&mut client, &socket), refused(libc::EPERM));
    let root = calling(libc::SYS_open, ["&root[0]", "0", "0"]);
    assert_eq!(run(&mut client, &root), refused(libc::EACCES), "Landlock closes the root");
    let init = calling(libc::SYS_kill, ["1", "9", "0"]);
    run(&mut client, &init);
    assert_eq!(run(&mut client, ADDS_ONE), "1", "init ignores the signal of its child");
    send(&mut client, &calling(libc::SYS_unshare, ["0x20000", "0", "0"]));
    let why = fixture.death();
    assert!(why.starts_with("SIGSYS"), "{why}");
    fixture.end();
    fixture.check_clean_host();
}

#[test]
fn greedy_host_dies_alone() {
    let Some(device) = pocl("greedy_host_dies_alone") else { return };
    let fixture = Fixture::new(device);
    let (mut client, _) = fixture.start();
    // The compiler's memory counts too: an array that is far larger than the host's limit.
    let greedy = "constant float big[1u << 30] = {1}; \
                  kernel void f(global float *v) { v[0] = big[get_global_id(0)]; }";
    match client.call(1, 1, greedy.as_bytes()) {
        Ok((_, said)) => println!("answered: {}", String::from_utf8_lossy(&said)),
        Err(_) => println!("died: {}", fixture.death()),
    }
    fixture.end();
    fixture.check_clean_host();
}
