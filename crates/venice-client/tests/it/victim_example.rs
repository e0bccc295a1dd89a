//! The victim-store example, on real agents and without any.

#[path = "../../examples/victim_cache.rs"]
#[allow(dead_code, reason = "its command line is another program's")]
mod example;

use std::process::Command;

use crate::common::{Rack as Daemons, eventually};
use venice_client::{Error, Rack};
use venice_wire::SLAB_BYTES;

#[test]
fn victim_store_spares_source() {
    let daemons = Daemons::start(2, 4);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let told = example::compare(&rack, 64 << 20).unwrap();
    let asked_of_the_source: Vec<u64> = told
        .lines()
        .filter_map(|line| line.split_once("source ")?.1.split_once(';')?.0.parse().ok())
        .collect();
    let [alone, with_store] = asked_of_the_source[..] else { panic!("{told}") };
    assert!(with_store < alone / 2, "{told}");
    let none = example::compare(&rack, 1 << 40).unwrap_err();
    assert!(matches!(none, Error::NoRoom(_)), "{none}");
    eventually("all is given back", || daemons.free_bytes() == 8 * SLAB_BYTES);
}

/// `cargo test` builds the examples beside the tests.
#[test]
fn missing_rack_names_remedy() {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.parent().and_then(|deps| deps.parent()).unwrap();
    let example = folder.join("examples/victim_cache");
    assert!(example.exists(), "{} is not built", example.display());
    let empty = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(&example);
        command.args(words).env("VENICE_RUN_DIR", empty.path()).env_remove("VENICE_MONITOR");
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run(&[]);
    assert!(code == Some(1) && said.contains("venice up") && said.lines().count() == 1, "{said}");
    let pool = Command::new(folder.join("examples/pool"))
        .arg("2")
        .env("VENICE_RUN_DIR", empty.path())
        .env_remove("VENICE_MONITOR")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&pool.stderr);
    assert!(pool.status.code() == Some(1) && said.contains("venice up"), "{said}");
    let (code, said) = run(&["much"]);
    assert!(code == Some(2) && said.contains("MiB"), "{said}");
}
