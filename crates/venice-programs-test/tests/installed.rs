//! What `make install` puts down works from there.

use std::path::Path;
use std::process::Command;

use venice_programs_test::venice_binary;

#[test]
fn an_installed_venice_finds_its_shim() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let prefix = tempfile::tempdir().expect("a temporary directory");
    let installed = Command::new(root.join("scripts/install.sh"))
        .arg("install")
        .arg(prefix.path())
        .env("BUILT", venice_binary().parent().expect("a directory"))
        .output()
        .expect("a shell");
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    for file in ["lib/systemd/system/venice-agent.service", "share/man/man1/venice.1"] {
        assert!(prefix.path().join(file).exists(), "{file} is not installed");
    }

    let doctor = Command::new(prefix.path().join("bin/venice"))
        .args(["doctor", "--json"])
        .output()
        .expect("the installed binary");
    let said: serde_json::Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    let rows = said.as_array().expect("a list");
    let row = rows.iter().find(|row| row["what"] == "shim library").expect("a row for the shim");
    let found = Path::new(row["detail"].as_str().expect("a path")).canonicalize();
    let shim = prefix.path().join("lib/venice/libvenice_preload.so");
    assert_eq!(found.expect("the shim is found"), shim);

    let uninstalled = Command::new(root.join("scripts/install.sh"))
        .arg("uninstall")
        .arg(prefix.path())
        .status()
        .expect("a shell");
    assert!(uninstalled.success());
    assert!(!prefix.path().join("bin/venice").exists());
    assert!(!shim.exists());
}
