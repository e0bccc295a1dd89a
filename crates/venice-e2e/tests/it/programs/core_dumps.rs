//! Core dumps have the values of far pages: those that `venice core` writes, and those of the
//! kernel. Debuggers attach and detach without harm.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use venice_e2e::programs::wait_for;
use venice_e2e::programs::{CProgram, MIB, Port, Rack, Running, exit_code, paged_mode_is_missing};

const LIMIT: Duration = Duration::from_secs(120);
/// Memory of the program, of which a third is local.
const MEMORY: &str = "96";
const OPTIONS: [&str; 4] = ["--local", "32MiB", "--remote", "160MiB"];
/// Counts the pages whose first word is right, wrong, and unreadable.
const CHECK: &str = r#"
python
inferior = gdb.selected_inferior()
base, pages = int(gdb.parse_and_eval("(long)base")), int(gdb.parse_and_eval("pages"))
right = wrong = unreadable = 0
for page in range(pages):
    try:
        word = int.from_bytes(bytes(inferior.read_memory(base + page * 4096, 8)), "little")
        right, wrong = right + (word == page + 1), wrong + (word != page + 1)
    except gdb.MemoryError:
        unreadable += 1
print("pages", pages, "right", right, "wrong", wrong, "unreadable", unreadable)
end
"#;

/// Runs gdb with CHECK and then `commands`; returns what it prints.
fn gdb(target: &[&str], dir: &Path, commands: &[&str]) -> String {
    let script = dir.join("check.gdb");
    fs::write(&script, CHECK).expect("a file");
    let mut gdb = Command::new("gdb");
    gdb.args(["-q", "-nx", "-batch", "-iex", "set debuginfod enabled off"]).args(target);
    gdb.arg("-x").arg(&script);
    for command in commands {
        gdb.args(["-ex", command]);
    }
    let output = gdb.output().expect("gdb");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    format!("{}{stderr}", String::from_utf8_lossy(&output.stdout))
}

/// Checks that all pages are right in a core of the program, and that gdb finds its way in it.
#[track_caller]
fn check_core(program: &CProgram, core: &Path, threads: usize) {
    let (path, core) = (program.dir().join("core_dump"), core.to_str().expect("UTF-8"));
    let commands =
        ["info threads", "thread apply all backtrace", "info auxv", "info proc mappings"];
    let said = gdb(&[path.to_str().expect("UTF-8"), core], program.dir(), &commands);
    assert!(said.contains("pages 24576 right 24576 wrong 0 unreadable 0"), "{said}");
    let listed = said.lines().filter(|line| line.contains("(LWP ")).count();
    assert!(listed >= threads, "{listed} threads: {said}");
    for known in ["read_at_random", "AT_PHDR", "core_dump"] {
        assert!(said.contains(known), "no {known}: {said}");
    }
    assert!(!said.contains("not found in core"), "{said}");
}

fn start(rack: &Rack, program: &CProgram, environment: &[(&str, &str)]) -> Running {
    let mut command = program.command(&[MEMORY, "ready", "stop"]);
    command.envs(environment.iter().copied());
    let mut running = rack.run(&OPTIONS, &command);
    wait_for("the program to use its memory", LIMIT, || {
        assert!(running.is_running(), "it ended before its memory was in use");
        program.dir().join("ready").exists().then_some(())
    });
    running
}

#[track_caller]
fn stop_and_check(program: &CProgram, running: Running) {
    File::create(program.dir().join("stop")).expect("a file");
    let outcome = running.finish(LIMIT);
    outcome.expect_code(0);
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "every byte right\n");
}

fn living_core(test: &str, port: Port, environment: &[(&str, &str)]) {
    if paged_mode_is_missing(test) {
        return;
    }
    let (rack, program) = (Rack::start(port, 256), CProgram::compile("core_dump"));
    let running = start(&rack, &program, environment);
    let row = rack.run_row_of_ps().expect("a run");
    let pid = row["pid"].to_string();
    let core = program.dir().join("whole.core");
    let written = rack.venice(&["core", &pid, "-o", core.to_str().expect("UTF-8")]);
    assert_eq!(exit_code(written.status), 0, "{}", String::from_utf8_lossy(&written.stderr));
    let after = rack.run_row_of_ps().expect("it goes on");
    assert_eq!(after["local_bytes"], row["local_bytes"]);
    stop_and_check(&program, running);
    check_core(&program, &core, 3);
    let facts = fs::metadata(&core).expect("the core");
    // Stacks of two threads and the libraries are beside the 96 MiB; the stacks are hardly used.
    let (len_bytes, stored_bytes) = (facts.len(), facts.blocks() * 512);
    let is_lean = len_bytes < 120 * MIB && stored_bytes < 104 * MIB;
    assert!(is_lean, "the pager's own memory is in it: {len_bytes}, {stored_bytes} stored");
    assert_eq!(facts.mode() & 0o777, 0o600);
}

#[test]
fn living_core_is_whole() {
    living_core("living_core_is_whole", Port::Shm, &[]);
}

#[test]
fn living_core_is_whole_udp() {
    living_core("living_core_is_whole_udp", Port::Udp, &[]);
}

#[test]
fn living_core_has_shared_memory() {
    living_core("living_core_has_shared_memory", Port::Shm, &[("SHARED", "anonymous")]);
}

#[test]
fn living_core_has_shared_file() {
    living_core("living_core_has_shared_file", Port::Shm, &[("SHARED", "memfd")]);
}

#[test]
fn living_core_has_own_copies() {
    living_core("living_core_has_own_copies", Port::Shm, &[("SHARED", "private")]);
}

