//! The Python tests that need no rack, on the package as a wheel installs it.

use std::path::Path;
use std::process::Command;

#[test]
fn python_channels_work() {
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
        .arg(crate_folder.join("tests/test_channels.py"))
        .env("PYTHONPATH", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
}
