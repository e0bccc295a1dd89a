//! `--mode window`: mapped memory moves when its donor reclaims it, while the program continues. No
//! byte is wrong, and the program does not notice.

use std::fs::{self, File};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use venice_e2e::programs::{
    CProgram, MIB, Port, Rack, Running, descendants, kill_now, mapped_slab_bytes, wait_for,
};

const LIMIT: Duration = Duration::from_secs(120);
const REMOTE_MIB: u64 = 96;

/// True, with a printed line, if the user may not delay writes.
fn moving_is_missing(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("SKIPPED: {test}: no root");
    }
    !is_root
}

/// A program in the window that continues until it is stopped.
struct Mapped {
    program: CProgram,
    running: Running,
}

impl Mapped {
    fn start(rack: &Rack, name: &str, words: &[&str], more: &[&str]) -> Mapped {
        let program = CProgram::compile(name);
        let command = program.command(words);
        Mapped::start_as(rack, program, &command, more)
    }

    fn start_as(rack: &Rack, program: CProgram, command: &Command, more: &[&str]) -> Mapped {
        let remote = format!("{REMOTE_MIB}MiB");
        let options = ["--mode", "window", "--local", "16MiB", "--remote", &remote, "--stats"];
        let running = rack.run(&[&options[..], more].concat(), command);
        let mut mapped = Mapped { program, running };
        wait_for("the program to use its memory", LIMIT, || {
            mapped.expect_running();
            mapped.program.dir().join("ready").exists().then_some(())
        });
        mapped
    }

    fn expect_running(&mut self) {
        if !self.running.is_running() {
            panic!("the program ended:\n{}", self.running.stderr_after_end());
        }
    }

    /// Returns the bytes of slabs that it has mapped.
    fn slab_bytes(&self) -> u64 {
        descendants(self.running.pid()).into_iter().map(mapped_slab_bytes).max().unwrap_or(0)
    }

    fn stop(self) -> String {
        File::create(self.program.dir().join("stop")).expect("a file");
        let outcome = self.running.finish(LIMIT);
        outcome.expect_code(0);
        assert_eq!(String::from_utf8_lossy(&outcome.stdout), "every byte right\n");
        outcome.stderr
    }
}

fn node(rack: &Rack, name: &str) -> Value {
    let rows = rack.json(&["nodes"]);
    rows.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap().clone()
}

fn lends(rack: &Rack, name: &str) -> u64 {
    node(rack, name)["granted_bytes"].as_u64().unwrap()
}

fn drain(rack: &Rack, name: &str) {
    let drained = rack.venice(&["drain", name, "--wait-s", "120"]);
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stdout));
    let grants = rack.json(&["grants"]);
    assert!(grants.as_array().unwrap().iter().all(|row| row["donor"] != name), "{grants}");
}

/// Drains two of four nodes, one after the other, and ends them.
fn two_nodes_are_drained(test: &str, name: &str, words: &[&str]) {
    if moving_is_missing(test) {
        return;
    }
    let rack = Rack::start(Port::Shm, 128);
    let mut mapped = Mapped::start(&rack, name, words, &[]);
    for name in ["node1", "node2"] {
        assert_ne!(lends(&rack, name), 0, "{name} lends");
        drain(&rack, name);
        mapped.expect_running();
        kill_now(rack.agent_pid(name));
    }
    assert!(mapped.slab_bytes() <= REMOTE_MIB * MIB, "what has moved is mapped no more");
    let row = wait_for("the run to say that all has moved", LIMIT, || {
        let row = rack.run_row()?;
        (row["moved"] != 0 && row["moved"] == row["to_move"]).then_some(row)
    });
    assert_eq!((&row["lost_donors"], &row["short_slabs"]), (&Value::Array(vec![]), &0.into()));
    let said = mapped.stop();
    for name in ["node1", "node2"] {
        assert!(said.contains(&format!("node {name} is being drained: its data moves")), "{said}");
        assert!(said.contains(&format!("node {name} has its memory back")), "{said}");
    }
    assert!(!said.contains("died"), "{said}");
}

#[test]
fn nodes_drain_under_a_window() {
    let test = "nodes_drain_under_a_window";
    two_nodes_are_drained(test, "keep_busy", &["80", "ready", "stop"]);
}

#[test]
fn nodes_drain_under_threads_in_a_window() {
    let test = "nodes_drain_under_threads_in_a_window";
    two_nodes_are_drained(test, "window_threads", &["ready", "stop"]);
}

#[test]
fn nodes_drain_under_a_forking_window() {
    let test = "nodes_drain_under_a_forking_window";
    two_nodes_are_drained(test, "fork_over_and_over", &["48", "ready", "stop"]);
}