#[test]
fn other_processes_are_refused() {
    if paged_mode_is_missing("other_processes_are_refused") {
        return;
    }
    let (rack, program) = (Rack::start(Port::Shm, 256), CProgram::compile("core_dump"));
    let running = start(&rack, &program, &[]);
    let pid = rack.run_row_of_ps().expect("a run")["pid"].to_string();
    let taken = program.dir().join("taken");
    File::create(&taken).expect("a file");
    let me = std::process::id().to_string();
    let taken = taken.to_str().expect("UTF-8");
    for (arguments, words) in [
        (&["core", &me, "-o", "/nowhere/core"][..], "not a program on borrowed memory"),
        (&["core", &pid, "-o", taken][..], "exists"),
        (&["core", &pid, "-o", "/nowhere/core"][..], "No such file"),
    ] {
        let output = rack.venice(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(exit_code(output.status), 1, "{stderr}");
        assert!(stderr.lines().count() == 1 && stderr.contains(words), "{stderr}");
    }
    stop_and_check(&program, running);
}

/// True, with a printed line, if the kernel does not write core files to the directory of the
/// program.
fn core_files_are_missing(test: &str) -> bool {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let is_missing = pattern.contains(['|', '/']);
    if is_missing {
        println!("SKIPPED: {test}: no core-files: kernel.core_pattern is {}", pattern.trim());
    }
    is_missing
}

/// Runs the program to its death by `how`; returns its core file, the exit code of the run and what
/// it printed on stderr.
fn crash(
    rack: &Rack,
    program: &CProgram,
    how: &str,
    environment: &[(&str, &str)],
) -> (PathBuf, i32, String) {
    let words = format!("ulimit -c unlimited; exec ./core_dump {MEMORY} ready stop {how}");
    let mut command = Command::new("sh");
    command.args(["-c", &words]).current_dir(program.dir()).envs(environment.iter().copied());
    let outcome = rack.run(&OPTIONS, &command).finish(LIMIT);
    let entries = fs::read_dir(program.dir()).expect("the directory").flatten();
    let is_core = |name: &str| name == "core" || name.starts_with("core.");
    let mut cores = entries
        .map(|entry| entry.path())
        .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_core));
    let core = cores.next().unwrap_or_else(|| panic!("no core file: {}", outcome.stderr));
    (core, outcome.code(), outcome.stderr)
}

fn crashed_core(test: &str, how: &str, environment: &[(&str, &str)], expected: i32) {
    if paged_mode_is_missing(test) || core_files_are_missing(test) {
        return;
    }
    let (rack, program) = (Rack::start(Port::Shm, 256), CProgram::compile("core_dump"));
    let (core, code, stderr) = crash(&rack, &program, how, environment);
    assert_eq!(code, expected, "{stderr}");
    assert!(stderr.contains("is whole, with"), "{stderr}");
    check_core(&program, &core, 3);
    let stored_bytes = fs::metadata(&core).expect("the core").blocks() * 512;
    assert!(stored_bytes < 112 * MIB, "the pager's own memory is in it: {stored_bytes}");
}

#[test]
fn aborted_program_leaves_whole_core() {
    crashed_core("aborted_program_leaves_whole_core", "abort", &[], 128 + 6);
}

#[test]
fn overflown_stack_leaves_whole_core() {
    crashed_core("overflown_stack_leaves_whole_core", "overflow", &[], 128 + 11);
}

#[test]
fn forked_child_leaves_whole_core() {
    crashed_core("forked_child_leaves_whole_core", "fork", &[], 0);
}

#[test]
fn crashed_core_has_shared_memory() {
    let shared = &[("SHARED", "anonymous")];
    crashed_core("crashed_core_has_shared_memory", "abort", shared, 128 + 6);
}

#[test]
fn crashed_core_has_shared_file() {
    crashed_core("crashed_core_has_shared_file", "abort", &[("SHARED", "memfd")], 128 + 6);
}

#[test]
fn crashed_core_has_own_copies() {
    crashed_core("crashed_core_has_own_copies", "abort", &[("SHARED", "private")], 128 + 6);
}

/// True if the debugger can call functions of a process: an older one cannot on a processor that has
/// registers which it does not know.
fn debugger_can_call() -> bool {
    let mut other = Command::new("sleep").arg("60").spawn().expect("sleep");
    let mut gdb = Command::new("gdb");
    gdb.args(["-batch", "-p", &other.id().to_string(), "-ex", "print (int)getpid() > 0"]);
    let said = gdb.output().expect("gdb");
    let _ = other.kill();
    let _ = other.wait();
    String::from_utf8_lossy(&said.stdout).contains("$1 = 1")
}

#[test]
fn debugger_reads_no_wrong_bytes() {
    if paged_mode_is_missing("debugger_reads_no_wrong_bytes") {
        return;
    }
    let (rack, program) = (Rack::start(Port::Shm, 256), CProgram::compile("core_dump"));
    let running = start(&rack, &program, &[]);
    let pid = rack.run_row_of_ps().expect("a run")["pid"].to_string();
    let touch =
        "print (unsigned long)memcmp((void*)base, (void*)base, (unsigned long)pages * 4096)";
    let said = gdb(&["-p", &pid], program.dir(), &["thread apply all backtrace", touch]);
    assert!(said.contains(" wrong 0 ") && said.contains("read_at_random"), "{said}");
    // A call in the program brings pages in, since its pager runs meanwhile.
    if debugger_can_call() {
        assert!(said.contains("$1 = 0"), "{said}");
    } else {
        println!("this gdb cannot call functions of any process on this processor");
    }
    let mut strace = Command::new("timeout");
    strace.args(["-s", "INT", "1", "strace", "-f", "-c", "-p", &pid]);
    let traced = strace.output().expect("strace");
    let said = String::from_utf8_lossy(&traced.stderr);
    assert!(said.contains("attached") && said.contains("total"), "{said}");
    stop_and_check(&program, running);
}
