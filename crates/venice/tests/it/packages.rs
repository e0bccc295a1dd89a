//! The Debian packages: built from what is built here, installed, used, upgraded and removed in a copy of
//! this machine's root.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{is_root, skipped};

/// Exit code of the script without overlay file systems.
const NO_OVERLAY: i32 = 77;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Builds packages with this revision; `names`: some of them.
fn build(folder: &Path, revision: &str, names: Option<&str>) -> Output {
    let mut command = Command::new(root().join("scripts/deb.sh"));
    let built = Path::new(env!("CARGO_BIN_EXE_venice")).parent().unwrap();
    command.arg(folder).env("BUILT", built).env("DEB_COMPRESSION", "gzip");
    command.env("DEB_REVISION", revision).envs(names.map(|names| ("DEB_PACKAGES", names)));
    command.output().expect("a shell")
}

fn has(tool: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("command -v {tool}")])
        .output()
        .unwrap()
        .status
        .success()
}

#[test]
fn packages_install_upgrade_and_purge() {
    let test = "packages_install_upgrade_and_purge";
    if !is_root() {
        return skipped(test, "root");
    }
    if !has("dpkg-shlibdeps") {
        return skipped(test, "dpkg-dev");
    }
    let temp = tempfile::tempdir().unwrap();
    let (debs, newer) = (temp.path().join("debs"), temp.path().join("newer"));
    for made in [build(&debs, "-1", None), build(&newer, "-2", Some("venice venice-server"))] {
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let script = root().join("crates/venice/tests/it/packages.sh");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash"]);
    let used = command.arg(script).args([&debs, &newer]).output().unwrap();
    if used.status.code() == Some(NO_OVERLAY) {
        return skipped(test, "overlay");
    }
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(used.status.success(), "{}\n{}", said(&used.stdout), said(&used.stderr));
}
