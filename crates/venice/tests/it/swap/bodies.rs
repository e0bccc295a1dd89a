//! Test bodies of kernel swap, shared by tests on this machine and in guests.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;

use signal_hook::consts::SIGBUS;
use venice_swap::cgroup::{Hierarchy, MemoryCgroup};

use crate::common::{Place, kill, pid, wait};
use crate::swap::programs::{Donors, ended_right, filled, grants, list, pages, swap_run, thrash};

/// Runs a static program with threads and a fork, over each of `ports`; `kind` is the block device
/// to expect.
pub fn a_static_program_runs(kind: Option<&str>, ports: &[&str]) {
    let place = Donors::start(2, "64MiB");
    let program = pages().to_str().unwrap();
    let refused = place.venice(&["run", "--mode", "paged", "--local", "8MiB", "--", program, "32"]);
    let refused = refused.expect(125);
    assert!(refused.complaint().contains("--mode swap"), "{refused:?}");
    for port in ports {
        let said = swap_run(&place, port, &["--remote", "96MiB", "--", program, "32"]);
        let said = said.expect(0);
        assert_eq!(said.out, "right\n");
        // Three quarters of it did not fit.
        assert!(said.err.contains("swapped to 96MiB of node"), "{}", said.err);
        assert!(!said.err.contains("written 0B"), "{}", said.err);
        if let Some(kind) = kind {
            assert!(said.err.contains(&format!(" by {kind};")), "{}", said.err);
        }
        assert_eq!((list(&place).len(), grants(&place)), (0, 0));
    }
    // The run returns the program's exit code and signal.
    let code = swap_run(&place, "shm", &["--", "sh", "-c", "exit 7"]);
    assert_eq!(code.code(), 7);
    let little = swap_run(&place, "shm", &["--remote", "16MiB", "--", program, "32"]);
    assert_ne!(little.code(), 0);
    assert!(little.err.contains("(out of memory): it outgrew --local"), "{little:?}");
    assert!(little.err.contains("16MiB of its swap device: give it more --remote"), "{little:?}");
    assert_eq!((list(&place).len(), grants(&place)), (0, 0));
}

/// Detach reads everything back if its cgroup has room, and refuses otherwise.
pub fn comes_home_or_stays() {
    let place = Donors::start(2, "32MiB");
    // Above the priority of other tests' areas: the pages go here.
    place.venice(&["swap", "attach", "64MiB", "--priority", "32767", "--port", "shm"]).expect(0);
    let group = MemoryCgroup::create("swap-test", 8 << 20, None).unwrap();
    let mut command = group.command(pages());
    command.args(["24", "wait"]);
    let child = filled(command);
    let row = list(&place).remove(0);
    assert!(row["used_bytes"].as_u64().unwrap() > 12 << 20, "{row}");
    assert!(row["far_bytes"].as_u64().unwrap() > 12 << 20, "{row}");

    let refused = place.venice(&["swap", "detach", "swap0"]).expect(1);
    assert!(refused.complaint().contains("swap0 stays: the memory cgroup"), "{refused:?}");
    assert_eq!(list(&place)[0]["state"], "up");
    assert!(place.venice(&["down"]).expect(1).complaint().contains("swap0 stays"));

    let folder = group.members_file().parent().unwrap().to_owned();
    let limit = match Hierarchy::find().unwrap() {
        Hierarchy::V1(_) => "memory.limit_in_bytes",
        Hierarchy::V2(_) => "memory.max",
    };
    fs::write(folder.join(limit), "64M").unwrap();
    place.venice(&["swap", "detach", "swap0"]).expect(0);
    ended_right(child);
}

/// The machine-wide switch of FUSE over io_uring; `None` if the kernel has none.
fn ring_switch() -> Option<String> {
    fs::read_to_string("/sys/module/fuse/parameters/enable_uring").ok()
}

/// A device by `kind` with a program that reads and writes, alone on this machine's swap.
fn busy_on(place: &Place, kind: &str) -> (MemoryCgroup, Child) {
    let words = ["swap", "attach", "64MiB", "--port", "shm", "--priority", "32767"];
    place.venice(&[&words[..], &["--device", kind]].concat()).expect(0);
    assert_eq!(list(place)[0]["kind"], kind);
    let group = MemoryCgroup::create("swap-test", 8 << 20, None).unwrap();
    let mut command = group.command(pages());
    command.args(["24", "wait"]);
    let child = filled(command);
    (group, child)
}

