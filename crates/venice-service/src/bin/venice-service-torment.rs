//! Program of the crate's tests: hosts `echo` and a service that misbehaves on request, and
//! supervises a host so that a test can kill a supervisor.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::channel;

use venice_ports::qpair::QPairAddress;
use venice_service::{
    Answer, CallGroup, HostEvent, HostSpec, HostSupervisor, Request, Service, ServiceClient,
    ServiceEntry, ServiceLimits, ServiceSecret, Status, SupervisorConfig, echo, host_main,
};
use venice_wire::GrantId;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["service-host"] => host_main(&[echo::ENTRY, TORMENT, SLOW_START, BAD_START]),
        ["supervise", dir] => supervise(Path::new(dir)),
        ["call", path] => call(path),
        _ => {
            eprintln!("usage: venice-service-torment service-host | supervise DIR | call PATH");
            ExitCode::from(2)
        }
    }
}

/// Calls `echo` at a ring endpoint, with the secret of 32 sevens.
fn call(path: &str) -> ExitCode {
    let (address, secret) = (QPairAddress::ring(path), ServiceSecret::from_bytes([7; 32]));
    let limit = Some(std::time::Duration::from_secs(30));
    let called = ServiceClient::connect(&address, echo::Echo::NAME, secret, limit)
        .and_then(|mut client| client.call(1, echo::ECHO, b"hello"));
    match called {
        Ok((0, answer)) if answer == b"hello" => ExitCode::SUCCESS,
        other => {
            eprintln!("{other:?}");
            ExitCode::FAILURE
        }
    }
}

/// Supervises one host of `torment` with the secret of 32 sevens, for ever; prints its events.
fn supervise(dir: &Path) -> ExitCode {
    let (send, events) = channel();
    let opened = HostSupervisor::open(SupervisorConfig::new(dir), move |event| {
        let _ = send.send(event);
    });
    let supervisor = match opened {
        Ok(supervisor) => supervisor,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut spec = HostSpec::new("torment", ServiceSecret::from_bytes([7; 32]));
    spec.calls.push(CallGroup::Processes);
    if let Err(error) = supervisor.start(GrantId(1), spec) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    for event in events {
        match event {
            HostEvent::Started { confinement, .. } => {
                print!("{confinement}");
                println!("started");
            }
            HostEvent::Failed { why, .. } => println!("failed: {why}"),
            HostEvent::Died { why, .. } => println!("died: {why}"),
            HostEvent::Ended { .. } => println!("ended"),
        }
        let _ = std::io::stdout().flush();
    }
    ExitCode::SUCCESS
}

const TORMENT: ServiceEntry =
    ServiceEntry { name: "torment", make: |_| Ok(Box::new(Torment::default())) };
/// A service that is never made.
const SLOW_START: ServiceEntry = ServiceEntry {
    name: "slow-start",
    make: |_| loop {
        std::thread::park();
    },
};
const BAD_START: ServiceEntry =
    ServiceEntry { name: "bad-start", make: |it| Err(format!("no device: {}", it.spec.options)) };

/// The service that misbehaves. Its opcodes are those of `tests/it/torment.rs`.
#[derive(Default)]
struct Torment {
    answers: VecDeque<(Answer, Vec<u8>)>,
    kept: Vec<Vec<u8>>,
}

impl Service for Torment {
    fn name(&self) -> &'static str {
        "torment"
    }

    fn limits(&self) -> ServiceLimits {
        ServiceLimits { max_request_bytes: 60_000, max_answer_bytes: 60_000, max_outstanding: 4 }
    }

    fn handle_request(&mut self, _now_ns: u64, request: Request<'_>) {
        let Request { connection, id, opcode, payload } = request;
        let text = || std::str::from_utf8(payload).expect("a test sends text").to_owned();
        let bytes = match opcode {
            1 => loop {
                std::hint::spin_loop();
            },
            2 => fork_bomb(),
            3 => fill_disk(&text()),
            4 => self.grow(),
            5 => outcome(std::fs::File::open(text()).map(drop)),
            6 => open_socket(payload),
            7 => trace_init(),
            8 => kill(&text()),
            9 => ignore_signals(),
            10 => std::process::abort(),
            11 => log(&text()),
            12 => facts(),
            // Never answered.
            13 => return,
            14 => leave_namespaces(),
            15 => leave_child_behind(),
            16 => outcome(std::fs::write(text(), b"x")),
            17 => panic!("as asked"),
            18 => open_many(&text()),
            _ => Vec::new(),
        };
        self.answers.push_back((Answer { connection, id, status: Status::OK }, bytes));
    }

    fn poll_answer(&mut self, _now_ns: u64, payload: &mut Vec<u8>) -> Option<Answer> {
        let (answer, bytes) = self.answers.pop_front()?;
        payload.extend_from_slice(&bytes);
        Some(answer)
    }
}

impl Torment {
    /// Takes memory until something ends it.
    fn grow(&mut self) -> Vec<u8> {
        loop {
            self.kept.push(vec![1; 1 << 20]);
        }
    }
}

