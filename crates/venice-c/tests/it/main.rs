//! C programs built against this library and run: the example of channels, and handles in use.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Builds a program of the repository in `dir`, and runs it.
fn run(source: &str, dir: &Path, argument: &str) -> Output {
    let libraries = venice_testkit::libraries::build_libraries();
    let program = dir.join("program");
    // The name by which the dynamic linker finds it.
    let shared = dir.join("libvenice.so.0");
    std::os::unix::fs::symlink(libraries.join("libvenice.so"), shared).unwrap();
    let built = Command::new("gcc")
        .args(["-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(root().join(source))
        .arg("-I")
        .arg(root().join("crates/venice-c/include"))
        .arg("-L")
        .arg(libraries)
        .arg("-lvenice")
        .output()
        .expect("gcc");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut program = Command::new(&program);
    program.arg(argument).env("LD_LIBRARY_PATH", dir).output().unwrap()
}

#[test]
fn c_example_talks() {
    let dir = tempfile::tempdir().unwrap();
    let ran = run("examples/c/channels.c", dir.path(), &"5a".repeat(32));
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{out}{err}");
    assert!(out.contains("1048576 bytes, then: connection lost"), "{out}");
    assert_eq!(out.matches(": and back").count(), 2, "over shm and udp: {out}");
    assert!(out.contains("udp:127.0.0.1:"), "{out}");
}

#[test]
fn busy_handles_answer_others() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let ran = run("crates/venice-c/tests/it/busy_handles.c", dir.path(), folder);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn example_uses_every_channel_function() {
    let header = std::fs::read_to_string(root().join("crates/venice-c/include/venice.h")).unwrap();
    let example = std::fs::read_to_string(root().join("examples/c/channels.c")).unwrap();
    let channels = header.split_once("Channels between two programs").unwrap().1;
    let declared = channels
        .lines()
        .filter(|line| line.starts_with(|first: char| first.is_ascii_alphabetic()))
        .filter_map(|line| line.split_once('(')?.0.split([' ', '*']).next_back());
    let declared: Vec<&str> = declared.filter(|name| name.starts_with("venice_")).collect();
    assert!(declared.len() > 25, "{declared:?}");
    let missing: Vec<_> =
        declared.iter().filter(|name| !example.contains(&format!("{name}("))).collect();
    assert!(missing.is_empty(), "no example of {missing:?}");
}
