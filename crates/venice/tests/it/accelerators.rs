//! Accelerators of a run: granted without memory, found by the program's OpenCL loader, and lost one
//! by one.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::common::{Daemon, Place, exists, finish, kill, skipped, wait, wait_until};
use crate::service_hosts::host_pids;

const EMULATED: [&str; 4] = [
    "--offer",
    "node1/accelerator:emulated0,echo",
    "--offer",
    "node2/accelerator:emulated,echo,fast",
];
const OPENCL: [&str; 4] = [
    "--offer",
    "node1/accelerator:opencl=64MiB",
    "--offer",
    "node2/accelerator:opencl0=64MiB,second",
];

fn rack(offers: &[&str]) -> Place {
    let place = Place::new();
    place.venice(&[&["up", "--nodes", "2", "--lend", "32MiB"], offers].concat()).expect(0);
    place
}

/// A rack of two nodes that lend the processors as OpenCL devices; `None`, with a remark: there is
/// no driver.
pub fn opencl_rack(test: &str) -> Option<Place> {
    let place = Place::new();
    let rows = place.venice(&["doctor", "--json"]).json();
    let row = rows.as_array().unwrap().iter().find(|row| row["check"] == "OpenCL").unwrap();
    if !row["detail"].as_str().unwrap().contains("Portable Computing Language") {
        skipped(test, "no PoCL");
        return None;
    }
    drop(place);
    let place = rack(&OPENCL);
    fs::create_dir(place.file("tmp")).unwrap();
    fs::write(place.file("driver.so"), "").unwrap();
    fs::create_dir(place.file("vendors")).unwrap();
    fs::write(place.file("vendors/local.icd"), "liblocal.so\n").unwrap();
    Some(place)
}

/// Returns a command with a stand-in for the client driver, and a directory of local ones.
fn with_drivers(place: &Place, words: &[&str]) -> Command {
    let mut command = place.command(words);
    command.env("VENICE_OPENCL", place.file("driver.so")).env("TMPDIR", place.file("tmp"));
    command.env("OCL_ICD_VENDORS", place.file("vendors"));
    command
}

/// Returns the directories of runs.
fn run_dirs(place: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.file("tmp")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_string_lossy().contains("venice-run-")).collect()
}

fn kinds(place: &Place) -> Vec<Value> {
    let rows = place.venice(&["grants", "--json"]).expect(0).json();
    rows.as_array().unwrap().iter().map(|row| row["kind"].clone()).collect()
}

#[test]
fn accelerators_need_no_memory() {
    let place = rack(&EMULATED);
    let echo = "echo \"$VENICE_GRANT_KIND:$VENICE_GRANT_NODE:$LD_PRELOAD$OCL_ICD_VENDORS\"; exit 7";
    let run = |words: &[&str]| place.venice(&[&["run"], words, &["--", "sh", "-c", echo]].concat());
    let said = run(&["--accelerators", "1", "--accel-needs", "fast,echo"]).expect(7);
    assert_eq!(said.out, "accelerator:node2:\n");
    let said = run(&["--with", "accelerator:fast", "--stats"]).expect(7);
    assert!(said.err.contains("no memory was borrowed"), "{said:?}");
    let said = run(&["--accelerators", "1", "--accel-needs", "slow"]).expect(125);
    assert!(said.complaint().contains("cannot \"slow\""), "{said:?}");
    let said = run(&["--accelerators", "3"]).expect(125);
    assert!(said.complaint().contains("no 3 accelerators"), "{said:?}");
    let plan = run(&["--accelerators", "2", "--dry-run", "--json"]).expect(0).json();
    assert_eq!((&plan["memory"], plan["devices"].as_array().unwrap().len()), (&Value::Null, 1));
    run(&["--accel-needs", "fast"]).expect(125);
    run(&["--accelerators", "1", "--accel-needs", "fast,"]).expect(125);
}

#[test]
fn lost_accelerator_ends_program() {
    let place = rack(&EMULATED);
    let mark = place.file("mark").display().to_string();
    let script = format!("echo > {mark}; exec sleep 600");
    let words = ["run", "--accelerators", "1", "--accel-needs", "fast", "--", "sh", "-c", &script];
    let mut running = Daemon::start_named(&place, "running", &words);
    wait_until("it runs", || exists(mark.as_ref()));
    assert_eq!(kinds(&place), ["accelerator"]);
    kill(host_pids(&place, "node2")[2]);
    assert_eq!(wait(&mut running.0, &["run"]).code(), Some(125));
    let said = fs::read_to_string(place.file("running.log")).unwrap();
    assert!(said.contains("emulated of node2: its service has ended"), "{said}");
}

