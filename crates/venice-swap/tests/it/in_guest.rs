//! Each kind of device on a kernel that has them all, with unified cgroups: Debian's, in a guest.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use venice_swap::backing::{Backing, OwnMemory};
use venice_swap::cgroup::MemoryCgroup;
use venice_swap::{BlockKind, Shield, SwapDevice, used_bytes};
use venice_testkit::guest::{GuestPlan, Kernel, Room, inside};
use venice_testkit::own_test::{path_of, this_program};

const MODULES: &[&str] = &["nbd", "fuse", "loop"];
static ROOM: Room = Room::new(GuestPlan {
    set_up: "mount -t cgroup2 none /sys/fs/cgroup",
    ..GuestPlan::new("swap", MODULES)
});

/// Linux 6.13 has ublk devices that outlive their server.
static NEWER_ROOM: Room = Room::new(GuestPlan {
    set_up: "mount -t cgroup2 none /sys/fs/cgroup",
    kernel: Kernel::Newer,
    ..GuestPlan::new("swap-newer", &["ublk_drv", "nbd"])
});

/// The guest runs ten to thirty times slower.
const LIMIT: Duration = Duration::from_secs(240);
const DEVICE_BYTES: u64 = 64 << 20;
const LOCAL_BYTES: u64 = 12 << 20;
const PROGRAM_BYTES: usize = 32 << 20;
/// Set for the process that is to be swapped.
const SWAPPED: &str = "VENICE_TEST_IS_SWAPPED";

#[test]
fn swaps_to_nbd() {
    swapped_to(&ROOM, "swaps_to_nbd", BlockKind::Nbd, "/dev/nbd");
}

#[test]
fn swaps_to_fuse_loop() {
    let test = "swaps_to_fuse_loop";
    swapped_to(&ROOM, test, BlockKind::FuseLoop, "/dev/loop");
}

#[test]
fn swaps_to_ublk() {
    swapped_to(&NEWER_ROOM, "swaps_to_ublk", BlockKind::Ublk, "/dev/ublkb");
}

/// The kernel does not even try a full device, and counts no event.
#[test]
fn full_device_is_detected() {
    let test = "full_device_is_detected";
    if std::env::var_os(SWAPPED).is_some() {
        return fill_and_check();
    }
    inside(&ROOM, test, LIMIT, || {
        for (device_mib, is_too_little) in [(12, true), (64, false)] {
            let device_bytes = device_mib << 20;
            let mut device = attach_sized(BlockKind::Nbd, device_bytes);
            let group = MemoryCgroup::create("outgrown", LOCAL_BYTES, Some(device_bytes)).unwrap();
            let status = program(&group, test).status().unwrap();
            assert_eq!(status.signal(), is_too_little.then_some(libc::SIGKILL), "{status}");
            assert_eq!(group.killed_for_memory() > 0, is_too_little);
            assert_eq!(group.has_outgrown_swap(0), is_too_little);
            drop(group);
            device.detach().unwrap();
        }
    });
}

/// No process waits for a dead server, and its leftovers can be removed.
#[test]
fn ublk_device_outlives_server() {
    let test = "ublk_device_outlives_server";
    match std::env::var(SWAPPED).as_deref() {
        Ok("server") => return serve_until_killed(),
        Ok(_) => return fill_and_check(),
        Err(_) => {}
    }
    inside(&NEWER_ROOM, test, LIMIT, || {
        let mut server = this_program(test);
        let mut server = server.env(SWAPPED, "server").stdout(Stdio::piped()).spawn().unwrap();
        let path = line(&mut server, "serves ");
        let path = Path::new(path.trim());
        let group = MemoryCgroup::create("orphan", LOCAL_BYTES, Some(DEVICE_BYTES)).unwrap();
        let mut swapped = program(&group, test);
        let mut swapped = swapped.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        line(&mut swapped, "filled");
        assert!(used_bytes(path).unwrap() > 0);

        server.kill().unwrap();
        server.wait().unwrap();
        drop(swapped.stdin.take());
        let status = swapped.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
        // Devices of another server stay.
        let mut other = attach(BlockKind::Ublk);
        venice_swap::clear_after(std::process::id()).unwrap();
        assert!(used_bytes(path).is_some());
        venice_swap::clear_after(server.id()).unwrap();
        assert_eq!((used_bytes(path), used_bytes(other.path()).is_some()), (None, true));
        other.detach().unwrap();
        assert!(!path.exists(), "{} is still there", path.display());
        attach(BlockKind::Ublk).detach().unwrap();
    });
}

