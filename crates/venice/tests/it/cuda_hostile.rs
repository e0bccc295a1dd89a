//! A recipient that speaks to the host of a CUDA device itself, and says what no driver says.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use venice_accel::cuda::wire::{
    self, Allocated, Awaited, Blob, Command, CompilerOptions, LaunchAttribute, LinkRequest,
    LinkedImage, LoadRequest, Loaded, OccupancyRequest, OrderedRequest, Rows, Told, VERSION,
    decode, encode, opcode,
};
use venice_control::ServiceAccess;
use venice_service::{ServiceClient, Status};

use crate::common::{Place, wait_until};
use crate::cuda::{files, rack};
use crate::service_hosts::host_pids;

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

/// A connection to a host.
struct Raw {
    client: ServiceClient,
    next: u64,
}

impl Raw {
    fn open(access: &ServiceAccess) -> Self {
        let mut raw = Self { client: ServiceClient::open(access, LIMIT).unwrap(), next: 1 };
        assert_eq!(raw.ask(opcode::DESCRIBE, &encode(&VERSION)).0, Status::OK);
        raw
    }

    fn request(&mut self, opcode: u16, payload: &[u8]) -> u64 {
        self.next += 1;
        self.client.request(self.next, opcode, payload).unwrap();
        self.next
    }

    /// Makes a request, and returns its answer; others may come before.
    fn ask(&mut self, opcode: u16, payload: &[u8]) -> (Status, Vec<u8>) {
        let id = self.request(opcode, payload);
        self.client.flush().unwrap();
        loop {
            let batch = self.client.answers().unwrap();
            let found = batch.entries().find(|it| it.id == id);
            if let Some(answer) = found {
                return (Status(answer.code), answer.payload.to_vec());
            }
        }
    }