/// A device by `kind` serves a swapping program, and a dead server blocks nobody.
pub fn requests_come_by(kind: &str) {
    let switch = ring_switch();
    let place = Donors::start(2, "96MiB");
    let (group, child) = busy_on(&place, kind);
    assert_eq!(ring_switch(), switch, "it is as it was");
    ended_right(child);
    let row = list(&place).remove(0);
    assert!(row["read_bytes"].as_u64().unwrap() > 12 << 20, "{row}");
    assert_eq!(row["failed_requests"], 0, "{row}");
    drop(group);
    place.venice(&["swap", "detach", "swap0"]).expect(0);

    // A server that is killed at work blocks nobody.
    let (_group, mut child) = busy_on(&place, kind);
    kill(pid(&list(&place)[0]));
    assert_eq!(wait(&mut child, &["pages"]).signal(), Some(SIGBUS));
    let said = place.venice(&["swap", "detach", "swap0"]).expect(0);
    assert!(said.out.contains("was dead and is removed"), "{said:?}");
    place.venice(&["swap", "attach", "1MiB", "--port", "shm", "--device", kind]).expect(0);
    place.venice(&["swap", "detach", "--all"]).expect(0);
    assert_eq!(ring_switch(), switch, "it is as it was");
}

/// The kernel's statistics show reclaimable pages where there are none; see
/// `venice-swap/src/anchor.rs`. The program touches a page this many times in each of three rounds.
pub fn all_pages_at_once(touches: &str) {
    let place = Donors::start(2, "48MiB");
    let words = ["--remote", "48MiB", "--copies", "1", "--", thrash().to_str().unwrap()];
    let said = swap_run(&place, "shm", &[&words[..], &["24", "12", "3", touches]].concat());
    assert_eq!(said.expect(0).out, "right\n");

    let words = ["run", "--mode", "swap", "--port", "shm", "--local", "8MiB", "--remote", "48MiB"];
    let program = ["--", pages().to_str().unwrap(), "24", "wait"];
    let child = filled(place.command(&[&words[..], &program].concat()));
    let group = Hierarchy::find().unwrap().mount().join(format!("venice-run-{}", child.id()));
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap();
    let files = |line: &str| {
        let (name, bytes) = line.split_once(' ')?;
        ["cache", "file"].contains(&name).then(|| bytes.parse::<u64>().unwrap())
    };
    assert!(stat.lines().find_map(files).unwrap() >= 4096, "{stat}");
    ended_right(child);
}

/// Changes the budget of a swapping program while it runs.
pub fn gets_another_budget() {
    let place = Donors::start(1, "96MiB");
    let program = pages().to_str().unwrap();
    // At last there are 16 MiB for 32 MiB and 8 MiB of a child; pages that have come back keep
    // their place on the device for a while.
    let words = ["run", "--mode", "swap", "--port", "shm", "--local", "40MiB", "--remote", "64MiB"];
    let child = filled(place.command(&[&words[..], &["--", program, "32", "wait"]].concat()));
    let rows = place.venice(&["ps", "--json"]).expect(0).json();
    let row = &rows[0];
    assert_eq!((&row["mode"], &row["run"]), (&"swap".into(), &child.id().into()));
    assert_eq!(row["local_bytes"], 40 << 20);
    assert!(row["resident_bytes"].as_u64().unwrap() > 24 << 20, "{row}");

    let pid = row["pid"].to_string();
    let limit = |size: &str| place.venice(&["limit", &pid, "--local", size, "--json"]);
    for (size, bytes) in [("12MiB", 12 << 20), ("64MiB", 64 << 20), ("16MiB", 16 << 20)] {
        let row = limit(size).expect(0).json();
        assert_eq!(row["local_bytes"], bytes);
        assert!(row["resident_bytes"].as_u64().unwrap() <= bytes, "{row}");
    }
    let row = &place.venice(&["ps", "--json"]).expect(0).json()[0];
    assert!(row["remote_bytes"].as_u64().unwrap() > 12 << 20, "{row}");
    assert!(row["faults"].as_u64().unwrap() > 0 && row["fault_p99_us"].as_f64().is_some(), "{row}");
    assert!(limit("1MiB").expect(2).complaint().contains("4MiB at least"));
    ended_right(child);
    let none = place.venice(&["limit", &pid, "--local", "16MiB"]).expect(1);
    assert!(none.complaint().contains("not a program on borrowed memory"), "{none:?}");
}
