//! What `venice swap` and `venice run --mode swap` use: memory cgroups, a block device that a program
//! can serve, and the right to flag its server.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use rustix::thread::CapabilitySet;
use venice_swap::cgroup::Hierarchy;

use super::{Finding, kernel};

/// Rows about the kernel's own paging; none of them stops `venice run` in its paged mode.
pub fn examine() -> Vec<Finding> {
    vec![
        cgroup(Hierarchy::find()),
        device(
            "FUSE",
            "/dev/fuse",
            "`modprobe fuse` (`venice swap` needs it where there is no nbd)",
        ),
        device(
            "loop devices",
            "/dev/loop-control",
            "`modprobe loop` (`venice swap` needs them where there is no nbd)",
        ),
        chosen(has_nbd(), Path::new("/dev/ublk-control").exists(), has_fuse_and_loop()),
        protection(kernel::has_capability(CapabilitySet::SYS_RESOURCE)),
    ]
}

fn cgroup(found: Option<Hierarchy>) -> Finding {
    let what = "memory cgroup";
    let Some(hierarchy) = found else {
        return Finding::warn(
            what,
            "no memory controller: `venice run --mode swap` has nothing to hold programs with",
            "boot with cgroup_enable=memory, or mount the cgroup file system",
        );
    };
    let (version, at) = (hierarchy.version(), hierarchy.mount().display());
    if rustix::fs::access(hierarchy.mount(), rustix::fs::Access::WRITE_OK).is_ok() {
        return Finding::ok(what, format!("{version} at {at}"));
    }
    Finding::warn(
        what,
        format!("{version} at {at}, but this user may not make groups there"),
        "run as root (only `venice run --mode swap` and comparisons with swap need it)",
    )
}

/// A device that can be opened, or how to get it.
fn device(what: &'static str, path: &str, mend: &str) -> Finding {
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => Finding::ok(what, path),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Finding::missing(what, format!("no {path}"), mend)
        }
        Err(error) => Finding::warn(what, format!("{path}: {error}"), "run as root"),
    }
}

/// Its module need not be loaded yet.
fn has_nbd() -> bool {
    let has_module = || {
        let dry_run = Command::new("modprobe").args(["--dry-run", "nbd"]).output();
        dry_run.is_ok_and(|output| output.status.success())
    };
    Path::new("/sys/block/nbd0").exists() || has_module()
}

fn has_fuse_and_loop() -> bool {
    Path::new("/dev/fuse").exists() && Path::new("/dev/loop-control").exists()
}

fn chosen(nbd: bool, ublk: bool, fuse: bool) -> Finding {
    let what = "swap device";
    let ublk = if ublk { "; ublk is there, and not used yet" } else { "" };
    match (nbd, fuse) {
        (true, _) => Finding::ok(what, format!("nbd (venice swap){ublk}")),
        (false, true) => Finding::ok(
            what,
            format!("a FUSE file under a loop device (venice swap); no nbd{ublk}"),
        ),
        (false, false) => Finding::missing(
            what,
            format!("neither nbd nor FUSE with loop devices{ublk}"),
            "`modprobe nbd`, or `modprobe fuse` and `modprobe loop` (for `venice swap`)",
        ),
    }
}

fn protection(may: bool) -> Finding {
    let what = "swap server";
    if may {
        return Finding::ok(what, "can be kept from waiting for itself (CAP_SYS_RESOURCE)");
    }
    Finding::warn(
        what,
        "no CAP_SYS_RESOURCE: it can neither be flagged (PR_SET_IO_FLUSHER) nor be spared by the \
         out-of-memory killer",
        "give that capability to who runs `venice swap`, or swap only programs in memory cgroups",
    )
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn the_device_is_the_best_there_is() {
        assert!(chosen(true, false, true).detail.starts_with("nbd"));
        assert!(chosen(false, true, true).detail.contains("FUSE"));
        assert!(chosen(false, true, true).detail.contains("ublk is there"));
        assert_eq!(chosen(false, true, false).state, State::Missing);
        assert_eq!(cgroup(None).state, State::Warn);
        assert_eq!((protection(true).state, protection(false).state), (State::Ok, State::Warn));
    }
}
