//! The Python tests that need no rack, on the package as a wheel installs it.

use std::path::Path;
use std::process::Command;

/// Runs a Python file of this crate's folder, which must succeed; returns its output.
fn run(file: &str, arguments: &[&str]) -> String {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let libraries = venice_testkit::libraries::build_libraries();

    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("venice");
    std::fs::create_dir(&package).unwrap();
    for file in std::fs::read_dir(crate_folder.join("python/venice")).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), package.join(file.file_name())).unwrap();
        }
    }
    std::fs::copy(libraries.join("lib_venice.so"), package.join("_venice.abi3.so")).unwrap();
    let python = Command::new("/usr/bin/python3")
        .arg(crate_folder.join(file))
        .args(arguments)
        .env("PYTHONPATH", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
    String::from_utf8_lossy(&python.stdout).into_owned()
}

#[test]
fn python_channels_work() {
    run("tests/test_channels.py", &[]);
}

#[test]
fn python_experiments_run() {
    run("tests/test_sim.py", &[]);
}

#[test]
fn python_incast_collapses() {
    let said = run("../../examples/python/incast.py", &["2"]);
    assert_eq!(said.lines().count(), 1 + 5 * 3, "{said}");
}
