//! `--write-behind`: far memory is on this machine's disk too, so that the death of the only donor
//! loses nothing, and no error of the disk makes a byte wrong.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use venice_e2e::programs::{
    Busy, CProgram, Port, Rack, Running, kill_now, paged_mode_is_missing, redis, wait_for,
};

const LEND_MIB: u64 = 128;
const SIGBUS_CODE: i32 = 128 + 7;
const LIMIT: Duration = Duration::from_secs(120);

/// A file system of so many MiB in memory, removed with the test.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn new(mib: u64) -> SmallDisk {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={mib}m");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "venice-test"])
            .arg(dir.path())
            .status();
        assert!(mounted.expect("mount").success(), "root can mount a tmpfs");
        SmallDisk { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn used_bytes(&self) -> u64 {
        let disk = rustix::fs::statvfs(self.path()).unwrap();
        (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--lazy"]).arg(self.path()).status();
    }
}

fn busy(rack: &Rack, dir: &Path, more: &[&str]) -> Busy {
    let dir = dir.to_str().unwrap();
    Busy::start_kept(rack, "80MiB", &["--write-behind", dir], more)
}

/// Returns the row of the one run in `venice status`.
fn run(rack: &Rack) -> Option<Value> {
    rack.json(&["status"])["runs"].as_array()?.first().cloned()
}

fn is_lost(name: &str, run: &Value) -> bool {
    run["lost_donors"].as_array().is_some_and(|names| names.iter().any(|other| other == name))
}

fn only_replicas_die(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let rack = Rack::start(port, LEND_MIB);
    let mut busy = busy(&rack, folder.path(), &[]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
    for name in ["node1", "node2"] {
        kill_now(rack.agent_pid(name));
        wait_for("the only copies to be there again", LIMIT, || {
            busy.expect_running();
            let run = run(&rack)?;
            (is_lost(name, &run) && run["short_slabs"] == 0).then_some(())
        });
    }
    let row = run(&rack).unwrap();
    assert_eq!((&row["copies"], &row["lost_slabs"]), (&1.into(), &0.into()));
    assert_eq!(row["behind"]["slabs"], row["behind"]["of_slabs"], "{row}");
    let kept = rack.json(&["ps"])[0]["replicas"].to_string();
    assert!(kept.contains("1 copy, on disk too"), "{kept}");
    let said = busy.stop();
    for name in ["node1", "node2"] {
        let told = format!("node {name} died; what only it held is on this machine's disk");
        assert!(said.contains(&told), "{said}");
    }
    assert!(
        said.contains("all copies are there again") && said.contains("write-behind:"),
        "{said}"
    );
    assert!(!said.contains("SIGBUS"), "{said}");
}

#[test]
fn only_replicas_die_over_shm() {
    only_replicas_die("only_replicas_die_over_shm", Port::Shm);
}

#[test]
fn only_replicas_die_over_udp() {
    only_replicas_die("only_replicas_die_over_udp", Port::Udp);
}

/// Kills all donors: the program continues on the disk, and evicts to it.
fn all_donors_die(test: &str, port: Port, more: &[&str]) {
    if paged_mode_is_missing(test) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let rack = Rack::of(port, 2, LEND_MIB);
    let mut busy = busy(&rack, folder.path(), more);
    for name in ["node1", "node2"] {
        kill_now(rack.agent_pid(name));
    }
    wait_for("the losses to be seen", LIMIT, || {
        busy.expect_running();
        let run = run(&rack)?;
        (is_lost("node1", &run) && is_lost("node2", &run)).then_some(())
    });
    assert_eq!(run(&rack).unwrap()["lost_slabs"], 0);
    let said = busy.stop();
    assert!(said.contains("lost copies are not there again"), "{said}");
    let from_disk = said.lines().find(|line| line.contains("write-behind:")).unwrap();
    assert!(!from_disk.contains(", in 0 "), "{from_disk}");
}

#[test]
fn all_donors_die_over_shm() {
    all_donors_die("all_donors_die_over_shm", Port::Shm, &[]);
}

#[test]
fn all_donors_die_over_udp() {
    all_donors_die("all_donors_die_over_udp", Port::Udp, &[]);
}

#[test]
fn all_donors_die_under_large_pages() {
    all_donors_die("all_donors_die_under_large_pages", Port::Shm, &["--page-size", "64k"]);
}

#[test]
fn all_donors_die_with_in_thread_faults() {
    let test = "all_donors_die_with_in_thread_faults";
    all_donors_die(test, Port::Shm, &["--faults", "in-thread"]);
}

#[test]
fn full_disk_is_reported_and_harmless() {
    if paged_mode_is_missing("full_disk_is_reported_and_harmless") {
        return;
    }
    let disk = SmallDisk::new(20);
    let rack = Rack::of(Port::Shm, 1, LEND_MIB);
    let mut first = busy(&rack, disk.path(), &[]);
    let row = wait_for("the disk to be full", LIMIT, || {
        first.expect_running();
        let row = run(&rack)?;
        (row["behind"]["slabs"].as_u64() < row["behind"]["of_slabs"].as_u64()).then_some(row)
    });
    assert_eq!((&row["lost_slabs"], &row["short_slabs"]), (&0.into(), &0.into()));
    let said = first.stop();
    assert!(said.contains("20MiB free, and the program may write 80MiB"), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    assert!(said.contains("slabs are with their nodes alone from now on"), "{said}");
    // The slabs that did not fit die with their node, and that is reported.
    let second = busy(&rack, disk.path(), &[]);
    wait_for("the disk to be full again", LIMIT, || {
        let row = run(&rack)?;
        (row["behind"]["slabs"].as_u64() < row["behind"]["of_slabs"].as_u64()).then_some(())
    });
    kill_now(rack.agent_pid("node1"));
    let outcome = second.running.finish(LIMIT);
    outcome.expect_code(SIGBUS_CODE);
    assert!(outcome.stdout.is_empty(), "the program claims success");
    assert!(outcome.stderr.contains("node node1 died with"), "{}", outcome.stderr);
}

/// A file longer than a process may write ends that process (`SIGXFSZ`).
#[test]
fn file_limit_is_refused_before_borrowing() {
    if paged_mode_is_missing("file_limit_is_refused_before_borrowing") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let rack = Rack::of(Port::Shm, 1, 2 * LEND_MIB);
    let dir = folder.path().to_str().unwrap();
    let run = ["run", "--local", "16MiB", "--remote", "256MiB", "--write-behind", dir, "true"];
    let run = rack.command(&run);
    let mut limited = Command::new("sh");
    // 64 MiB in blocks of 512 bytes, 128 MiB if the shell has blocks of 1024.
    limited.args(["-c", r#"ulimit -f 131072; exec "$@""#, "sh"]);
    limited.arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let outcome = Running::spawn(limited, true).finish(LIMIT);
    outcome.expect_code(125);
    assert!(outcome.stderr.contains("`ulimit -f`"), "{}", outcome.stderr);
}

#[test]
fn file_is_removed_at_any_end() {
    if paged_mode_is_missing("file_is_removed_at_any_end") {
        return;
    }
    let disk = SmallDisk::new(120);
    // A killed run's memory stays lent until its lease is over.
    let rack = Rack::of(Port::Shm, 1, 4 * LEND_MIB);
    for signal in [Signal::KILL, Signal::TERM] {
        let busy = busy(&rack, disk.path(), &[]);
        wait_for("something to be there", LIMIT, || (disk.used_bytes() > 1 << 20).then_some(()));
        busy.running.signal(signal);
        wait_for("all of it to be gone", LIMIT, || (disk.used_bytes() == 0).then_some(()));
        busy.running.finish(LIMIT);
    }
    let busy = busy(&rack, disk.path(), &[]);
    let programs = busy.running.descendants();
    wait_for("something to be there", LIMIT, || (disk.used_bytes() > 1 << 20).then_some(()));
    programs.iter().for_each(|&pid| kill_now(pid));
    busy.running.finish(LIMIT);
    assert_eq!(disk.used_bytes(), 0);
}

#[test]
fn forks_share_the_disk_file() {
    if paged_mode_is_missing("forks_share_the_disk_file") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dir: PathBuf = folder.path().into();
    let rack = Rack::of(Port::Shm, 2, 2 * LEND_MIB);
    for name in ["fork_cow", "fork_chain"] {
        let program = CProgram::compile(name);
        let options = ["--local", "16MiB", "--remote", "256MiB", "--write-behind"];
        let options = [&options[..], &[dir.to_str().unwrap()]].concat();
        let running = rack.run(&options, &program.command(&[]));
        running.finish(LIMIT).expect_code(0);
    }
}

/// Kills all donors under forked children: data of a child from its parent, and of a grandchild
/// from both, is on the disk.
fn children_outlive_all_donors(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let rack = Rack::of(port, 2, 2 * LEND_MIB);
    let program = CProgram::compile("fork_kept");
    let options = ["--local", "16MiB", "--remote", "256MiB", "--write-behind"];
    let options = [&options[..], &[folder.path().to_str().unwrap()]].concat();
    let running = rack.run(&options, &program.command(&["ready", "stop"]));
    wait_for("the children to be there", LIMIT, || {
        program.dir().join("ready").exists().then_some(())
    });
    for name in ["node1", "node2"] {
        kill_now(rack.agent_pid(name));
    }
    wait_for("the losses to be seen", LIMIT, || {
        let run = run(&rack)?;
        (is_lost("node1", &run) && is_lost("node2", &run)).then_some(())
    });
    std::fs::File::create(program.dir().join("stop")).unwrap();
    running.finish(LIMIT).expect_code(0);
}

#[test]
fn children_outlive_all_donors_over_shm() {
    children_outlive_all_donors("children_outlive_all_donors_over_shm", Port::Shm);
}

#[test]
fn children_outlive_all_donors_over_udp() {
    children_outlive_all_donors("children_outlive_all_donors_over_udp", Port::Udp);
}

#[test]
fn redis_survives_its_only_node() {
    if paged_mode_is_missing("redis_survives_its_only_node") {
        return;
    }
    let (dir, behind) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let rack = Rack::of(Port::Udp, 2, LEND_MIB);
    let options = ["--local", "16MiB", "--remote", "96MiB", "--donor", "node1", "--write-behind"];
    let options = [&options[..], &[behind.path().to_str().unwrap()]].concat();
    let server = rack.run(&options, &redis::server(dir.path()));
    let mut client = redis::Client::connect(&redis::socket(dir.path()));
    let keys: Vec<u64> = (0..30_000).collect();
    client.set_all(&keys, 1);
    kill_now(rack.agent_pid("node1"));
    client.check_all(&keys, |_| 1);
    client.set_all(&keys[..10_000], 2);
    client.check_all(&keys, |key| if key < 10_000 { 2 } else { 1 });
    client.shut_down();
    let outcome = server.finish(LIMIT);
    outcome.expect_code(0);
    let told = "node node1 died; what only it held is on this machine's disk";
    assert!(outcome.stderr.contains(told), "{}", outcome.stderr);
}
