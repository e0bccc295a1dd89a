//! QEMU, whose guest's memory is paged: a kernel that fills it with files and reads them back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::shared::look_is_missing;
use venice_e2e::programs::compare::{check_went_far, same_output};
use venice_e2e::programs::{Port, Rack, paged_mode_is_missing};

/// The first process of the guest.
const INIT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /t; $b mount -t tmpfs -o size=90% t /t
$b seq 1 300000 > /t/a
for to in b c d e; do $b cp /t/a /t/$to; done
for turn in 1 2; do $b md5sum /t/?; $b cat /t/? | $b md5sum; done
$b tail -n 90000 /t/a | $b tac | $b md5sum
$b echo guest done
$b poweroff -f
"#;

/// Returns the folder of the guest's kernel, or the reason why there is none.
fn kernel() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(root.join("scripts/guest.sh")).output().expect("a shell");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().into()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().into()),
    }
}

/// Packs the guest's files: busybox and its first process.
fn pack(dir: &Path) -> PathBuf {
    let script = "set -e; mkdir -p tree/bin; cp \"$(command -v busybox)\" tree/bin/busybox; \
                  cp init tree/init; chmod 755 tree/init; cd tree; \
                  find . | busybox cpio -o -H newc > ../initrd 2> /dev/null";
    fs::write(dir.join("init"), INIT).expect("a file");
    let status = Command::new("sh").args(["-c", script]).current_dir(dir).status();
    assert!(status.expect("a shell").success(), "packing the guest's files failed");
    dir.join("initrd")
}

#[test]
fn qemu_runs_its_guest() {
    runs_guest("qemu_runs_its_guest", &["-M", "q35"]);
}

/// Virtual machines with vhost-user devices need shared memory.
#[test]
fn memory_of_guest_is_memfd() {
    const TEST: &str = "memory_of_guest_is_memfd";
    let memory = "memory-backend-memfd,id=memory,size=128M,share=on,seal=off";
    if !look_is_missing(TEST) {
        runs_guest(TEST, &["-M", "q35,memory-backend=memory", "-object", memory]);
    }
}

fn runs_guest(test: &str, machine: &[&str]) {
    if paged_mode_is_missing(test) {
        return;
    }
    let kernel = match kernel() {
        Ok(folder) => folder,
        Err(reason) => return println!("SKIPPED: {test}: no qemu: {reason}"),
    };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new("qemu-system-x86_64");
    command.args(machine).args(["-accel", "tcg,tb-size=8", "-cpu", "max,la57=off", "-m", "128"]);
    command.args(["-no-reboot", "-nodefaults", "-display", "none", "-serial", "stdio"]);
    command.arg("-kernel").arg(kernel.join("vmlinux")).arg("-initrd").arg(pack(dir.path()));
    // The console shows nothing with a time in it.
    command.args(["-append", "console=ttyS0 loglevel=0 mitigations=off no_timer_check panic=-1"]);
    let options = ["--local", "48MiB", "--remote", "320MiB", "--stats"];
    let venice = same_output(Rack::shared(Port::Shm), &options, &command);
    let said = String::from_utf8_lossy(&venice.stdout);
    assert!(said.contains("guest done"), "{said}");
    println!("{}", venice.stderr);
    check_went_far(test, &venice);
}