fn outcome<T>(done: std::io::Result<T>) -> Vec<u8> {
    match done {
        Ok(_) => b"ok".to_vec(),
        Err(error) => format!("{:?} {}", error.kind(), error.raw_os_error().unwrap_or(0)).into(),
    }
}

fn last_error() -> Vec<u8> {
    outcome(Err::<(), _>(std::io::Error::last_os_error()))
}

/// Forks until a fork fails, in every child too; answers the error and the number of children.
fn fork_bomb() -> Vec<u8> {
    let mut children = 0;
    loop {
        // SAFETY: the child calls nothing but fork and pause.
        match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: as above.
                unsafe {
                    if libc::fork() < 0 {
                        libc::pause();
                    }
                }
            },
            id if id > 0 => children += 1,
            _ => return format!("{children} {}", String::from_utf8_lossy(&last_error())).into(),
        }
    }
}

/// Writes a file until that fails; answers the bytes written and the error.
fn fill_disk(path: &str) -> Vec<u8> {
    // SAFETY: ignores a signal; a write beyond the limit of files then fails instead.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let mut bytes = 0;
    for number in 0.. {
        let mut file = match std::fs::File::create(format!("{path}.{number}")) {
            Ok(file) => file,
            Err(error) => return format!("{bytes} {}", error.raw_os_error().unwrap_or(0)).into(),
        };
        for _ in 0..256 {
            match file.write(&[7; 4096]) {
                Ok(len) => bytes += len,
                Err(error) => {
                    return format!("{bytes} {}", error.raw_os_error().unwrap_or(0)).into();
                }
            }
        }
    }
    unreachable!("some write fails")
}

/// Opens a file sixteen times at once.
fn open_many(path: &str) -> Vec<u8> {
    let files: Result<Vec<_>, _> = (0..16).map(|_| std::fs::File::create(path)).collect();
    outcome(files)
}

fn open_socket(payload: &[u8]) -> Vec<u8> {
    // SAFETY: makes a descriptor, which is left open.
    let fd = unsafe { libc::socket(i32::from(payload[0]), i32::from(payload[1]), 0) };
    if fd < 0 { last_error() } else { b"ok".to_vec() }
}

fn trace_init() -> Vec<u8> {
    // SAFETY: attaches to another process, which is refused, or ends this one.
    let done = unsafe { libc::ptrace(libc::PTRACE_ATTACH, 1, 0, 0) };
    if done < 0 { last_error() } else { b"ok".to_vec() }
}

fn kill(id: &str) -> Vec<u8> {
    // SAFETY: sends a signal.
    let done = unsafe { libc::kill(id.parse().expect("a test sends a number"), libc::SIGKILL) };
    if done < 0 { last_error() } else { b"ok".to_vec() }
}

fn ignore_signals() -> Vec<u8> {
    for signal in 1..32 {
        // SAFETY: ignores a signal.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    b"ok".to_vec()
}

fn log(bytes: &str) -> Vec<u8> {
    let bytes: usize = bytes.parse().expect("a test sends a number");
    for _ in 0..bytes / 64 {
        eprintln!("{}", "x".repeat(63));
    }
    b"ok".to_vec()
}

fn leave_namespaces() -> Vec<u8> {
    // SAFETY: leaves a namespace, which ends this process.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    if done < 0 { last_error() } else { b"ok".to_vec() }
}

/// Starts a child of a session of its own.
fn leave_child_behind() -> Vec<u8> {
    // SAFETY: the child calls nothing but setsid, signal and pause.
    match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: as above.
            unsafe {
                libc::setsid();
                libc::pause();
            }
        },
        id if id > 0 => format!("{id}").into(),
        _ => last_error(),
    }
}

/// Returns what the host sees of itself, a line each.
fn facts() -> Vec<u8> {
    let mut hostname = [0u8; 64];
    // SAFETY: asks for ids, a name of at most the buffer's length, and the state of descriptors.
    let (uid, gid, id, parent, groups, open) = unsafe {
        libc::gethostname(hostname.as_mut_ptr().cast(), hostname.len());
        let open = (0..1024).filter(|fd| libc::fcntl(*fd, libc::F_GETFD) >= 0).count();
        (
            libc::getuid(),
            libc::getgid(),
            libc::getpid(),
            libc::getppid(),
            libc::getgroups(0, std::ptr::null_mut()),
            open,
        )
    };
    let hostname = String::from_utf8_lossy(&hostname).trim_end_matches('\0').to_owned();
    let root = outcome(std::fs::read_dir("/"));
    let root = String::from_utf8_lossy(&root);
    let variables: Vec<String> =
        std::env::vars().map(|(name, value)| format!("{name}:{value}")).collect();
    let variables = variables.join(",");
    format!(
        "uid={uid}\ngid={gid}\npid={id}\nppid={parent}\ngroups={groups}\nhostname={hostname}\n\
         descriptors={open}\nroot={root}\nvariables={variables}\n"
    )
    .into()
}
