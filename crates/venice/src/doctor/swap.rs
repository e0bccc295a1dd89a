//! What `venice swap` and `venice run --mode swap` use: memory cgroups, a block device that a program
//! can serve, and the right to flag its server.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use rustix::thread::CapabilitySet;
use venice_swap::BlockKind;
use venice_swap::cgroup::Hierarchy;

use super::{Finding, Mode, kernel};

/// Rows about the kernel's own paging; none of them stops a mode but that.
pub fn examine() -> Vec<Finding> {
    let may = venice_swap::require_root().is_ok();
    let is_admin = kernel::has_capability(CapabilitySet::SYS_ADMIN);
    vec![
        swapping(Path::new("/proc/swaps").exists(), may, is_admin),
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
        protection(kernel::has_capability(CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_NICE)),
    ]
}

/// Whether areas can be swapped to, by this user.
fn swapping(in_kernel: bool, is_root: bool, is_admin: bool) -> Finding {
    let what = "swapping";
    let finding = match (in_kernel, is_root, is_admin) {
        (false, _, _) => Finding::missing(
            what,
            "the kernel was built without swap (/proc/swaps is not there)",
            "boot a kernel with CONFIG_SWAP=y",
        ),
        (true, false, _) => Finding::missing(
            what,
            "this user may make neither block devices nor swap areas",
            "run `venice swap` and `venice run --mode swap` as root",
        ),
        (true, true, false) => Finding::missing(
            what,
            "root without CAP_SYS_ADMIN, as in a container, may not switch swap areas on",
            "give the container CAP_SYS_ADMIN, or run outside of it",
        ),
        (true, true, true) => Finding::ok(what, "areas can be switched on (root, CAP_SYS_ADMIN)"),
    };
    finding.needed_by(&[Mode::Swap])
}

fn cgroup(found: Option<Hierarchy>) -> Finding {
    let what = "memory cgroup";
    let finding = match found {
        None => Finding::missing(
            what,
            "no memory controller: `venice run --mode swap` has nothing to hold programs with",
            "boot with cgroup_enable=memory, or mount the cgroup file system",
        ),
        Some(hierarchy) => {
            let (version, at) = (hierarchy.version(), hierarchy.mount().display());
            let is_writable =
                rustix::fs::access(hierarchy.mount(), rustix::fs::Access::WRITE_OK).is_ok();
            if is_writable {
                Finding::ok(what, format!("{version} at {at}"))
            } else {
                Finding::missing(
                    what,
                    format!("{version} at {at}, but no groups may be made there"),
                    "run as root; in a container, mount it for writing (only `venice run --mode \
                     swap` and comparisons with swap need it)",
                )
            }
        }
    };
    finding.needed_by(&[Mode::Swap])
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
    let finding = match (without_ublk.as_str(), nbd, without_rings) {
        ("", _, _) => Finding::ok(what, "ublk (venice swap)"),
        (_, true, _) => Finding::ok(what, format!("nbd (venice swap); ublk: {without_ublk}")),
        (_, false, Some(without_rings)) => {
            let rings = match without_rings.as_str() {
                "" => "requests over io_uring".to_owned(),
                why => format!("requests by /dev/fuse (io_uring: {why})"),
            };
            let detail = format!("a FUSE file under a loop device, {rings} (venice swap)");
            Finding::ok(what, format!("{detail}; no nbd; ublk: {without_ublk}"))
        }
        (_, false, None) => Finding::missing(
            what,
            format!("neither nbd nor FUSE with loop devices; ublk: {without_ublk}"),
            "`modprobe ublk_drv` (Linux 6.13), `modprobe nbd`, or `modprobe fuse` and `modprobe loop` \
             (for `venice swap`)",
        ),
    };
    finding.needed_by(&[Mode::Swap])
}

fn protection(may: bool) -> Finding {
    let what = "swap server";
    if may {
        return Finding::ok(
            what,
            "can be kept from waiting for itself (CAP_SYS_RESOURCE, CAP_SYS_NICE)",
        );
    }
    Finding::warn(
        what,
        "no CAP_SYS_RESOURCE or no CAP_SYS_NICE: it can neither be flagged (PR_SET_IO_FLUSHER) nor be \
         spared by the out-of-memory killer, or not have the last reserve of memory (by nbd)",
        "give these capabilities to who runs `venice swap`, or swap only programs in memory cgroups",
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
        assert!(chosen(none(), false, None).stops(Mode::Swap));
        assert!(cgroup(None).stops(Mode::Swap));
        assert_eq!((protection(true).state, protection(false).state), (State::Ok, State::Warn));
    }
    #[test]
    fn who_may_not_swap_is_told_what_it_takes() {
        assert_eq!(swapping(true, true, true).state, State::Ok);
        for (in_kernel, is_root, is_admin, wanted) in [
            (false, true, true, "CONFIG_SWAP"),
            (true, false, false, "as root"),
            (true, true, false, "CAP_SYS_ADMIN"),
        ] {
            let finding = swapping(in_kernel, is_root, is_admin);
            assert!(finding.stops(Mode::Swap) && finding.mend.contains(wanted), "{finding:?}");
            assert!(!finding.stops(Mode::Paged) && !finding.stops(Mode::Window), "{finding:?}");
        }
    }
}
