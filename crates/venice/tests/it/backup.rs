//! Backups of Monitor Nodes, running and stopped.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::common::{Place, is_root, skipped};

/// A running rack, and the name of a file for its backup.
fn rack() -> (Place, String) {
    let place = Place::new();
    place.up(1);
    let file = place.file("rack.backup").display().to_string();
    (place, file)
}

#[test]
fn running_rack_is_backed_up() {
    let (place, file) = rack();
    place.venice(&["quota", "set", "ada", "memory=1GiB"]).expect(0);
    let made = place.venice(&["backup", &file]).expect(0);
    assert!(made.err.contains("private key"), "{made:?}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let shown = place.venice(&["backup", "--list", "--json", &file]).expect(0).json();
    assert_eq!((&shown["nodes"], &shown["quotas"]), (&1.into(), &1.into()), "{shown}");
    let authority = place.venice(&["identity", "--json"]).expect(0).json()["authority"].clone();
    assert_eq!(shown["authority"], authority);
    let again = place.venice(&["backup", &file]).expect(1);
    assert!(again.complaint().contains("exists"), "{again:?}");
    // The Monitor Node runs: its state stays.
    let refused = place.venice(&["restore", "--force", &file]).expect(1);
    assert!(refused.complaint().contains("stop it first"), "{refused:?}");
}

#[test]
fn backup_refuses_public_file() {
    let (place, file) = rack();
    let to = |mode| {
        let out = File::create(&file).unwrap();
        out.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
        let mut command = place.command(&["backup", "-"]);
        command.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped()).output().unwrap()
    };
    let refused = to(0o644);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("umask 077"), "{refused:?}");
    assert!(to(0o600).status.success());
    place.venice(&["backup", "--list", &file]).expect(0);
}

#[test]
fn restored_rack_answers_as_before() {
    let place = Place::new();
    let at = |name: &str| place.file(name).display().to_string();
    let (old, new, file) = (at("old"), at("new"), at("rack.backup"));
    place.venice(&["init", "--state-dir", &old, "--address", "127.0.0.1:7470"]).expect(0);
    // Stopped: read from the state directory.
    place.venice(&["backup", "--state-dir", &old, &file]).expect(0);
    let restore = ["restore", "--state-dir", &new, &file];
    let said = place.venice(&restore).expect(0);
    assert!(said.out.contains("1 unused join tokens are void"), "{said:?}");
    let refused = place.venice(&restore).expect(1);
    assert!(refused.complaint().contains("--force"), "{refused:?}");
    let forced = place.venice(&[&restore[..], &["--force", "--json"]].concat()).expect(0).json();
    assert!(forced["moved_to"].as_str().unwrap().ends_with("new/before-restore-1"), "{forced}");
    let read = |dir: &str| fs::read(format!("{dir}/identity/authority.crt")).unwrap();
    assert_eq!(read(&old), read(&new));
}

/// Not even with the rack's authority: the socket gives the records to root and its own user.
#[test]
fn other_users_get_no_backup() {
    let test = "other_users_get_no_backup";
    if !is_root() {
        return skipped(test, "root");
    }
    let (place, _) = rack();
    let socket = place.run_dir().join("monitor.sock");
    for path in [place.file(""), place.run_dir()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let (theirs, binary) = (place.file("theirs/identity"), place.file("venice"));
    fs::create_dir_all(&theirs).unwrap();
    for name in ["authority.key", "authority.crt"] {
        let own = place.run_dir().join("monitor/state/identity").join(name);
        fs::copy(own, theirs.join(name)).unwrap();
        std::os::unix::fs::chown(theirs.join(name), Some(65_534), None).unwrap();
    }
    fs::copy(env!("CARGO_BIN_EXE_venice"), &binary).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(binary);
    command.args(["backup", "-", "--state-dir"]).arg(place.file("theirs"));
    command.env("VENICE_RUN_DIR", place.run_dir()).stdin(Stdio::null());
    let refused = command.output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("only root"), "{refused:?}");
    assert!(refused.stdout.is_empty());
}
