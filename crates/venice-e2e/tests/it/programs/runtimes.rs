//! Runtimes that map memory in their own ways: WebAssembly in reserved address space, a collector
//! that maps its heap three times, a database of columns, and pools of processes.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::shared::look_is_missing;
use venice_e2e::programs::compare::{check_went_far, same_output};
use venice_e2e::programs::{Port, Rack, paged_mode_is_missing};

/// Debian's own Python.
const PYTHON: &str = "/usr/bin/python3";

/// Runs `command` plainly and under Venice, with the same output; its pages must go far.
fn same_and_far(test: &str, local: &str, command: &Command) {
    if paged_mode_is_missing(test) {
        return;
    }
    let options = ["--local", local, "--remote", "640MiB", "--stats"];
    let venice = same_output(Rack::shared(Port::Shm), &options, command);
    println!("{}", venice.stderr);
    check_went_far(test, &venice);
}

/// Bounds of WebAssembly's memory are checked by a trap in reserved address space.
#[test]
fn node_computes_in_webassembly() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let script = dir.path().join("wasm.js");
    fs::write(&script, include_str!("../../data/wasm.js")).expect("a file");
    let mut command = Command::new("node");
    command.arg(script);
    same_and_far("node_computes_in_webassembly", "64MiB", &command);
}

/// ZGC keeps its heap in a memfd that it maps three times: all of it is paged.
#[test]
fn heap_of_zgc_is_paged() {
    const TEST: &str = "heap_of_zgc_is_paged";
    if paged_mode_is_missing(TEST) || look_is_missing(TEST) {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let source = dir.path().join("Heap.java");
    fs::write(&source, include_str!("../../data/Heap.java")).expect("a file");
    let mut command = Command::new("java");
    command.args(["-XX:+UseZGC", "-Xms224m", "-Xmx224m"]).arg(source);
    let options = ["--local", "128MiB", "--remote", "512MiB", "--strict", "--stats"];
    let venice = same_output(Rack::shared(Port::Shm), &options, &command);
    check_went_far(TEST, &venice);
}

/// The package lies where scripts/setup.sh puts it.
#[test]
fn duckdb_sorts_and_joins() {
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/duckdb");
    let mut command = Command::new(PYTHON);
    command.args(["-c", include_str!("../../data/duck.py")]).env("PYTHONPATH", packages);
    same_and_far("duckdb_sorts_and_joins", "64MiB", &command);
}

fn pool(how: &str) -> Command {
    let mut command = Command::new(PYTHON);
    // Processes that are not forked import the script by its name.
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pool.py");
    command.arg(script).arg(how).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

#[test]
fn pool_of_forked_processes() {
    same_and_far("pool_of_forked_processes", "32MiB", &pool("fork"));
}

#[test]
fn pool_of_spawned_processes() {
    same_and_far("pool_of_spawned_processes", "32MiB", &pool("spawn"));
}

#[test]
fn pool_with_fork_server() {
    same_and_far("pool_with_fork_server", "32MiB", &pool("forkserver"));
}
