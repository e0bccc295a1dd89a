//! Language runtimes with their own allocator, collector and threads.

use std::fs;
use std::path::Path;
use std::process::Command;

use venice_e2e::programs::compare::{Program, compare};
use venice_e2e::programs::{Port, Rack, paged_mode_is_missing};

/// Debian's own Python, whose packages are Debian's too.
const PYTHON: &str = "/usr/bin/python3";

fn python(script: &str) -> Command {
    let mut command = Command::new(PYTHON);
    // A random hash seed would give each run another order of dictionaries.
    command.args(["-c", script]).env("PYTHONHASHSEED", "0");
    command
}

#[test]
fn python_sorts_large_lists() {
    if paged_mode_is_missing("python_sorts_large_lists") {
        return;
    }
    let command = python(include_str!("../../data/lists.py"));
    compare(Rack::shared(Port::Shm), "python3 lists", &Program::new(command));
}

#[test]
fn numpy_exceeds_local_memory() {
    if paged_mode_is_missing("numpy_exceeds_local_memory") {
        return;
    }
    let command = python(include_str!("../../data/array.py"));
    compare(Rack::shared(Port::Shm), "python3 numpy", &Program::new(command));
}

#[test]
fn jvm_heap_exceeds_local_memory() {
    if paged_mode_is_missing("jvm_heap_exceeds_local_memory") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let program = Program::new(java(dir.path()));
    compare(Rack::shared(Port::Shm), "java", &program);
}

/// Returns a command of the Java program, compiled first if there is a compiler.
fn java(dir: &Path) -> Command {
    let source = dir.join("Heap.java");
    fs::write(&source, include_str!("../../data/Heap.java")).expect("a file");
    let mut command = Command::new("java");
    command.args(["-Xms224m", "-Xmx224m", "-Xshare:auto"]);
    let compiled = Command::new("javac").arg("-d").arg(dir).arg(&source).status();
    if compiled.is_ok_and(|status| status.success()) {
        command.arg("-cp").arg(dir).arg("Heap");
    } else {
        command.arg(&source);
    }
    command
}
