//! Facilities of `venice swap` and `venice run --mode swap`: memory cgroups, a block device served
//! by a program, and the capabilities to protect its server.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use rustix::thread::CapabilitySet;
use venice_swap::BlockKind;
use venice_swap::cgroup::Hierarchy;

use super::{Finding, Mode, kernel};

/// Rows about swap; only --mode swap needs them.
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

/// Row about the right to switch swap areas on.
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
            "this user may not create block devices or swap areas",
            "run `venice swap` and `venice run --mode swap` as root",
        ),
        (true, true, false) => Finding::missing(
            what,
            "root without CAP_SYS_ADMIN, as in a container, may not switch swap areas on",
            "give the container CAP_SYS_ADMIN, or run outside of it",
        ),
        (true, true, true) => {
            Finding::ok(what, "swap areas can be switched on (root, CAP_SYS_ADMIN)")
        }
    };
    finding.needed_by(&[Mode::Swap])
}

fn cgroup(found: Option<Hierarchy>) -> Finding {
    let what = "memory cgroup";
    let finding = match found {
        None => Finding::missing(
            what,
            "no memory controller: `venice run --mode swap` cannot limit programs",
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
                    format!("{version} at {at}, but not writable"),
                    "run as root; in a container, mount it for writing (only `venice run --mode \
                     swap` and comparisons with swap need it)",
                )
            }
        }
    };
    finding.needed_by(&[Mode::Swap])
}

/// Row about a device file: can be opened, or the remedy.
fn device(what: &'static str, path: &str, remedy: &str) -> Finding {
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => Finding::ok(what, path),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Finding::missing(what, format!("no {path}"), remedy)
        }
        Err(error) => Finding::warn(what, format!("{path}: {error}"), "run as root"),
    }
}

/// Reason why ublk is unusable; empty if it is usable. A driver's abilities are known only once it
/// is loaded.
fn ublk() -> String {
    if !Path::new("/dev/ublk-control").exists() {
        let unknown = "its module is not loaded yet".to_owned();
        return if has_module("ublk_drv") { unknown } else { "not in this kernel".to_owned() };
    }
    BlockKind::ublk_serves().err().map(|error| error.to_string()).unwrap_or_default()
}

/// Reason why FUSE over io_uring is unusable; empty if it is usable.
fn fuse_rings() -> String {
    BlockKind::fuse_rings_serve().err().map(|error| error.to_string()).unwrap_or_default()
}

/// True if nbd is present; its module need not be loaded.
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

/// Row about the block device chosen for swap. `without_rings` is the reason against FUSE over
/// io_uring; `None` without FUSE.
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
            "can be protected from self-deadlock (CAP_SYS_RESOURCE, CAP_SYS_NICE)",
        );
    }
    Finding::warn(
        what,
        "no CAP_SYS_RESOURCE or no CAP_SYS_NICE: it lacks PR_SET_IO_FLUSHER or protection from the \
         out-of-memory killer, or (by nbd) access to the memory reserve",
        "run `venice swap` with these capabilities, or swap only programs in memory cgroups",
    )
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn best_available_device_is_chosen() {
        let none = || "not in this kernel".to_owned();
        let rings = || Some(String::new());
        assert!(chosen(String::new(), true, rings()).detail.starts_with("ublk"));
        assert!(chosen(none(), true, rings()).detail.starts_with("nbd"));
        assert!(chosen(none(), false, rings()).detail.contains("over io_uring"));
        assert!(chosen(none(), false, rings()).detail.contains("ublk: not in this kernel"));
        let without = chosen(none(), false, Some("switched off".to_owned())).detail;
        assert!(without.contains("/dev/fuse (io_uring: switched off)"), "{without}");
        assert!(chosen(none(), false, None).stops(Mode::Swap));
        assert!(cgroup(None).stops(Mode::Swap));
        assert_eq!((protection(true).state, protection(false).state), (State::Ok, State::Warn));
    }
    #[test]
    fn swap_refusal_has_remedy() {
        assert_eq!(swapping(true, true, true).state, State::Ok);
        for (in_kernel, is_root, is_admin, wanted) in [
            (false, true, true, "CONFIG_SWAP"),
            (true, false, false, "as root"),
            (true, true, false, "CAP_SYS_ADMIN"),
        ] {
            let finding = swapping(in_kernel, is_root, is_admin);
            assert!(finding.stops(Mode::Swap) && finding.remedy.contains(wanted), "{finding:?}");
            assert!(!finding.stops(Mode::Paged) && !finding.stops(Mode::Window), "{finding:?}");
        }
    }
}
