//! `--mode window`: what is mapped into a program moves when its donor wants it back, while the
//! program goes on. No wrong byte, and nothing that the program would notice.

use std::fs::{self, File};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use venice_e2e::programs::{
    CProgram, MIB, Port, Rack, Running, descendants, kill_now, mapped_slab_bytes, wait_for,
};

const LIMIT: Duration = Duration::from_secs(120);
const REMOTE_MIB: u64 = 96;

/// True, with a line saying so, where nobody may hold writes up.
fn moving_is_missing(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("SKIPPED: {test}: no root");
    }
    !is_root
}

/// A program in the window that goes on until it is stopped.
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
            panic!("the program ended:\n{}", self.running.said_on_stderr());
        }
    }

    /// How much memory of slabs it has mapped.
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

/// Two of four nodes are drained, one after the other, and end.
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
        assert!(
            said.contains(&format!("node {name} is being drained: what is there moves")),
            "{said}"
        );
        assert!(said.contains(&format!("node {name} has its memory back")), "{said}");
    }
    assert!(!said.contains("died"), "{said}");
}

#[test]
fn nodes_are_drained_under_a_window() {
    let test = "nodes_are_drained_under_a_window";
    two_nodes_are_drained(test, "keep_busy", &["80", "ready", "stop"]);
}

#[test]
fn nodes_are_drained_under_threads_in_a_window() {
    let test = "nodes_are_drained_under_threads_in_a_window";
    two_nodes_are_drained(test, "window_threads", &["ready", "stop"]);
}

#[test]
fn nodes_are_drained_under_a_window_that_forks() {
    let test = "nodes_are_drained_under_a_window_that_forks";
    two_nodes_are_drained(test, "fork_over_and_over", &["48", "ready", "stop"]);
}

/// Of two processes that have memory there, each moves its own; one that runs a static program now has
/// none, and holds nobody up.
#[test]
fn processes_move_each_their_own() {
    if moving_is_missing("processes_move_each_their_own") {
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

/// Nobody else has room: it comes home.
#[test]
fn the_only_node_is_drained_under_a_window() {
    if moving_is_missing("the_only_node_is_drained_under_a_window") {
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

/// Where to is the user's choice, and nowhere too.
#[test]
fn what_may_go_nowhere_stays_and_moves_when_it_may() {
    if moving_is_missing("what_may_go_nowhere_stays_and_moves_when_it_may") {
        return;
    }
    let rack = Rack::of(Port::Shm, 2, 128);
    let donors = ["--reclaim-to", "donors", "--donor", "node1"];
    let mut stays = Mapped::start(&rack, "keep_busy", &["32", "ready", "stop"], &donors);
    assert!(rack.venice(&["drain", "node1", "--no-wait"]).status.success());
    wait_for("the run to say that it is nowhere to go", LIMIT, || {
        stays.expect_running();
        stays.running.says_on_stderr().contains("cannot move").then_some(())
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
    assert!(nowhere.status.code() == Some(2) && said.contains("--reclaim-to disk"), "{said}");
}

/// A process that may not hold its own writes up keeps its memory, and its user is told.
#[test]
fn without_userfaultfd_it_stays_and_that_is_told() {
    let test = "without_userfaultfd_it_stays_and_that_is_told";
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
        let said = mapped.running.says_on_stderr();
        said.contains("its data cannot move (it is mapped into the program, which may not")
            .then_some(())
    });
    assert_ne!(lends(&rack, "node1"), 0);
    mapped.stop();
}

/// A device may be writing to what is mapped: it stays until the file is closed.
#[test]
fn a_file_for_direct_access_is_waited_for() {
    if moving_is_missing("a_file_for_direct_access_is_waited_for") {
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
        assert!(running.is_running(), "{}", running.said_on_stderr());
        folder.path().join("ready").exists().then_some(())
    });
    assert!(rack.venice(&["drain", "node1", "--no-wait"]).status.success());
    wait_for("the run to say what it waits for", LIMIT, || {
        running.says_on_stderr().contains("O_DIRECT").then_some(())
    });
    assert_ne!(lends(&rack, "node1"), 0);
    File::create(folder.path().join("close")).unwrap();
    drain(&rack, "node1");
    File::create(folder.path().join("stop")).unwrap();
    let outcome = running.finish(LIMIT);
    outcome.expect_code(0);
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "every byte right\n");
}