    /// Sends commands, and returns the code of the next wait.
    fn submit(&mut self, commands: &[Command<'_>]) -> i32 {
        self.send(commands);
        let (status, code) = self.ask(opcode::WAIT, &encode(&Awaited::Stream { id: 0 }));
        assert_eq!(status, Status::OK);
        decode(&code).unwrap()
    }

    fn send(&mut self, commands: &[Command<'_>]) {
        let payload: Vec<u8> = commands.iter().flat_map(encode).collect();
        self.request(opcode::SUBMIT, &payload);
        self.client.flush().unwrap();
    }

    fn allocate(&mut self, bytes: u64) -> Allocated {
        decode(&self.ask(opcode::ALLOCATE, &encode(&bytes)).1).unwrap()
    }
}

/// Holds the device of a node; returns the way to its host.
fn hold(place: &Place, node: &str) -> (Child, ServiceAccess) {
    let file = place.file("access.json");
    let path = file.display();
    let tell = format!(
        "printf '%s' \"$VENICE_GRANT_ENDPOINTS\" > {path}.new; mv {path}.new {path}; exec sleep 600"
    );
    let words = ["get", "accelerator:cuda", "--donor", node, "--", "sh", "-c", &tell];
    let mut command = place.command(&words);
    let child = command.stdout(Stdio::null()).spawn().unwrap();
    wait_until("the device is held", || file.exists());
    let text = fs::read_to_string(&file).unwrap();
    let all: Vec<ServiceAccess> = serde_json::from_str(&text).unwrap();
    (child, all.into_iter().next().unwrap())
}

/// Memory of a process in KiB.
fn resident_kib(pid: u64) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Commands that are errors, with memory of so many bytes at an address that is the recipient's.
fn bad_commands(at: u64, bytes: u64) -> Vec<Command<'static>> {
    const FAR: u64 = 1 << 63;
    let wild = wire::Place { offset: FAR, bytes: FAR };
    let rows = |at, pitch| Rows { at, pitch };
    let (grid, block) = ([u32::MAX; 3], [u32::MAX; 3]);
    let attributes = vec![LaunchAttribute { name: 7, value: [0x41; 64] }];
    vec![
        Command::Release { id: FAR },
        Command::Record { event: 9, stream: 0 },
        Command::WaitEvent { stream: 0, event: 9 },
        Command::WaitEvent { stream: 9, event: 0 },
        Command::CreateStream { id: 0, flags: u32::MAX, priority: i32::MIN },
        Command::Launch { function: FAR, grid, block, shared: 1, stream: 0, parameters: &[] },
        Command::LaunchWith {
            function: 1,
            grid,
            block,
            shared: u32::MAX,
            stream: 0,
            attributes,
            parameters: &[1],
        },
        Command::Write { stream: 0, to: 16, data: &[1; 64] },
        Command::Write { stream: 0, to: at + bytes - 1, data: &[1; 64] },
        Command::Write { stream: 0, to: u64::MAX, data: &[1; 64] },
        Command::Copy { stream: 0, to: at, from: at, bytes: FAR },
        Command::Copy { stream: 0, to: at, from: 4096, bytes: 8 },
        Command::Fill { stream: 0, to: at, width: 4, value: 1, count: FAR },
        Command::Fill { stream: 0, to: at, width: 3, value: 1, count: 1 },
        Command::CopyRows {
            stream: 0,
            to: rows(at, FAR),
            from: rows(at, 1),
            width: 1,
            rows: u64::MAX,
        },
        Command::CopyRows { stream: 0, to: rows(at, 8), from: rows(at, 8), width: 8, rows: 0 },
        Command::CopyRows { stream: 0, to: rows(at, 8), from: rows(at, 8), width: FAR, rows: 1 },
        Command::Free { address: at + 1 },
        Command::FreeOrdered { stream: 0, address: 0 },
        Command::SetAttribute { function: FAR, name: 8, value: 1 },
        Command::SetLimit { limit: i32::MAX, value: u64::MAX },
        Command::Gate { stream: 99, gate: 1 },
        Command::Open { gate: FAR },
        Command::Replay { sequence: FAR, stream: 0 },
        // No commands, and one that repeats itself.
        Command::Define { sequence: 3, is_first: true, commands: &[9; 9] },
        Command::Define {
            sequence: 3,
            is_first: false,
            commands: &[23, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        },
        Command::WriteFrom { stream: 0, to: at, place: wild.clone(), done: 1 },
        Command::Read { stream: 0, from: at, place: wild.clone(), done: 2 },
        Command::WriteRows { stream: 0, to: rows(at, 0), width: 0, place: wild.clone(), done: 3 },
        Command::ReadRows { stream: 0, from: rows(at, 1), width: FAR, place: wild, done: 4 },
    ]
}

#[test]
fn hostile_commands_are_errors() {
    let place = Place::new();
    let Some(files) = files("hostile_commands_are_errors", &place) else { return };
    rack(&place, &files, "shm");
    let (mut holder, access) = hold(&place, "node2");
    let mut raw = Raw::open(&access);
    let made = raw.allocate(4096);
    assert_eq!(made.status, 0);
    for command in bad_commands(made.address, 4096) {
        let is_told_apart = matches!(
            command,
            Command::WriteFrom { .. }
                | Command::Read { .. }
                | Command::WriteRows { .. }
                | Command::ReadRows { .. }
                | Command::Gate { .. }
        );
        let code = raw.submit(std::slice::from_ref(&command));
        // Those that have a notice are told by it.
        assert_eq!(code != 0, !is_told_apart, "{command:?}: {code}");
        assert_eq!(raw.submit(&[]), 0, "an error is told once");
    }
    for bytes in [0, 1 << 63, u64::MAX] {
        assert_ne!(raw.allocate(bytes).status, 0);
        let ordered = encode(&OrderedRequest { bytes, stream: 7 });
        let (_, answer) = raw.ask(opcode::ALLOCATE_ORDERED, &ordered);
        assert_ne!(decode::<Allocated>(&answer).unwrap().status, 0);
        assert_ne!(raw.ask(opcode::RESERVE, &encode(&bytes)).0, Status::OK);
    }
    let options = || CompilerOptions { values: Vec::new(), log_bytes: [u32::MAX; 2] };
    let nowhere = || Blob::Region { place: wire::Place { offset: 0, bytes: 1 << 20 } };
    let load = encode(&LoadRequest { id: 1, options: options(), image: nowhere() });
    assert_eq!(raw.ask(opcode::LOAD, &load).0, Status::MALFORMED);
    let bytes = Blob::Inline { bytes: &[0xff; 4096] };
    let load = encode(&LoadRequest { id: 1, options: options(), image: bytes });
    let (_, answer) = raw.ask(opcode::LOAD, &load);
    let Ok(Blob::Inline { bytes }) = decode(&answer) else { panic!("no blob") };
    assert_ne!(decode::<Loaded>(bytes).unwrap().status, 0);
    let images = vec![LinkedImage { kind: -1, name: "x", values: Vec::new(), bytes: u64::MAX }];
    let bytes = Blob::Inline { bytes: &[1; 16] };
    let link = encode(&LinkRequest { options: options(), images, bytes });
    assert_eq!(raw.ask(opcode::LINK, &link).0, Status::MALFORMED);
    let blocks = OccupancyRequest::Blocks { function: 1, threads: -1, shared: 1, flags: 9 };
    let (_, answer) = raw.ask(opcode::OCCUPANCY, &encode(&blocks));
    assert_ne!(decode::<Told>(&answer).unwrap().status, 0);
    // Any bytes, for any request: an answer, but for those that are answered later.
    let mut random = 7_u64;
    for opcode in (0..40).filter(|it| *it != opcode::POLL) {
        for len in [0, 1, 7, 8, 30, 200] {
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (random >> 56) as u8
            })
            .take(len)
            .collect();
            match opcode {
                opcode::SUBMIT => drop(raw.request(opcode, &bytes)),
                _ => drop(raw.ask(opcode, &bytes)),
            }
        }
    }
    assert_eq!(raw.allocate(4096).status, 0, "the host goes on");
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn greedy_recipient_is_bounded() {
    let place = Place::new();
    let Some(files) = files("greedy_recipient_is_bounded", &place) else { return };
    rack(&place, &files, "shm");
    let (mut holder, access) = hold(&place, "node2");
    let host = *host_pids(&place, "node2").last().unwrap();
    let (mut raw, mut other) = (Raw::open(&access), Raw::open(&access));
    let before_kib = resident_kib(host);
    // More events than anybody needs, and streams, which are threads here.
    let mut code = 0;
    for batch in 0..600_u64 {
        let ids = 1000 * batch + 1..=1000 * (batch + 1);
        let events: Vec<_> = ids.map(|id| Command::CreateEvent { id, flags: 0 }).collect();
        code = raw.submit(&events);
        if code != 0 {
            break;
        }
    }
    assert_eq!(code, 2, "out of memory");
    let streams: Vec<_> = (1..2000)
        .map(|id| Command::CreateStream { id: (1 << 40) + id, flags: 1, priority: 0 })
        .collect();
    assert_eq!(raw.submit(&streams), 2, "out of memory");
    let grown_kib = resident_kib(host).saturating_sub(before_kib);
    assert!(grown_kib < 256 << 10, "{grown_kib} KiB");
    // Gates that it never opens hold up its own streams alone.
    let gates: Vec<_> = (1..50).map(|gate| Command::Gate { stream: 0, gate }).collect();
    raw.send(&gates);
    let made = other.allocate(1 << 20);
    assert_eq!(made.status, 0);
    let own = Command::CreateStream { id: 5, flags: 1, priority: 0 };
    let fill = Command::Fill { stream: 5, to: made.address, width: 4, value: 1, count: 1 << 18 };
    other.send(&[own, fill]);
    let (_, code) = other.ask(opcode::WAIT, &encode(&Awaited::Stream { id: 5 }));
    assert_eq!(decode::<i32>(&code), Ok(0));
    // They end with it, and so does its memory.
    drop(raw);
    wait_until("its memory is back", || {
        other.ask(opcode::FREE_BYTES, &[]).1 == encode(&((127_u64) << 20))
    });
    assert_eq!(other.submit(&[]), 0);
    holder.kill().unwrap();
    holder.wait().unwrap();
}
