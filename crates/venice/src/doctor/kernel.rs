//! The kernel: its version, and userfaultfd with its permissions.

use std::fs;
use std::path::Path;

use rustix::thread::CapabilitySet;
use venice_memory::paged::{FilesError, LookError, PinLook, Uffd, sys};
use venice_sockets::can_refuse_descriptors;

use super::{Finding, Mode};

/// Kernel versions that introduced what the pager uses, oldest first.
const FEATURES: [(u32, u32, &str); 3] = [
    (6, 6, "UFFDIO_POISON (a clear signal when a donor is lost)"),
    (6, 7, "PAGEMAP_SCAN (whether a page is a huge one)"),
    (6, 8, "UFFDIO_MOVE (eviction without a copy)"),
];
/// Name of the check whether memory mapped by a window can move.
pub const HELD_WRITES: &str = "write protection";
const SYSCTL: &str = "/proc/sys/vm/unprivileged_userfaultfd";
const EPERM: i32 = 1;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;

/// Rows about the kernel.
pub fn examine() -> Vec<Finding> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let ptrace = has_capability(CapabilitySet::SYS_PTRACE);
    vec![
        version(&release),
        userfaultfd(probe(Uffd::open), ptrace),
        fork_events(ptrace || probe(Uffd::open).is_ok()),
        held_writes(probe(Uffd::open_for_writes)),
        shared_memory(PinLook::new().map(drop)),
        local_sockets(can_refuse_descriptors()),
        seccomp(),
    ]
}

/// Opens a userfaultfd as the pager or the window does; returns the errno if that is refused.
fn probe(open: impl Fn() -> sys::SysResult<Uffd>) -> Result<(), i32> {
    let opened = open().map_err(|errno| errno.0)?;
    sys::close(opened.fd);
    Ok(())
}