fn serve_until_killed() {
    let device = attach(BlockKind::Ublk);
    println!("serves {}", device.path().display());
    std::thread::sleep(LIMIT);
}

/// Returns the text after `begin` in the first line of the child's output that has it.
fn line(child: &mut Child, begin: &str) -> String {
    let mut output = BufReader::new(child.stdout.as_mut().unwrap());
    loop {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "it ended before it said `{begin}`");
        // The harness's own words may precede it.
        if let Some((_, rest)) = line.split_once(begin) {
            return rest.to_owned();
        }
    }
}

fn swapped_to(room: &Room, test: &str, kind: BlockKind, name: &str) {
    if std::env::var_os(SWAPPED).is_some() {
        return fill_and_check();
    }
    inside(room, test, LIMIT, || {
        // The first kind that the kernel has, and no other in its place.
        let best = if kind == BlockKind::Ublk { kind } else { BlockKind::Nbd };
        assert_eq!(BlockKind::best(), best);
        // As root with all its rights, nothing is missing.
        let shield = Shield::raise().unwrap();
        assert_eq!(shield.gaps(), &[] as &[&str]);
        let mut device = attach(kind);
        let path = device.path().to_owned();
        assert!(path.starts_with("/dev") && path.display().to_string().starts_with(name));

        // A program larger than its cgroup reads back what it wrote.
        let group = MemoryCgroup::create("guest", LOCAL_BYTES, Some(DEVICE_BYTES)).unwrap();
        assert_eq!(group.version(), "v2");
        let status = program(&group, test).status().unwrap();
        assert!(status.success(), "{status}");
        let counters = device.store().counters();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert!(count(&counters.written_bytes) > (PROGRAM_BYTES as u64 - LOCAL_BYTES) / 2);
        assert!(count(&counters.read_bytes) > (PROGRAM_BYTES as u64 - LOCAL_BYTES) / 2);
        assert_eq!(device.store().failed(), 0);
        device.detach().unwrap();
        assert_eq!(used_bytes(&path), None);
        // All resources are free again: a second device is like the first.
        attach(kind).detach().unwrap();
    });
}

fn attach(kind: BlockKind) -> SwapDevice {
    attach_sized(kind, DEVICE_BYTES)
}

fn attach_sized(kind: BlockKind, len_bytes: u64) -> SwapDevice {
    let memory = OwnMemory::new(len_bytes);
    let backings = (0..2).map(|_| Box::new(memory.clone()) as Box<dyn Backing>).collect();
    SwapDevice::attach(len_bytes, backings, 100, kind).unwrap()
}

fn program(group: &MemoryCgroup, test: &str) -> Command {
    let mut command = group.command(&std::env::current_exe().unwrap());
    command.args(["--exact", &path_of(test), "--nocapture"]).env(SWAPPED, "1");
    command
}

fn fill_and_check() {
    let words = PROGRAM_BYTES / 8;
    let wanted = |word: usize| (word as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let memory: Vec<u64> = (0..words).map(wanted).collect();
    println!("filled");
    // Returns at once if the other end is not held.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    for _ in 0..2 {
        let wrong = (0..words).filter(|word| memory[*word] != wanted(*word)).count();
        assert_eq!(wrong, 0);
    }
}
