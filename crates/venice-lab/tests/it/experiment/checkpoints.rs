//! Points that are interrupted, and go on from their checkpoints.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use venice_experiment::{Catalogue, Results, State, WorldKind};
use venice_lab::sim::experiment::{Layers, RunArgs, run_experiment};
use venice_warehouse::warehouse::Warehouse;

use super::saved;

const INCAST: &str = r#"
name = "small"
world = "warehouse"
title = "Incast of eight servers in three racks"
[config]
heatmap = "1us"
topology = { kind = "leaf-spine", hosts-per-leaf = 3, leaves = 3, spines = 2 }
application = { kind = "incast", servers = 8, iterations = 60 }
"#;

/// The experiment as a file, and arguments that run it.
fn args(folder: &Path, out: &str, threads: usize) -> RunArgs {
    let file = folder.join("small.toml");
    fs::write(&file, INCAST).unwrap();
    let experiment = file.to_str().unwrap().to_owned();
    RunArgs {
        layers: Layers {
            experiment,
            set: vec!["application.iterations=12".into()],
            ..Layers::default()
        },
        out: Some(folder.join(out)),
        threads: Some(threads),
        ..RunArgs::default()
    }
}

/// Runs until `stop` has been asked so often.
fn run(args: &RunArgs, stops: u32) -> anyhow::Result<Results> {
    let asked = Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        asked.get() >= stops
    };
    let (experiment, filter) = args.layers.read(&Catalogue::default())?;
    run_experiment(args, &WorldKind::of::<Warehouse>(), &experiment, &filter, None, &stop)
        .map(|(_, results)| results)
}

#[test]
fn interrupted_point_goes_on() {
    let temp = tempfile::tempdir().unwrap();
    let capture = Some("host:0".to_owned());
    let whole = RunArgs { capture: capture.clone(), ..args(temp.path(), "whole", 1) };
    let whole = run(&whole, u32::MAX).unwrap();
    let file = temp.path().join("parts/checkpoint-1.bin");
    let part = |threads, resume| RunArgs {
        resume,
        capture: capture.clone(),
        ..args(temp.path(), "parts", threads)
    };
    for (threads, resume, stops) in [(2, false, 16), (1, true, 18), (2, true, 12)] {
        let results = run(&part(threads, resume), stops).unwrap();
        assert_eq!(results.points[0].state, State::Interrupted);
        assert!(file.exists());
    }
    let ended = run(&part(1, true), u32::MAX).unwrap();
    assert_eq!(ended.points[0].outcome, whole.points[0].outcome);
    assert_eq!(ended.points[0].state, State::Done);
    assert!(!file.exists(), "the point is done");
    let captured = |out: &str| fs::read(temp.path().join(out).join("capture-1.pcapng")).unwrap();
    assert!(captured("whole") == captured("parts"), "other packets");
    assert!(temp.path().join("whole/heatmap-1-levels.svg").exists());
}

#[test]
fn useless_checkpoint_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let begun = args(temp.path(), "out", 1);
    run(&begun, 16).unwrap();
    let file = temp.path().join("out/checkpoint-1.bin");
    let again = |capture: Option<&str>| {
        let capture = capture.map(str::to_owned);
        let args = RunArgs { resume: true, capture, ..args(temp.path(), "out", 1) };
        format!("{:#}", run(&args, u32::MAX).unwrap_err())
    };
    let other = again(Some("host:0"));
    assert!(other.contains("the captured link is none, here host:0: run it as before"), "{other}");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    for (damaged, why) in [
        (&bytes[..], "checkpoint-1.bin: damaged: its checksum does not fit: remove the file"),
        (&bytes[..middle], "damaged"),
        (b"PK\x03\x04", "no checkpoint of Venice: remove the file"),
    ] {
        fs::write(&file, damaged).unwrap();
        let said = again(None);
        assert!(said.contains(why), "{said}");
    }
    // Without --resume the point begins anew, and no checkpoint is asked for.
    let none = RunArgs { checkpoint: Some(Duration::ZERO), ..args(temp.path(), "out", 1) };
    assert_eq!(run(&none, 16).unwrap().points[0].state, State::Interrupted);
    assert!(!file.exists());
}

#[test]
fn killed_run_goes_on() {
    let temp = tempfile::tempdir().unwrap();
    let command = |out: &str, words: &[&str]| {
        let RunArgs { layers, out, .. } = args(temp.path(), out, 1);
        let mut command = Command::new(env!("CARGO_BIN_EXE_venice-lab"));
        command.args(["sim", "run", &layers.experiment, "--out"]).arg(out.unwrap()).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    };
    let mut child = command("out", &["--threads", "2", "--checkpoint", "1ms"]).spawn().unwrap();
    let file = temp.path().join("out/checkpoint-1.bin");
    while !file.exists() {
        assert_eq!(child.try_wait().unwrap(), None, "it came to its end without a checkpoint");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(saved(&temp.path().join("out")).points[0].state, State::NotRun);
    assert!(file.exists(), "the test was too slow to kill it");
    assert!(command("out", &["--threads", "1", "--resume"]).status().unwrap().success());
    assert!(command("whole", &["--threads", "1"]).status().unwrap().success());
    let outcome = |out: &str| saved(&temp.path().join(out)).points.remove(0).outcome.unwrap();
    assert_eq!(outcome("out"), outcome("whole"));
}
