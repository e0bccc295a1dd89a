//! Programs of ordinary users, who have no privilege but that of a group.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use venice_e2e::programs::{CProgram, Port, Rack, Running, paged_mode_is_missing, venice_binary};

const PATIENCE: Duration = Duration::from_secs(120);
/// A group that Debian has, and a user who is in no other one.
const GROUP: (&str, &str) = ("nogroup", "65534");

/// Copies files to a folder where every user may read and write.
fn public(files: &[&Path]) -> tempfile::TempDir {
    let mode = fs::Permissions::from_mode(0o755);
    let folder = tempfile::Builder::new().permissions(mode.clone()).tempdir_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    for file in files {
        let to = folder.path().join(file.file_name().unwrap());
        fs::copy(file, &to).unwrap();
        fs::set_permissions(&to, mode.clone()).unwrap();
    }
    folder
}

/// Runs a program paged as an ordinary user.
fn run_as_user(port: Port, program: &str) {
    if paged_mode_is_missing("users") {
        return;
    }
    let rack = Rack::of_group(port, 128, GROUP.0);
    let binary = venice_binary();
    let shim = binary.with_file_name("libvenice_preload.so");
    let compiled = CProgram::compile(program);
    let program = compiled.command(&[]);
    let folder = public(&[&binary, &shim, Path::new(program.get_program())]);
    let there = |path: &Path| folder.path().join(path.file_name().unwrap());
    let run = rack.command(&[
        "run",
        "--mode",
        "paged",
        "--local",
        "16MiB",
        "--remote",
        "128MiB",
        "--port",
        port.name(),
    ]);
    let mut command = Command::new("setpriv");
    let ids = ["--reuid", GROUP.1, "--regid", GROUP.1, "--clear-groups", "--bounding-set=-all"];
    command.args(ids).arg(there(&binary)).args(run.get_args());
    command.args(["--stats", "--"]).arg(there(Path::new(program.get_program())));
    command.current_dir(folder.path());
    command.env("VENICE_RUN_DIR", rack.run_dir()).env_remove("VENICE_MONITOR");
    let outcome = Running::spawn(command, false).finish(PATIENCE);
    outcome.expect_code(0);
    assert!(outcome.number_after("pages in ") > 0, "{}", outcome.stderr);
}

#[test]
fn users_fork_over_shm() {
    run_as_user(Port::Shm, "fork_cow");
}

#[test]
fn users_fork_over_udp() {
    run_as_user(Port::Udp, "fork_cow");
}

#[test]
fn users_call_the_kernel() {
    run_as_user(Port::Shm, "system_calls");
}
