//! A program of CUDA's driver API on a stand-in for the driver: directly, and on a granted device.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Daemon, Place, Said, finish, kill, skipped, wait, wait_until};
use crate::service_hosts::host_pids;

/// The client driver, the stand-in and the program; `None`, with a remark: one is missing.
struct Files {
    client: PathBuf,
    fake: PathBuf,
    program: PathBuf,
}

fn files(test: &str, place: &Place) -> Option<Files> {
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
    if !compiler.arg("-ldl").status().is_ok_and(|ended| ended.success()) {
        skipped(test, "no C compiler");
        return None;
    }
    Some(Files { client, fake, program })
}

/// A rack whose second node lends the device.
fn rack(place: &Place, files: &Files, port: &str) {
    let words = ["up", "--nodes", "2", "--lend", "32MiB", "--port", port, "--offer"];
    let words = [&words[..], &["node2/accelerator:cuda=128MiB"]].concat();
    let mut up = place.command(&words);
    up.env("VENICE_CUDA_LIBRARY", &files.fake);
    finish(up, &words).expect(0);
}

const RUN: [&str; 6] = ["run", "--accelerators", "1", "--accel-needs", "cuda,sm_75", "--"];

fn run_granted(place: &Place, files: &Files, what: &str) -> Said {
    let words = [&RUN[..], &[files.program.to_str().unwrap(), what]].concat();
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

#[test]
fn granted_device_computes_alike() {
    let place = Place::new();
    let Some(files) = files("granted_device_computes_alike", &place) else { return };
    for port in ["shm", "udp"] {
        rack(&place, &files, port);
        for what in ["streams", "large", "errors", "fault"] {
            let said = run_granted(&place, &files, what).expect(0);
            assert_eq!(said.out, run_directly(&place, &files, what), "{what} over {port}");
        }
        place.venice(&["down"]).expect(0);
    }
}

#[test]
fn killed_host_is_reported() {
    let place = Place::new();
    let Some(files) = files("killed_host_is_reported", &place) else { return };
    rack(&place, &files, "shm");
    let words = [&RUN[..], &[files.program.to_str().unwrap(), "hold"]].concat();
    let mut running = Daemon::start_named(&place, "running", &words);
    let log = place.file("running.log");
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_until("it runs", || said().contains("running\n"));
    kill(host_pids(&place, "node2")[2]);
    assert_eq!(wait(&mut running.0, &["run"]).code(), Some(0));
    let said = said();
    assert!(said.contains("cuda of node2: its service has ended"), "{said}");
    assert!(said.contains("CUDA_ERROR_DEVICE_UNAVAILABLE"), "{said}");
}
