//! Memfds and POSIX shared memory are paged, as files of the run.

use venice_e2e::programs::compare::{PROGRAM_LIMIT, check_went_far, same_output};
use venice_e2e::programs::{CProgram, Port, Rack, paged_mode_is_missing};

use super::shared::{check_paged, look_is_missing, run_way};

const OPTIONS: [&str; 6] = ["--local", "16MiB", "--remote", "512MiB", "--strict", "--stats"];

fn is_paged(test: &str, port: Port, way: &str) {
    check_paged(test, ("shared_files", &OPTIONS), port, way);
}

#[test]
fn views_of_memfd_agree() {
    is_paged("views_of_memfd_agree", Port::Shm, "mapped");
}

#[test]
fn views_agree_over_udp() {
    is_paged("views_agree_over_udp", Port::Udp, "mapped");
}

#[test]
fn system_calls_read_far() {
    is_paged("system_calls_read_far", Port::Shm, "called");
}

#[test]
fn file_grows_and_shrinks() {
    is_paged("file_grows_and_shrinks", Port::Shm, "resized");
}

#[test]
fn private_mapping_keeps_copies() {
    is_paged("private_mapping_keeps_copies", Port::Shm, "private");
}

#[test]
fn descriptor_goes_to_others() {
    is_paged("descriptor_goes_to_others", Port::Shm, "handed");
}

#[test]
fn named_object_is_paged() {
    is_paged("named_object_is_paged", Port::Shm, "named");
}

/// Its processes find the memory by its name.
#[test]
fn python_shares_named_memory() {
    const TEST: &str = "python_shares_named_memory";
    if paged_mode_is_missing(TEST) || look_is_missing(TEST) {
        return;
    }
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/named.py");
    let mut python = std::process::Command::new("/usr/bin/python3");
    python.arg(script).env("PYTHONDONTWRITEBYTECODE", "1");
    let options = ["--local", "48MiB", "--remote", "512MiB", "--stats"];
    let venice = same_output(Rack::shared(Port::Shm), &options, &python);
    check_went_far(TEST, &venice);
}

/// All of them together are more than there is.
#[test]
fn closed_files_free_memory() {
    const TEST: &str = "closed_files_free_memory";
    if !paged_mode_is_missing(TEST) && !look_is_missing(TEST) {
        run_way(("shared_files", &OPTIONS), Port::Shm, &["many"]);
    }
}

/// The budget holds what is sent; without `--strict`, since that stays here.
#[test]
fn outside_process_maps_memory() {
    const TEST: &str = "outside_process_maps_memory";
    if paged_mode_is_missing(TEST) || look_is_missing(TEST) {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let socket = dir.path().join("socket").to_str().expect("UTF-8").to_owned();
    let program = CProgram::compile("shared_files");
    let mut outside = program.command(&["receiver", &socket]).spawn().expect("it starts");
    let options = ["--local", "96MiB", "--remote", "512MiB", "--stats"];
    let sender = program.command(&["sender", &socket]);
    let outcome = Rack::shared(Port::Shm).run(&options, &sender).finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    assert!(outside.wait().expect("it ends").success());
    assert!(outcome.number_after("pages out ") > 1000, "{}", outcome.stderr);
}
