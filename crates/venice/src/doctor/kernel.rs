//! The kernel: its version, userfaultfd and who may use it.

use std::fs::{self, OpenOptions};
use std::path::Path;

use rustix::thread::CapabilitySet;

use super::Finding;

/// Kernel versions that brought what the pager uses, oldest first.
const FEATURES: [(u32, u32, &str); 3] = [
    (6, 6, "UFFDIO_POISON (a clear signal when a donor is lost)"),
    (6, 7, "PAGEMAP_SCAN and asynchronous write protection (dirty tracking)"),
    (6, 8, "UFFDIO_MOVE (eviction without a copy)"),
];
const SYSCTL: &str = "/proc/sys/vm/unprivileged_userfaultfd";
const DEVICE: &str = "/dev/userfaultfd";

/// Rows about the kernel.
pub fn examine() -> Vec<Finding> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let ptrace = has_capability(CapabilitySet::SYS_PTRACE);
    let access = Access {
        compiled: Path::new(SYSCTL).exists(),
        ptrace,
        sysctl: fs::read_to_string(SYSCTL).is_ok_and(|text| text.trim() == "1"),
        device: OpenOptions::new().read(true).write(true).open(DEVICE).is_ok(),
    };
    vec![version(&release), userfaultfd(&access), fork_events(ptrace), seccomp()]
}

/// Whether this process holds `capability` in its effective set.
pub fn has_capability(capability: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

fn version(release: &str) -> Finding {
    let Some(version) = parse_release(release) else {
        return Finding::warn(
            "kernel",
            format!("Linux {release}, a version this doctor cannot read"),
            "see that it is Linux 6.8 or newer",
        )
        .required();
    };
    let lacking: Vec<&str> = FEATURES
        .iter()
        .filter(|(major, minor, _)| version < (*major, *minor))
        .map(|(_, _, what)| *what)
        .collect();
    if lacking.is_empty() {
        let detail = format!("Linux {release}: UFFDIO_MOVE, UFFDIO_POISON, PAGEMAP_SCAN");
        return Finding::ok("kernel", detail).required();
    }
    let detail = format!("Linux {release} lacks {}", lacking.join(", "));
    Finding::missing("kernel", detail, "boot Linux 6.8 or newer").required()
}

/// `6.18.44-arch1` → (6, 18)
fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The ways to a userfaultfd that also serves the kernel's own accesses.
struct Access {
    compiled: bool,
    ptrace: bool,
    sysctl: bool,
    device: bool,
}

fn userfaultfd(access: &Access) -> Finding {
    if !access.compiled {
        return Finding::missing(
            "userfaultfd",
            format!("the kernel was built without it ({SYSCTL} is not there)"),
            "boot a kernel with CONFIG_USERFAULTFD=y",
        )
        .required();
    }
    let mut ways = Vec::new();
    if access.ptrace {
        ways.push("the system call, by CAP_SYS_PTRACE");
    }
    if access.sysctl {
        ways.push("the system call, open to everybody (vm.unprivileged_userfaultfd=1)");
    }
    if access.device {
        ways.push(DEVICE);
    }
    if !ways.is_empty() {
        return Finding::ok("userfaultfd", format!("through {}", ways.join("; "))).required();
    }
    Finding::missing(
        "userfaultfd",
        "only for user-mode faults: a read() into far memory would fail",
        "run as root, or `sysctl -w vm.unprivileged_userfaultfd=1`, or give this user read and \
         write access to /dev/userfaultfd",
    )
    .required()
}

fn fork_events(ptrace: bool) -> Finding {
    if ptrace {
        return Finding::ok("fork events", "CAP_SYS_PTRACE is held: programs may fork");
    }
    Finding::warn(
        "fork events",
        "no CAP_SYS_PTRACE: a program that forks and goes on (Redis BGSAVE) cannot be followed",
        "run as root, or with CAP_SYS_PTRACE as an ambient capability",
    )
}

fn seccomp() -> Finding {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    match mode {
        Some("2") => Finding::warn(
            "seccomp",
            "a filter is on this process, as containers have it: it may refuse userfaultfd",
            "allow the userfaultfd system call in the container's seccomp profile",
        ),
        _ => Finding::ok("seccomp", "no filter on this process"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn releases_parse() {
        assert_eq!(parse_release("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(parse_release("6.8.0-31-generic"), Some((6, 8)));
        assert_eq!(parse_release("7.0"), Some((7, 0)));
        assert_eq!(parse_release("linux"), None);
    }

    #[test]
    fn old_kernels_are_told_what_they_lack() {
        let finding = version("6.1.0-13-amd64");
        assert_eq!(finding.state, State::Missing);
        assert!(finding.detail.contains("UFFDIO_MOVE"), "{finding:?}");
        let finding = version("6.7.3");
        assert!(finding.detail.contains("UFFDIO_MOVE"), "{finding:?}");
        assert!(!finding.detail.contains("UFFDIO_POISON"), "{finding:?}");
        assert_eq!(version("6.8.1").state, State::Ok);
        assert_eq!(version("what").state, State::Warn);
    }

    #[test]
    fn one_way_in_is_enough() {
        let shut = || Access { compiled: true, ptrace: false, sysctl: false, device: false };
        assert_eq!(userfaultfd(&shut()).state, State::Missing);
        assert_eq!(userfaultfd(&Access { device: true, ..shut() }).state, State::Ok);
        assert_eq!(userfaultfd(&Access { sysctl: true, ..shut() }).state, State::Ok);
        assert_eq!(userfaultfd(&Access { ptrace: true, ..shut() }).state, State::Ok);
        let none = Access { compiled: false, ptrace: true, sysctl: true, device: true };
        assert_eq!(userfaultfd(&none).state, State::Missing);
    }
}
