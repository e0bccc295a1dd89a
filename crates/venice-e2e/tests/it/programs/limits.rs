//! Limits and invalid input: a one-line error with the remedy, the right exit code, and no program
//! started.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use venice_e2e::programs::{
    CProgram, MIB, Port, Rack, exit_code, paged_mode_is_missing, venice_binary, wait_for,
};

const FAILURE: i32 = 1;
/// `venice run` failed itself; there is no such program.
const RUN_FAILED: i32 = 125;
const NOT_FOUND: i32 = 127;

/// Checks that the command failed with `code` and one line that contains all of `words`.
#[track_caller]
fn fails(output: &Output, code: i32, words: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(exit_code(output.status), code, "exit code; stderr: {stderr}");
    assert!(stderr.starts_with("venice: "), "stderr: {stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "more than one line: {stderr}");
    for word in words {
        assert!(stderr.to_lowercase().contains(&word.to_lowercase()), "no {word:?} in: {stderr}");
    }
}

fn run(rack: &Rack, args: &[&str]) -> Output {
    let mut all = vec!["run"];
    all.extend_from_slice(args);
    rack.venice(&all)
}

#[test]
fn missing_room_names_free_memory() {
    let rack = Rack::shared(Port::Shm);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mark = dir.path().join("started");
    let mark = mark.to_str().expect("a path");
    let output = run(rack, &["--local", "16MiB", "--remote", "64GiB", "--", "touch", mark]);
    fails(&output, RUN_FAILED, &["64", "node1", "node2", "node3", "node4", "free"]);
    assert!(!std::path::Path::new(mark).exists(), "the program was started all the same");
    assert_eq!(rack.granted_bytes(), 0, "something was granted all the same");
}

#[test]
fn missing_program_is_named() {
    let rack = Rack::shared(Port::Shm);
    let name = "no-such-program-anywhere";
    let output = run(rack, &["--local", "16MiB", "--remote", "64MiB", "--", name]);
    fails(&output, NOT_FOUND, &[name]);
    let path = "/nonexistent/program";
    fails(&run(rack, &["--local", "16MiB", "--remote", "64MiB", "--", path]), NOT_FOUND, &[path]);
    assert_eq!(rack.granted_bytes(), 0);
}

#[test]
fn static_program_is_refused() {
    let program = CProgram::compile_with("exit_ways", &["-static"]);
    let path = program.command(&[]).get_program().to_str().expect("a path").to_string();
    let rack = Rack::shared(Port::Shm);
    let words = ["--mode", "paged", "--local", "16MiB", "--remote", "64MiB", "--", &path, "0"];
    let output = run(rack, &words);
    fails(&output, RUN_FAILED, &["static", "swap"]);
    assert!(output.stdout.is_empty(), "the program ran all the same");
}

#[test]
fn unparsable_sizes_are_usage_errors() {
    let rack = Rack::shared(Port::Shm);
    for size in ["much", "-1", "12XiB", "", "1.2.3GiB", "99999999999GiB"] {
        let option = format!("--local={size}");
        let output = run(rack, &[&option, "--", "true"]);
        fails(&output, RUN_FAILED, &["--local"]);
    }
    fails(
        &run(rack, &["--local", "16MiB", "--remote=lots", "--", "true"]),
        RUN_FAILED,
        &["--remote"],
    );
    fails(&run(rack, &["--port", "pigeon", "--", "true"]), RUN_FAILED, &["pigeon"]);
    fails(&run(rack, &["--local", "16MiB"]), RUN_FAILED, &[]);
}

#[test]
fn local_above_machine_memory_is_refused() {
    let rack = Rack::shared(Port::Shm);
    let output = run(rack, &["--local", "900TiB", "--", "true"]);
    fails(&output, RUN_FAILED, &["--local", "900"]);
}

#[test]
fn missing_rack_names_the_remedy() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let run = &["run", "--local", "16MiB", "--", "true"][..];
    for (args, code) in [(run, RUN_FAILED), (&["nodes"], FAILURE), (&["grants"], FAILURE)] {
        let output = Command::new(venice_binary())
            .args(args)
            .env("VENICE_RUN_DIR", dir.path())
            .env_remove("VENICE_MONITOR")
            .stdin(Stdio::null())
            .output()
            .expect("the binary");
        fails(&output, code, &["venice up"]);
    }
}

