//! A program of CUDA's driver API on a stand-in for the driver: directly, and on a granted device.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Daemon, Place, Said, finish, kill, skipped, wait, wait_until};
use crate::service_hosts::host_pids;

/// The client driver, the stand-in and the program; `None`, with a remark: one is missing.
pub struct Files {
    client: PathBuf,
    pub fake: PathBuf,
    program: PathBuf,
}

pub fn files(test: &str, place: &Place) -> Option<Files> {
    let built = Path::new(env!("CARGO_BIN_EXE_venice")).parent().unwrap();
    let [client, fake] = ["libvenice_cuda.so", "libvenice_fake_cuda.so"].map(|it| built.join(it));
    if !client.exists() || !fake.exists() {
        skipped(test, "cargo build -p venice-cuda -p venice-fake-cuda has not run");
        return None;
    }
    let program = place.file("cuda");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/cuda.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wno-deprecated-declarations", "-o"]).arg(&program).arg(source);
    if !compiler.args(["-ldl", "-lpthread"]).status().is_ok_and(|ended| ended.success()) {
        skipped(test, "no C compiler");
        return None;
    }
    Some(Files { client, fake, program })
}

/// A rack of two nodes; each lends a device.
pub fn rack(place: &Place, files: &Files, port: &str) {
    let words = ["up", "--nodes", "2", "--lend", "32MiB", "--port", port];
    let offers = [
        ["--offer", "node1/accelerator:cuda1=128MiB"],
        ["--offer", "node2/accelerator:cuda0=128MiB"],
    ];
    let words = [&words[..], offers.as_flattened()].concat();
    let mut up = place.command(&words);
    up.env("VENICE_CUDA_LIBRARY", &files.fake);
    finish(up, &words).expect(0);
}

/// Words that run a command with so many devices: a single one is node2's.
fn run_words(devices: &str) -> Vec<&str> {
    let mut words = vec!["run", "--accelerators", devices, "--accel-needs", "cuda,sm_75"];
    if devices == "1" {
        words.extend(["--donor", "node2"]);
    }
    words.push("--");
    words
}

fn run_granted(place: &Place, files: &Files, devices: &str, command: &[&str]) -> Said {
    let words = [&run_words(devices), command].concat();
    let mut run = place.command(&words);
    run.env("VENICE_CUDA", &files.client);
    finish(run, &words)
}

/// Runs the program on the stand-in itself.
fn run_directly(place: &Place, files: &Files, what: &str) -> String {
    let link = place.file("libcuda.so.1");
    if !link.exists() {
        std::os::unix::fs::symlink(&files.fake, &link).unwrap();
    }
    let mut program = Command::new(&files.program);
    program.arg(what).env("LD_LIBRARY_PATH", link.parent().unwrap());
    String::from_utf8(program.output().unwrap().stdout).unwrap()
}

/// Parts of the program for one device.
const PARTS: [&str; 16] = [
    "streams", "large", "errors", "fault", "asked", "rows", "pool", "calls", "images", "launches",
    "nonsense", "slow", "threads", "graphs", "behind", "ending",
];

#[test]
fn granted_device_computes_alike() {
    let place = Place::new();
    let Some(files) = files("granted_device_computes_alike", &place) else { return };
    let program = files.program.to_str().unwrap();
    for port in ["shm", "udp"] {
        rack(&place, &files, port);
        for what in PARTS {
            let said = run_granted(&place, &files, "1", &[program, what]).expect(0);
            assert_eq!(said.out, run_directly(&place, &files, what), "{what} over {port}");
        }
        let said = run_granted(&place, &files, "2", &[program, "peers"]).expect(0);
        assert_eq!(said.out, run_directly(&place, &files, "peers"), "peers over {port}");
        place.venice(&["down"]).expect(0);
    }
}

#[test]
fn program_after_fault_has_device() {
    let place = Place::new();
    let Some(files) = files("program_after_fault_has_device", &place) else { return };
    rack(&place, &files, "shm");
    let both = format!("{0} fault; {0} streams", files.program.display());
    let said = run_granted(&place, &files, "1", &["sh", "-c", &both]).expect(0);
    let alone = ["fault", "streams"].map(|what| run_directly(&place, &files, what));
    assert_eq!(said.out, alone.concat());
}

#[test]
fn refusal_is_said_once() {
    let place = Place::new();
    let Some(files) = files("refusal_is_said_once", &place) else { return };
    rack(&place, &files, "shm");
    let said = run_granted(&place, &files, "1", &[files.program.to_str().unwrap(), "refused"]);
    let said = said.expect(0);
    assert_eq!(said.out.matches("CUDA_ERROR_NOT_SUPPORTED").count(), 5, "{}", said.out);
    for name in
        ["cuMemAllocManaged", "cuStreamBeginCapture_v2", "6bd5fb6c-5bf4-e74a-8987-d93912fd9df9"]
    {
        assert_eq!(said.err.matches(name).count(), 1, "{name}: {}", said.err);
    }
}

#[test]
fn killed_host_is_reported() {
    let place = Place::new();
    let Some(files) = files("killed_host_is_reported", &place) else { return };
    for port in ["shm", "udp"] {
        rack(&place, &files, port);
        let words = [&run_words("2"), &[files.program.to_str().unwrap(), "half"][..]].concat();
        let mut running = Daemon::start_named(&place, port, &words);
        let log = place.file(&format!("{port}.log"));
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        wait_until("it runs", || said().contains("running\n"));
        // The node of its device 0.
        let node = if said().contains("nodes node1") { "node1" } else { "node2" };
        kill(host_pids(&place, node)[2]);
        let killed = Instant::now();
        wait_until("the program is told", || said().contains("CUDA_ERROR_DEVICE_UNAVAILABLE"));
        assert!(killed.elapsed() < Duration::from_secs(2), "{port}: {:?}", killed.elapsed());
        assert_eq!(wait(&mut running.0, &["run"]).code(), Some(0));
        let said = said();
        assert!(said.contains(&format!("of {node}: its service has ended")), "{said}");
        assert!(said.contains("the other one: 42"), "{said}");
        assert_eq!(said.matches("CUDA_ERROR_DEVICE_UNAVAILABLE").count(), 2, "{said}");
        place.venice(&["down"]).expect(0);
    }
}

#[test]
fn example_computes() {
    let place = Place::new();
    let Some(files) = files("example_computes", &place) else { return };
    rack(&place, &files, "shm");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let example = root.join("examples/python/cuda_saxpy.py");
    let said = run_granted(&place, &files, "2", &["python3", example.to_str().unwrap()]);
    let said = said.expect(0);
    assert_eq!(said.out.matches(": right\n").count(), 2, "{}", said.out);
}
