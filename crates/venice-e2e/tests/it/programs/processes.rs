//! Processes and terminals: programs that change their user, root or namespaces, that are jobs of a
//! shell, or whose terminal closes.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use venice_e2e::programs::compare::{PROGRAM_LIMIT, same_output};
use venice_e2e::programs::{CProgram, Port, Rack, Running, paged_mode_is_missing, wait_for};

const OPTIONS: [&str; 4] = ["--local", "16MiB", "--remote", "512MiB"];

/// Processes of `process_changes`, of which all must be paged: itself, a child, its child, and that
/// one once more after `exec`.
const PROCESSES: u64 = 4;

/// Runs `process_changes HOW` alone and under Venice.
fn changes(test: &str, how: &str) {
    if paged_mode_is_missing(test) {
        return;
    }
    let program = CProgram::compile("process_changes");
    let plain = Running::spawn(program.command(&[how]), false).finish(PROGRAM_LIMIT);
    plain.expect_code(0);
    let rack = Rack::shared(Port::Shm);
    let paged = rack.run(&with_stats(), &program.command(&[how])).finish(PROGRAM_LIMIT);
    paged.expect_code(0);
    assert_eq!(plain.stdout, paged.stdout);
    assert!(paged.number_before(" processes") >= PROCESSES, "{}", paged.stderr);
}

macro_rules! changes {
    ($($test:ident: $how:literal;)*) => {
        $(#[test]
        fn $test() {
            changes(stringify!($test), $how);
        })*
    };
}

changes! {
    changed_user_is_paged: "user";
    hidden_run_directory_is_paged: "directories";
    changed_root_is_paged: "root";
    new_pid_namespace_is_paged: "pids";
    new_user_namespace_is_paged: "users";
    namespace_by_system_call: "users-by-number";
    namespaces_in_one_call: "users-and-pids";
    entered_user_namespace_is_paged: "enter-users";
}

/// A container's entry point: the session is of a process that its PID namespace does not show.
#[test]
fn session_of_outer_namespace() {
    if paged_mode_is_missing("session_of_outer_namespace") {
        return;
    }
    let script = "exec unshare --pid --fork --mount-proc \"$0\" \"$@\"";
    assert_eq!(by_shell(script, "echo here"), "here\n");
}

/// A process of `setpriv` attaches as another user than its supervisor.
#[test]
fn other_user_attaches() {
    if paged_mode_is_missing("other_user_attaches") {
        return;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "id", "-u"]);
    let outcome = Rack::shared(Port::Shm).run(&with_stats(), &command).finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "65534\n");
    assert!(outcome.number_before(" processes") >= 2, "{}", outcome.stderr);
}

/// The program of `unshare --pid` can have no threads; the one of `unshare --pid --fork` can.
#[test]
fn threadless_process_is_refused() {
    if paged_mode_is_missing("threadless_process_is_refused") {
        return;
    }
    let rack = Rack::shared(Port::Shm);
    let unshare = |options: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(options).arg("true");
        rack.run(&OPTIONS, &command).finish(PROGRAM_LIMIT)
    };
    let refused = unshare(&["--pid"]);
    refused.expect_code(1);
    assert!(refused.stderr.contains("unshare --pid --fork"), "{}", refused.stderr);
    unshare(&["--pid", "--fork"]).expect_code(0);
}

/// Counts its threads as browsers do: alone, with a second one, in a child, and for its parent.
const THREADS: &str = r#"
import os, threading
count = lambda: [os.stat(path).st_nlink - 2 for path in (
    "/proc/self/task", "/proc/self/task/", f"/proc/{os.getpid()}/task")]
proc = os.open("/proc", os.O_RDONLY)
print(count(), os.stat("self/task/", dir_fd=proc).st_nlink - 2, flush=True)
gate = threading.Event()
threading.Thread(target=gate.wait).start()
print(count(), flush=True)
gate.set()
if os.fork() == 0:
    print(count(), flush=True)
    os._exit(0)
os.wait()
"#;

#[test]
fn stat_counts_programs_threads() {
    if paged_mode_is_missing("stat_counts_programs_threads") {
        return;
    }
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", THREADS]);
    for mode in ["paged", "window"] {
        let options = ["--local", "16MiB", "--remote", "64MiB", "--mode", mode];
        let outcome = same_output(Rack::shared(Port::Shm), &options, &command);
        assert_eq!(outcome.stdout, b"[1, 1, 1] 1\n[2, 2, 2]\n[1, 1, 1]\n");
    }
}

fn with_stats() -> Vec<&'static str> {
    OPTIONS.iter().copied().chain(["--stats"]).collect()
}