#[test]
fn loader_finds_granted_platform() {
    let Some(place) = opencl_rack("loader_finds_granted_platform") else { return };
    let tell = "echo $OCL_ICD_FILENAMES; echo $OCL_ICD_PLATFORM_SORT; \
                for file in $(ls -U $OCL_ICD_VENDORS); do cat $OCL_ICD_VENDORS/$file; done";
    let driver = place.file("driver.so").display().to_string();
    let expected = format!("{driver}\nnone\n{driver}\nliblocal.so\n");
    for words in [
        &["run", "--accelerators", "2", "--accel-needs", "opencl,fp64"][..],
        &["run", "--accelerators", "1", "--local", "8MiB", "--remote", "16MiB", "--mode", "window"],
        &["get", "accelerator:opencl"],
    ] {
        let words = [words, &["--", "sh", "-c", tell]].concat();
        let said = finish(with_drivers(&place, &words), &words).expect(0);
        assert!(said.out.ends_with(&expected), "{said:?}");
        assert_eq!(run_dirs(&place), Vec::<PathBuf>::new());
    }
    let words = ["run", "--accelerators", "1", "--", "true"];
    let mut command = with_drivers(&place, &words);
    command.env("VENICE_OPENCL", "/nowhere/driver.so");
    let said = finish(command, &words).expect(125);
    assert!(said.complaint().contains("set VENICE_OPENCL"), "{said:?}");
}

#[test]
fn opencl_program_survives_lost_device() {
    let Some(place) = opencl_rack("opencl_program_survives_lost_device") else { return };
    let file = |name: &str| place.file(name).display().to_string();
    let (mark, go) = (file("mark"), file("go"));
    let script = format!(
        "trap 'exit 99' TERM; echo > {mark}; while [ ! -e {go} ]; do sleep 0.1; done; \
         for id in $(echo $VENICE_GRANT_ID | tr , ' '); do echo gone > $VENICE_LOST_DIR/$id; done; \
         exit 5"
    );
    let words = ["run", "--accelerators", "2", "--", "sh", "-c", &script];
    let log = fs::File::create(place.file("log")).unwrap();
    let child = with_drivers(&place, &words).stderr(log).spawn().unwrap();
    let mut running = venice_testkit::process::ChildGuard(child);
    wait_until("it runs", || exists(mark.as_ref()));
    kill(host_pids(&place, "node2")[2]);
    let said = || fs::read_to_string(place.file("log")).unwrap();
    wait_until("the loss is reported", || {
        said().contains("opencl0 of node2: its service has ended")
    });
    wait_until("one is left", || kinds(&place) == ["accelerator"]);
    fs::write(&go, "").unwrap();
    assert_eq!(wait(&mut running.0, &["run"]).code(), Some(5), "{}", said());
    // The driver has noticed both; the donor has given a reason for one.
    let said = said();
    let of = |node: &str| said.lines().filter(|it| it.contains(node)).collect::<Vec<_>>();
    assert_eq!(of("node2").len(), 1, "{said}");
    assert_eq!(of("node1"), ["venice: opencl of node1: gone "], "{said}");
}

#[test]
fn killed_run_leaves_no_files() {
    let Some(place) = opencl_rack("killed_run_leaves_no_files") else { return };
    let mark = place.file("mark").display().to_string();
    let script = format!("echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 600");
    let words = ["run", "--accelerators", "1", "--", "sh", "-c", &script];
    let mut child = with_drivers(&place, &words).spawn().unwrap();
    wait_until("it runs", || exists(mark.as_ref()));
    let program: u64 = fs::read_to_string(&mark).unwrap().trim().parse().unwrap();
    assert_eq!(run_dirs(&place).len(), 1);
    kill(child.id().into());
    child.wait().unwrap();
    wait_until("the program ends with its run", || !crate::common::runs(program));
    let words = ["run", "--accelerators", "1", "--accel-needs", "second", "--", "true"];
    finish(with_drivers(&place, &words), &words).expect(0);
    assert_eq!(run_dirs(&place), Vec::<PathBuf>::new());
}

/// Returns a command on the driver that is built beside `venice`.
pub fn with_built_driver(place: &Place, words: &[&str]) -> Command {
    let mut command = place.command(words);
    command.env_remove("OCL_ICD_VENDORS").env_remove("VENICE_OPENCL");
    command
}

#[test]
fn unchanged_program_uses_accelerators() {
    let Some(place) = opencl_rack("unchanged_program_uses_accelerators") else { return };
    let words = ["run", "--accelerators", "2", "--", "clinfo", "--json"];
    let said = finish(with_built_driver(&place, &words), &words).expect(0).json();
    let devices = said["devices"][0]["online"].as_array().unwrap();
    let named: Vec<_> = devices.iter().map(|it| it["CL_DEVICE_NAME"].as_str().unwrap()).collect();
    assert!(named[0].ends_with("on node1") && named[1].ends_with("on node2"), "{named:?}");
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python/opencl_sum.py");
    let words = ["run", "--accelerators", "2", "--", "/usr/bin/python3", example];
    let said = finish(with_built_driver(&place, &words), &words).expect(0);
    let lines: Vec<_> = said.out.lines().collect();
    assert_eq!(lines.len(), 4, "{said:?}");
    for (at, line) in lines.iter().enumerate() {
        let ends = if at % 2 == 0 { "first sum: 1.0" } else { ": right" };
        assert!(line.ends_with(ends), "{said:?}");
    }
}