#[test]
fn second_agent_of_a_name_is_refused() {
    let rack = Rack::shared(Port::Shm);
    let first = rack.agent_pid("node1");
    let monitor = rack.json(&["status"])["monitor"]["addr"].as_str().expect("addr").to_string();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let output = Command::new("timeout")
        .arg("20")
        .arg(venice_binary())
        .args(["agent", "--name", "node1", "--monitor", &monitor, "--lend", "16MiB"])
        .env("VENICE_IDENTITY", rack.run_dir().join("node1/identity"))
        .env("VENICE_RUN_DIR", dir.path())
        .env("VENICE_LOG", "error")
        .stdin(Stdio::null())
        .output()
        .expect("timeout");
    fails(&output, FAILURE, &["node1"]);
    assert_eq!(rack.agent_pid("node1"), first, "the first agent was replaced");
}

#[test]
fn program_gets_its_arguments_and_input() {
    if paged_mode_is_missing("program_gets_its_arguments_and_input") {
        return;
    }
    let rack = Rack::shared(Port::Shm);
    let script = r#"read -r line; printf '%s|%s|%s|%s\n' "$line" "$VENICE_TEST" "$1" "$2""#;
    let mut command = rack.command(&["run", "--local", "16MiB", "--remote", "64MiB", "--"]);
    command.args(["sh", "-c", script, "sh", "--local", "a b"]).env("VENICE_TEST", "kept");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), b"typed in\n")
        .expect("pipe");
    let output = child.wait_with_output().expect("a child");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "typed in|kept|--local|a b\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "venice run has nothing to say");
    assert_eq!(exit_code(output.status), 0);
}

/// Returns the memory that a rack had lent to a run with `options` when its program started, and
/// the run's output.
fn lent_to_a_run(rack: &Rack, options: &[&str]) -> (u64, String) {
    const LIMIT: Duration = Duration::from_secs(60);
    let mut program = Command::new("sleep");
    program.arg("600");
    let options = [&["--local", "16MiB", "--stats"], options].concat();
    let mut running = rack.run(&options, &program);
    wait_for("the program to be there", LIMIT, || {
        assert!(running.is_running(), "venice run: {}", running.stderr_after_end());
        (!running.descendants().is_empty()).then_some(())
    });
    let lent_bytes = rack.granted_bytes();
    running.signal(Signal::TERM);
    let outcome = running.finish(LIMIT);
    outcome.expect_code(128 + 15);
    (lent_bytes, outcome.stderr)
}

const WARNING: &str = "no room for two copies";

#[test]
fn far_memory_has_two_replicas() {
    if paged_mode_is_missing("far_memory_has_two_replicas") {
        return;
    }
    let rack = Rack::of(Port::Shm, 2, 64);
    let (lent_bytes, said) = lent_to_a_run(&rack, &["--remote", "48MiB"]);
    assert_eq!(lent_bytes, 2 * 48 * MIB, "{said}");
    assert!(said.contains("venice: copies 2\n") && !said.contains(WARNING), "{said}");

    // Both have room for it together, and neither has room for a replica of the other's part.
    let (lent_bytes, said) = lent_to_a_run(&rack, &["--remote", "96MiB"]);
    assert_eq!(lent_bytes, 96 * MIB, "{said}");
    assert!(said.contains("venice: copies 1\n") && said.contains(WARNING), "{said}");
}

#[test]
fn single_donor_gives_one_replica_and_warning() {
    if paged_mode_is_missing("single_donor_gives_one_replica_and_warning") {
        return;
    }
    let rack = Rack::of(Port::Shm, 1, 128);
    let (lent_bytes, said) = lent_to_a_run(&rack, &["--remote", "48MiB"]);
    assert_eq!(lent_bytes, 48 * MIB, "{said}");
    assert!(said.contains("venice: copies 1\n") && said.contains(WARNING), "{said}");

    let (lent_bytes, said) = lent_to_a_run(&rack, &["--remote", "48MiB", "--copies", "1"]);
    assert_eq!(lent_bytes, 48 * MIB, "{said}");
    assert!(said.contains("venice: copies 1\n") && !said.contains(WARNING), "it was meant: {said}");

    let two = ["--local", "16MiB", "--remote", "48MiB", "--copies", "2", "--", "true"];
    fails(&run(&rack, &two), RUN_FAILED, &["2 copies", "2 nodes with room", "there are 1"]);
    assert_eq!(rack.granted_bytes(), 0);
}