/// Two processes with memory there each move their own; one that now runs a static program has
/// none, and delays no other.
#[test]
fn each_process_moves_its_memory() {
    if moving_is_missing("each_process_moves_its_memory") {
        return;
    }
    let rack = Rack::start(Port::Shm, 128);
    let (program, is_static) =
        (CProgram::compile("keep_busy"), CProgram::compile_with("keep_busy", &["-static"]));
    let static_one = is_static.command(&[]).get_program().display().to_string();
    let script = format!(
        "sh -c 'exec {static_one} 1 ready-static stop' > said-static & \
         ./keep_busy 24 ready-first stop > said-first & \
         while ! [ -e ready-first -a -e ready-static ]; do sleep 0.05; done; \
         ./keep_busy 24 ready stop && wait && cat said-first said-static > said"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(program.dir());
    let mut mapped = Mapped::start_as(&rack, program, &command, &[]);
    for name in ["node1", "node2", "node3"] {
        drain(&rack, name);
        mapped.expect_running();
    }
    let said = mapped.program.dir().join("said");
    File::create(mapped.program.dir().join("stop")).expect("a file");
    wait_for("all to have checked what they have", LIMIT, || {
        (fs::read_to_string(&said).ok()?.lines().count() == 2).then_some(())
    });
    let all = fs::read_to_string(&said).unwrap();
    assert_eq!(all, "every byte right\nevery byte right\n");
    mapped.stop();
}

/// No other node has room: the memory moves to this machine.
#[test]
fn only_node_drains_to_this_machine() {
    if moving_is_missing("only_node_drains_to_this_machine") {
        return;
    }
    let rack = Rack::of(Port::Shm, 1, 128);
    let mut mapped = Mapped::start(&rack, "keep_busy", &["80", "ready", "stop"], &[]);
    drain(&rack, "node1");
    mapped.expect_running();
    kill_now(rack.agent_pid("node1"));
    let said = mapped.stop();
    assert!(said.contains("go to this machine's own memory"), "{said}");
    assert!(said.contains("node node1 has its memory back"), "{said}");
}

/// The user chooses the target, or none.
#[test]
fn reclaim_target_can_be_set_later() {
    if moving_is_missing("reclaim_target_can_be_set_later") {
        return;
    }
    let rack = Rack::of(Port::Shm, 2, 128);
    let donors = ["--reclaim-to", "donors", "--donor", "node1"];
    let mut stays = Mapped::start(&rack, "keep_busy", &["32", "ready", "stop"], &donors);
    assert!(rack.venice(&["drain", "node1", "--no-wait"]).status.success());
    wait_for("the run to say that it is nowhere to go", LIMIT, || {
        stays.expect_running();
        stays.running.stderr_so_far().contains("cannot move").then_some(())
    });
    assert_ne!(lends(&rack, "node1"), 0);
    stays.stop();
    let nowhere = rack.venice(&[
        "run",
        "--mode",
        "window",
        "--local",
        "16MiB",
        "--reclaim-to",
        "donors,disk",
        "--",
        "true",
    ]);
    let said = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(nowhere.status.code() == Some(125) && said.contains("--reclaim-to disk"), "{said}");
}

/// A process that may not delay its own writes keeps its memory, and its user gets a message.
#[test]
fn missing_userfaultfd_keeps_memory() {
    let test = "missing_userfaultfd_keeps_memory";
    if moving_is_missing(test) {
        return;
    }
    let everybody = "/proc/sys/vm/unprivileged_userfaultfd";
    if fs::read_to_string(everybody).is_ok_and(|text| text.trim() == "1") {
        println!("SKIPPED: {test}: everybody may have one here");
        return;
    }
    let rack = Rack::of(Port::Shm, 2, 128);
    let program = CProgram::compile("keep_busy");
    let script = "mount --bind /dev/null /dev/userfaultfd 2>/dev/null; exec setpriv \
                  --bounding-set=-sys_ptrace --inh-caps=-sys_ptrace ./keep_busy 32 ready stop";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).current_dir(program.dir());
    let mut mapped = Mapped::start_as(&rack, program, &command, &["--donor", "node1"]);
    let drained = rack.venice(&["drain", "node1", "--wait-s", "1"]);
    assert_eq!(drained.status.code(), Some(1));
    wait_for("the run to say that it cannot move", LIMIT, || {
        mapped.expect_running();
        let said = mapped.running.stderr_so_far();
        said.contains("its data cannot move (it is mapped into the program, which may not")
            .then_some(())
    });
    assert_ne!(lends(&rack, "node1"), 0);
    mapped.stop();
}

/// A device may be writing to mapped memory: it stays until the file is closed.
#[test]
fn direct_io_file_delays_the_move() {
    if moving_is_missing("direct_io_file_delays_the_move") {
        return;
    }
    let rack = Rack::of(Port::Shm, 2, 128);
    let script = "
import mmap, os, sys, time
held = mmap.mmap(-1, 48 << 20, flags=mmap.MAP_PRIVATE)
pattern = bytes(range(256)) * 4096
for at in range(48): held[at << 20 : at + 1 << 20] = pattern
file = os.open('direct', os.O_RDWR | os.O_CREAT | os.O_DIRECT)
open('ready', 'w').close()
while not os.path.exists('close'): time.sleep(0.02)
os.close(file)
while not os.path.exists('stop'): time.sleep(0.02)
right = all(held[at << 20 : at + 1 << 20] == pattern for at in range(48))
print('every byte right' if right else 'wrong')
";
    let mut command = Command::new("python3");
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    command.args(["-c", script]).current_dir(folder.path());
    let options = ["--mode", "window", "--local", "32MiB", "--remote", "96MiB"];
    let more = ["--donor", "node1"];
    let mut running = rack.run(&[&options[..], &more].concat(), &command);
    wait_for("the program to use its memory", LIMIT, || {
        assert!(running.is_running(), "{}", running.stderr_after_end());
        folder.path().join("ready").exists().then_some(())
    });
    assert!(rack.venice(&["drain", "node1", "--no-wait"]).status.success());
    wait_for("the run to say what it waits for", LIMIT, || {
        running.stderr_so_far().contains("O_DIRECT").then_some(())
    });
    assert_ne!(lends(&rack, "node1"), 0);
    File::create(folder.path().join("close")).unwrap();
    drain(&rack, "node1");
    File::create(folder.path().join("stop")).unwrap();
    let outcome = running.finish(LIMIT);
    outcome.expect_code(0);
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "every byte right\n");
}
