//! What `venice swap` and `venice run --mode swap` use: memory cgroups, a block device that a program
//! can serve, and the right to flag its server.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use rustix::thread::CapabilitySet;
use venice_swap::BlockKind;
use venice_swap::cgroup::Hierarchy;

use super::{Finding, kernel};

/// Rows about the kernel's own paging; none of them stops `venice run` in its paged mode.
pub fn examine() -> Vec<Finding> {
    vec![
        cgroup(Hierarchy::find()),
        device(
            "FUSE",
            "/dev/fuse",
            "`modprobe fuse` (`venice swap` needs it where there is neither ublk nor nbd)",
        ),
        device(
            "loop devices",
            "/dev/loop-control",
            "`modprobe loop` (`venice swap` needs them where there is neither ublk nor nbd)",
        ),
        chosen(ublk(), has_nbd(), has_fuse_and_loop().then(fuse_rings)),
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

/// Why it cannot be used; empty where it can. Whether its driver can do what is needed is known once it
/// is loaded.
fn ublk() -> String {
    if !Path::new("/dev/ublk-control").exists() {
        let unknown = "its module is not loaded yet".to_owned();
        return if has_module("ublk_drv") { unknown } else { "there is none".to_owned() };
    }
    BlockKind::ublk_serves().err().map(|error| error.to_string()).unwrap_or_default()
}

/// Why FUSE requests cannot come over io_uring; empty where they can.
fn fuse_rings() -> String {
    BlockKind::fuse_rings_serve().err().map(|error| error.to_string()).unwrap_or_default()
}

/// Its module need not be loaded yet.
fn has_nbd() -> bool {
    Path::new("/sys/block/nbd0").exists() || has_module("nbd")
}

fn has_module(name: &str) -> bool {
    let dry_run = Command::new("modprobe").args(["--dry-run", name]).output();
    dry_run.is_ok_and(|output| output.status.success())
}

fn has_fuse_and_loop() -> bool {
    Path::new("/dev/fuse").exists() && Path::new("/dev/loop-control").exists()
}

/// `without_rings`: why FUSE cannot do with rings, where there is FUSE.
fn chosen(without_ublk: String, nbd: bool, without_rings: Option<String>) -> Finding {
    let what = "swap device";
    if without_ublk.is_empty() {
        return Finding::ok(what, "ublk (venice swap)");
    }
    match (nbd, without_rings) {
        (true, _) => Finding::ok(what, format!("nbd (venice swap); ublk: {without_ublk}")),
        (false, Some(without_rings)) => {
            let rings = match without_rings.as_str() {
                "" => "requests over io_uring".to_owned(),
                why => format!("requests by /dev/fuse (io_uring: {why})"),
            };
            let detail = format!("a FUSE file under a loop device, {rings} (venice swap)");
            Finding::ok(what, format!("{detail}; no nbd; ublk: {without_ublk}"))
        }
        (false, None) => Finding::missing(
            what,
            format!("neither nbd nor FUSE with loop devices; ublk: {without_ublk}"),
            "`modprobe ublk_drv` (Linux 6.13), `modprobe nbd`, or `modprobe fuse` and `modprobe loop` \
             (for `venice swap`)",
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
        let none = || "there is none".to_owned();
        let rings = || Some(String::new());
        assert!(chosen(String::new(), true, rings()).detail.starts_with("ublk"));
        assert!(chosen(none(), true, rings()).detail.starts_with("nbd"));
        assert!(chosen(none(), false, rings()).detail.contains("over io_uring"));
        assert!(chosen(none(), false, rings()).detail.contains("ublk: there is none"));
        let without = chosen(none(), false, Some("switched off".to_owned())).detail;
        assert!(without.contains("/dev/fuse (io_uring: switched off)"), "{without}");
        assert_eq!(chosen(none(), false, None).state, State::Missing);
        assert_eq!(cgroup(None).state, State::Warn);
        assert_eq!((protection(true).state, protection(false).state), (State::Ok, State::Warn));
    }
}