/// `venice run` waits for a daemon that outlives its program, and forwards signals to it.
#[test]
fn signal_ends_left_daemon() {
    if paged_mode_is_missing("signal_ends_left_daemon") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let pid_file = dir.path().join("pid");
    let mut command = Command::new("sh");
    command.args(["-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $! > \"$0\""]).arg(&pid_file);
    let running = Rack::shared(Port::Shm).run(&OPTIONS, &command);
    wait_for("the daemon", Duration::from_secs(30), || {
        let text = std::fs::read_to_string(&pid_file).ok()?;
        let pid = text.trim().parse::<u32>().ok()?;
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (name == "sleep\n").then_some(())
    });
    // The shell has ended once the daemon is the only descendant.
    running.signal(Signal::TERM);
    running.finish(Duration::from_secs(60));
}

/// Runs the Python program `script` with the command line of `venice run PROGRAM` as arguments.
fn at_terminal(script: &str, program: &[&str]) -> String {
    let rack = Rack::shared(Port::Shm);
    let venice = rack.command(&["run"]);
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(venice.get_program()).args(venice.get_args());
    command.args(OPTIONS).arg("--").args(program).env("VENICE_RUN_DIR", rack.run_dir());
    let output = command.output().expect("python3");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The session's leader is `venice run` itself. Prints how it ended.
const CLOSED_TERMINAL: &str = r#"
import os, pty, signal, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
while b"ready" not in os.read(terminal, 4096):
    pass
os.close(terminal)
print(signal.Signals(os.WTERMSIG(os.waitpid(pid, 0)[1])).name)
"#;

#[test]
fn closed_terminal_ends_run() {
    if paged_mode_is_missing("closed_terminal_ends_run") {
        return;
    }
    let text = at_terminal(CLOSED_TERMINAL, &["sh", "-c", "echo ready; exec sleep 1000"]);
    assert_eq!(text, "SIGHUP\n");
}

/// A shell with job control: stops its job with Ctrl-Z, and continues it when more time has passed
/// than the lease of a grant.
const JOB: &str = r#"
import os, pty, signal, sys, time
pid, terminal = pty.fork()
if pid == 0:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execvp(sys.argv[1], sys.argv[1:])
    _, status = os.waitpid(job, os.WUNTRACED)
    print("stopped", os.WIFSTOPPED(status), flush=True)
    os.tcsetpgrp(0, os.getpgrp())
    time.sleep(14)
    os.tcsetpgrp(0, job)
    os.killpg(job, signal.SIGCONT)
    _, status = os.waitpid(job, 0)
    print("status", status, flush=True)
    os._exit(0)
text = b""
while True:
    try:
        more = os.read(terminal, 4096)
    except OSError:
        break
    if not more:
        break
    if b"ready" in more:
        os.write(terminal, b"\x1a")
    text += more
sys.stdout.write(text.decode().replace("\r", ""))
"#;

/// Fills far memory, waits until it was continued, and checks it.
const STOPPED_PROGRAM: &str = r#"
import signal, time
continued = []
signal.signal(signal.SIGCONT, lambda *_: continued.append(1))
memory = bytearray(100 << 20)
for page in range(0, len(memory), 4096):
    memory[page] = page // 4096 % 251
print("ready", flush=True)
while not continued:
    time.sleep(.05)
print("wrong", sum(memory[page] != page // 4096 % 251 for page in range(0, len(memory), 4096)))
"#;

#[test]
fn stopped_job_keeps_memory() {
    if paged_mode_is_missing("stopped_job_keeps_memory") {
        return;
    }
    let text = at_terminal(JOB, &["python3", "-c", STOPPED_PROGRAM]);
    for line in ["stopped True", "wrong 0", "status 0"] {
        // The terminal shows ^Z before the first.
        assert!(text.lines().any(|it| it.ends_with(line)), "no {line:?} in: {text}");
    }
}

/// A service manager names the process that its sockets are for.
#[test]
fn activated_sockets_reach_program() {
    if paged_mode_is_missing("activated_sockets_reach_program") {
        return;
    }
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"";
    let text = by_shell(script, "echo here >&3; test $LISTEN_PID = $$ && sh -c 'echo $LISTEN_PID'");
    let lines: Vec<&str> = text.lines().collect();
    assert!(matches!(lines[..], ["here", pid] if pid.parse::<u32>().is_ok()), "{text}");
}

/// Signals that `nohup`, or a script for its background jobs, has the program ignore.
#[test]
fn ignored_signals_stay_ignored() {
    if paged_mode_is_missing("ignored_signals_stay_ignored") {
        return;
    }
    let script = "trap '' HUP INT; exec \"$0\" \"$@\"";
    let text = by_shell(script, "kill -HUP $$; kill -INT $$; echo alive");
    assert_eq!(text, "alive\n");
}

/// Runs `program` of a shell by the `venice run` that is the argument of `script`. Both have
/// standard output as descriptor 3 too.
fn by_shell(script: &str, program: &str) -> String {
    let rack = Rack::shared(Port::Shm);
    let venice = rack.command(&["run"]);
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("exec 3>&1; {script}")).arg(venice.get_program());
    command.args(venice.get_args()).args(OPTIONS).args(["--", "sh", "-c", program]);
    let output = command.env("VENICE_RUN_DIR", rack.run_dir()).output().expect("a shell");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
