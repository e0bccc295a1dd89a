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
use crate::swap::{self, helper};

/// Rows about swap; only --mode swap needs them.
pub fn examine() -> Vec<Finding> {
    let may = swap::is_root();
    let helper = (!may).then(helper::check);
    if let Some(Ok(least_copies)) = helper {
        return vec![by_helper(least_copies)];
    }
    let why_no_helper = helper.and_then(Result::err);
    let is_admin = kernel::has_capability(CapabilitySet::SYS_ADMIN);
    vec![
        swapping(Path::new("/proc/swaps").exists(), why_no_helper, is_admin),
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

/// Row of a user for whom the helper swaps; what that needs is the helper's.
fn by_helper(least_copies: u32) -> Finding {
    let detail = format!(
        "by this machine's swap helper, with {least_copies} copies at least (venice run --mode swap; \
         venice swap attach needs root)"
    );
    Finding::ok("swapping", detail).needed_by(&[Mode::Swap])
}

/// Row about the right to switch swap areas on. `why_no_helper` is the reason of a user who is not root.
fn swapping(in_kernel: bool, why_no_helper: Option<anyhow::Error>, is_admin: bool) -> Finding {
    let what = "swapping";
    let finding = match (in_kernel, why_no_helper, is_admin) {
        (false, _, _) => Finding::missing(
            what,
            "the kernel was built without swap (/proc/swaps is not there)",
            "boot a kernel with CONFIG_SWAP=y",
        ),
        (true, Some(why), _) => Finding::missing(
            what,
            format!("this user may not create block devices or swap areas: {why:#}"),
            "have an agent of root's or the service venice-swap-helper running, and this user in its \
             group; or run `venice swap` and `venice run --mode swap` as root",
        ),
        (true, None, false) => Finding::missing(
            what,
            "root without CAP_SYS_ADMIN, as in a container, may not switch swap areas on",
            "give the container CAP_SYS_ADMIN, or run outside of it",
        ),
        (true, None, true) => {
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
        assert_eq!(swapping(true, None, true).state, State::Ok);
        assert!(by_helper(2).detail.contains("2 copies"));
        for (in_kernel, why_no_helper, is_admin, wanted) in [
            (false, None, true, "CONFIG_SWAP"),
            (true, Some("there is none"), false, "venice-swap-helper"),
            (true, None, false, "CAP_SYS_ADMIN"),
        ] {
            let why_no_helper = why_no_helper.map(anyhow::Error::msg);
            let finding = swapping(in_kernel, why_no_helper, is_admin);
            assert!(finding.stops(Mode::Swap) && finding.remedy.contains(wanted), "{finding:?}");
            assert!(!finding.stops(Mode::Paged) && !finding.stops(Mode::Window), "{finding:?}");
        }
    }
}