/// True if `capability` is in the effective set of this process.
pub fn has_capability(capability: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

fn version(release: &str) -> Finding {
    let Some(version) = parse_release(release) else {
        return Finding::warn(
            "kernel",
            format!("Linux {release}, unknown version format"),
            "use Linux 6.8 or newer",
        );
    };
    let lacking: Vec<&str> = FEATURES
        .iter()
        .filter(|(major, minor, _)| version < (*major, *minor))
        .map(|(_, _, what)| *what)
        .collect();
    let finding = if lacking.is_empty() {
        let detail = format!("Linux {release}: UFFDIO_MOVE, UFFDIO_POISON, PAGEMAP_SCAN");
        Finding::ok("kernel", detail)
    } else {
        let detail = format!("Linux {release} lacks {}", lacking.join(", "));
        Finding::missing("kernel", detail, "boot Linux 6.8 or newer")
    };
    finding.needed_by(&[Mode::Paged])
}

/// `6.18.44-arch1` → (6, 18)
fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn userfaultfd(probe: Result<(), i32>, ptrace: bool) -> Finding {
    let what = "userfaultfd";
    let finding = match probe {
        Ok(()) => Finding::ok(what, "usable, with fork events, UFFDIO_POISON and UFFDIO_MOVE"),
        Err(EPERM) if ptrace => Finding::missing(
            what,
            "refused despite CAP_SYS_PTRACE (a container's seccomp filter?)",
            "allow the userfaultfd system call in the container's seccomp profile",
        ),
        Err(EPERM) => Finding::missing(
            what,
            "refused: faults in system calls and fork events need CAP_SYS_PTRACE",
            "join the group that may borrow here (usermod -aG venice USER, then log in again), with \
             an agent of root's or the service venice-helper running; or run as root",
        ),
        Err(EINVAL) => Finding::missing(
            what,
            "the kernel lacks fork events, UFFDIO_POISON or UFFDIO_MOVE",
            "boot Linux 6.8 or newer",
        ),
        Err(ENOSYS) if !Path::new(SYSCTL).exists() => Finding::missing(
            what,
            format!("the kernel was built without it ({SYSCTL} is not there)"),
            "boot a kernel with CONFIG_USERFAULTFD=y",
        ),
        Err(number) => Finding::missing(
            what,
            format!("refused: {}", std::io::Error::from_raw_os_error(number)),
            "check whether a container's seccomp profile forbids the userfaultfd system call",
        ),
    };
    finding.needed_by(&[Mode::Paged])
}

fn fork_events(usable: bool) -> Finding {
    if usable {
        return Finding::ok("fork events", "usable: programs may fork");
    }
    Finding::warn(
        "fork events",
        "refused: programs whose children go on (Redis BGSAVE) are unsupported",
        "see userfaultfd",
    )
}

/// The look at pinned pages, without which shared memory is not paged.
fn shared_memory(tried: Result<(), LookError>) -> Finding {
    let what = "shared memory";
    let Err(error) = tried else {
        return shared_files(what, FilesError::tried());
    };
    let remedy = match error {
        LookError::NoTypes => "boot a kernel with CONFIG_DEBUG_INFO_BTF=y",
        LookError::Refused(_) | LookError::Run(_) => {
            "run as root, or with CAP_BPF and CAP_PERFMON; without lockdown of confidentiality \
             (/sys/kernel/security/lockdown); in a container, allow the bpf system call"
        }
        LookError::Pipe(_) => "raise /proc/sys/fs/pipe-user-pages-soft, or run as root",
        LookError::Unknown(_) | LookError::Trial => {
            "use --mode swap for programs with much shared memory, and report this kernel"
        }
    };
    Finding::warn(what, format!("stays local, beyond --local: {error}"), remedy)
}

/// The mount of the shared files, without which memfds and POSIX shared memory are not paged.
fn shared_files(what: &'static str, tried: Result<(), FilesError>) -> Finding {
    let Err(error) = tried else {
        return Finding::ok(what, "paged: pins are seen by BPF, files are served by FUSE");
    };
    let remedy = match error {
        FilesError::Device(_) => "`modprobe fuse`; in a container, give it /dev/fuse",
        FilesError::Mount(_) | FilesError::Kernel(_) | FilesError::Thread(_) => {
            "run as root, or with CAP_SYS_ADMIN; in a container, allow the fsopen system call"
        }
    };
    let detail = format!(
        "memory without a descriptor is paged; memfds and POSIX shared memory stay local, beyond \
         --local: {error}"
    );
    Finding::warn(what, detail, remedy)
}

/// Write protection of shared memory by userfaultfd, which a window needs to move memory in use.
fn held_writes(probe: Result<(), i32>) -> Finding {
    match probe {
        Ok(()) => Finding::ok(
            HELD_WRITES,
            "userfaultfd write-protects shared memory: memory mapped by --mode window can move",
        ),
        Err(EPERM) => Finding::warn(
            HELD_WRITES,
            "refused to this user: memory mapped by --mode window cannot move",
            format!(
                "join the group that may borrow here, run as root, let this user open \
                 /dev/userfaultfd, or `sysctl -w \
                 vm.unprivileged_userfaultfd=1` ({SYSCTL}); in a container, allow the userfaultfd \
                 system call in its seccomp profile"
            ),
        ),
        Err(EINVAL) => Finding::warn(
            HELD_WRITES,
            "no write protection of shared memory: memory mapped by --mode window cannot move",
            "boot Linux 5.19 or newer with CONFIG_PTE_MARKER_UFFD_WP=y",
        ),
        Err(ENOSYS) => Finding::warn(
            HELD_WRITES,
            "no userfaultfd: memory mapped by --mode window cannot move",
            "boot a kernel with CONFIG_USERFAULTFD=y; in a container, allow the userfaultfd system \
             call in its seccomp profile",
        ),
        Err(number) => Finding::warn(
            HELD_WRITES,
            format!("refused: {}", std::io::Error::from_raw_os_error(number)),
            "check whether a container's seccomp profile forbids the userfaultfd system call",
        ),
    }
}

/// The option by which the sockets of daemons refuse descriptors.
fn local_sockets(can_refuse: bool) -> Finding {
    let what = "local sockets";
    match can_refuse {
        true => Finding::ok(what, "those of daemons refuse descriptors that they do not want"),
        false => Finding::warn(
            what,
            "the kernel lets members of the group send descriptors whose closing stops daemons",
            "boot Linux 6.16 or newer (SO_PASSRIGHTS), or have only trusted users in the group",
        ),
    }
}

fn seccomp() -> Finding {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    match mode {
        Some("2") => Finding::warn(
            "seccomp",
            "this process has a filter (a container's?), which may refuse userfaultfd",
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
    fn old_kernel_names_missing_features() {
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
    fn old_kernel_takes_descriptors() {
        assert_eq!(local_sockets(true).state, State::Ok);
        let finding = local_sockets(false);
        assert!(finding.state == State::Warn && finding.remedy.contains("6.16"), "{finding:?}");
    }

    #[test]
    fn userfaultfd_refusal_has_remedy() {
        assert_eq!(userfaultfd(Ok(()), true).state, State::Ok);
        for (number, ptrace) in [(EPERM, true), (EPERM, false), (EINVAL, true), (ENOSYS, true)] {
            let finding = userfaultfd(Err(number), ptrace);
            assert_eq!(finding.state, State::Missing);
            assert!(finding.stops(Mode::Paged) && !finding.remedy.is_empty(), "{finding:?}");
            // Without userfaultfd a window works, but cannot move memory.
            assert!(!finding.stops(Mode::Window) && !finding.stops(Mode::Swap), "{finding:?}");
        }
    }

    #[test]
    fn write_protection_refusal_has_remedy() {
        assert_eq!(held_writes(Ok(())).state, State::Ok);
        for number in [EPERM, EINVAL, ENOSYS, 5] {
            let finding = held_writes(Err(number));
            assert_eq!(finding.state, State::Warn, "{finding:?}");
            assert!(Mode::ALL.iter().all(|mode| !finding.stops(*mode)), "{finding:?}");
        }
        assert!(held_writes(Err(EPERM)).remedy.contains("vm.unprivileged_userfaultfd=1"));
        assert!(held_writes(Err(EINVAL)).remedy.contains("5.19"));
    }

    #[test]
    fn probe_closes_its_descriptor() {
        let count = || fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        // Other tests open files meanwhile: only a leak of every probe exceeds the margin.
        let before = count();
        for _ in 0..200 {
            let _ = probe(Uffd::open);
            let _ = probe(Uffd::open_for_writes);
        }
        assert!(count() < before + 150, "descriptors leak");
    }
}
