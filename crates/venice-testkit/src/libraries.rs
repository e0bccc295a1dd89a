//! The shared libraries, which `cargo test` does not link.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Variables that `cargo test` sets for a test. Build scripts that see them run again, and all that
/// rests on them is built anew.
const OF_THE_TEST: [&str; 4] = ["CARGO_MANIFEST_", "CARGO_PKG_", "OUT_DIR", "RUSTC_BOOTSTRAP"];

/// Builds the shared libraries beside the running test, and returns their folder.
///
/// # Panics
/// If they do not build.
pub fn build_libraries() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let profile = test.parent().and_then(Path::parent).expect("target/PROFILE/deps/TEST");
    let target = profile.parent().expect("target/PROFILE/deps/TEST");
    let mut cargo = Command::new(env!("CARGO"));
    // Of the whole workspace, for the features that its other crates were built with.
    cargo
        .args(["build", "--quiet", "--offline", "--workspace", "--lib", "--target-dir"])
        .arg(target);
    for (name, _) in std::env::vars_os() {
        if OF_THE_TEST.iter().any(|start| name.to_string_lossy().starts_with(start)) {
            cargo.env_remove(name);
        }
    }
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    assert!(cargo.status().expect("cargo starts").success(), "the libraries do not build");
    profile.to_path_buf()
}
