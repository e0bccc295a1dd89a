//! Memory that parent and children share since a `fork` is one memory: counted and written once.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use venice_e2e::programs::compare::same_output;
use venice_e2e::programs::{CProgram, MIB, Port, Rack, Running};
use venice_e2e::programs::{paged_mode_is_missing, pss_anon_bytes, wait_for};

const LIMIT: Duration = Duration::from_secs(240);
/// Memory of the parent, MiB.
const PARENT_MIB: u64 = 50;

/// A parent of 50 MiB and its children.
struct Family {
    rack: Rack,
    program: CProgram,
    running: Running,
}

impl Family {
    /// Starts `program` within `local`, and waits until each child has read everything.
    fn start(program: &str, children: u32, local: &str) -> Family {
        let rack = Rack::start(Port::Shm, 128);
        let program = CProgram::compile(program);
        let arguments = [PARENT_MIB.to_string(), children.to_string()];
        let arguments = [&arguments[0], &arguments[1], "ready", "stop"];
        let options = ["--local", local, "--remote", "192MiB"];
        let running = rack.run(&options, &program.command(&arguments));
        let mut family = Family { rack, program, running };
        wait_for("the children to read", LIMIT, || {
            assert!(family.running.is_running(), "it ended early");
            family.program.dir().join("ready").exists().then_some(())
        });
        family
    }

    /// Checks some times that all processes together are within `most_bytes`.
    fn check_resident(&self, most_bytes: u64) {
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(300));
            let processes = self.running.descendants();
            let real: u64 = processes.into_iter().map(pss_anon_bytes).sum();
            assert!(real <= most_bytes, "{real} bytes resident");
        }
    }

    /// Bytes that `venice ps` shows in a column.
    fn shown(&self, column: &str) -> u64 {
        let rows = self.rack.json(&["ps"]);
        rows[0][column].as_u64().unwrap_or_else(|| panic!("no {column}: {rows}"))
    }

    fn finish(self) {
        File::create(self.program.dir().join("stop")).expect("a file");
        let outcome = self.running.finish(LIMIT);
        outcome.expect_code(0);
        assert_eq!(String::from_utf8_lossy(&outcome.stdout), "every byte right\n");
    }
}

/// The budget and a tenth.
fn with_a_tenth(mib: u64) -> u64 {
    mib * MIB * 11 / 10
}

#[test]
fn readers_stay_within_budget() {
    if paged_mode_is_missing("readers_stay_within_budget") {
        return;
    }
    let readers = Family::start("fork_readers", 30, "64MiB");
    readers.check_resident(with_a_tenth(64));
    let shown = readers.shown("resident_bytes");
    assert!(shown <= with_a_tenth(64), "{shown} bytes shown as resident");
    readers.finish();
}

/// All processes have to drop everything; each page is stored once.
#[test]
fn evicted_pages_are_stored_once() {
    if paged_mode_is_missing("evicted_pages_are_stored_once") {
        return;
    }
    let readers = Family::start("fork_readers", 8, "64MiB");
    let pid = readers.running.pid().to_string();
    readers.rack.json(&["limit", &pid, "--local", "8MiB"]);
    wait_for("the pages to be evicted", LIMIT, || {
        (readers.shown("resident_bytes") <= with_a_tenth(8)).then_some(())
    });
    let far = readers.shown("remote_bytes");
    assert!((30 * MIB..PARENT_MIB * MIB * 5 / 4).contains(&far), "{far} bytes far");
    readers.finish();
}

/// The workers of a server write a slice each, and share the rest.
#[test]
fn server_pool_within_budget() {
    if paged_mode_is_missing("server_pool_within_budget") {
        return;
    }
    let workers = Family::start("fork_pool", 8, "32MiB");
    workers.check_resident(with_a_tenth(32));
    let far = workers.shown("remote_bytes");
    // Each worker's slice is a 128th of the memory.
    assert!(far <= with_a_tenth(PARENT_MIB + PARENT_MIB * 8 / 128), "{far} bytes far");
    workers.finish();
}

#[test]
fn python_pool_sums_right() {
    if paged_mode_is_missing("python_pool_sums_right") {
        return;
    }
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", include_str!("../../data/fork_pool.py")]);
    let options = ["--local", "24MiB", "--remote", "192MiB"];
    same_output(Rack::shared(Port::Shm), &options, &python);
}
