//! Guests that run out of memory as a whole while they swap: the server that their kernel waits for
//! must not wait for memory itself.

use std::process::Command;
use std::time::Duration;

use venice_memory::donor::available_bytes;
use venice_testkit::guest::{GuestPlan, Kernel, Room, inside};

use crate::swap::programs::{self, list, pages};

/// The donors lock a third of it, and files take space too.
const MEMORY_MIB: u32 = 448;
/// Size on each of two donors.
const LENT: &str = "64MiB";
const DEVICE_MIB: u64 = 128;

/// Hung tasks are reported on the console, which a failing test shows.
const SET_UP: &str = "sysctl -q kernel.hung_task_timeout_secs=60";

/// No cgroups: the machine itself is full.
static ROOM: Room = Room::new(GuestPlan {
    memory_mib: MEMORY_MIB,
    processors: 2,
    set_up: SET_UP,
    ..GuestPlan::new("out-of-memory", &["nbd", "fuse", "loop"])
});

/// Linux 6.13 has ublk devices that outlive their server.
static NEWER_ROOM: Room = Room::new(GuestPlan {
    memory_mib: MEMORY_MIB,
    processors: 2,
    kernel: Kernel::Newer,
    set_up: SET_UP,
    ..GuestPlan::new("out-of-memory-newer", &["ublk_drv"])
});

/// Time limit of each test, with other load on the machine.
const LIMIT: Duration = Duration::from_secs(480);

#[test]
fn nbd_swap_does_not_hang() {
    swap_does_not_hang(&ROOM, "nbd_swap_does_not_hang", "nbd");
}

#[test]
fn fuse_swap_does_not_hang() {
    swap_does_not_hang(&ROOM, "fuse_swap_does_not_hang", "fuse");
}

#[test]
fn ublk_swap_does_not_hang() {
    swap_does_not_hang(&NEWER_ROOM, "ublk_swap_does_not_hang", "ublk");
}

fn swap_does_not_hang(room: &Room, test: &str, kind: &str) {
    pages();
    inside(room, test, LIMIT, || {
        let rack = programs::patient_rack(2, LENT, &["--keep-free", "0"]);
        let place = &rack.place;
        let size = format!("{DEVICE_MIB}MiB");
        let words = ["swap", "attach", &size, "--copies", "1", "--port", "shm", "--device", kind];
        // On a busy machine the Monitor Node may time out on a donor: then ask again.
        let attached = (0..5).any(|_| place.venice(&words).code() == 0);
        assert!(attached, "{words:?}");
        // With its child's writes it needs a quarter more, and other programs are swapped out too.
        let program_mib = (available_bytes().unwrap() >> 20) + DEVICE_MIB / 4;
        let said = fills_the_machine(program_mib);
        let row = list(place).remove(0);
        // Before any assertion: without its donors, swapped pages are lost, the guest's own too.
        place.venice(&["swap", "detach", "--all"]).expect(0);
        assert_eq!(said, "right", "{program_mib} MiB by {kind}");
        assert!(row["written_bytes"].as_u64().unwrap() > DEVICE_MIB << 18, "{row}");
        assert_eq!(row["failed_requests"], 0, "{row}");
    });
}

/// Output of a program, outside of any cgroup, about the pages it wrote and read back.
fn fills_the_machine(program_mib: u64) -> String {
    let output = Command::new(pages()).arg(program_mib.to_string()).output().unwrap();
    match output.status.success() {
        true => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        false => output.status.to_string(),
    }
}
