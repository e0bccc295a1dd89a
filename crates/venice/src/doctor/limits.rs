//! Resource limits: locked memory for donors, open files for recipients.

use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use super::{Finding, kernel};
use venice_cli::terminal;

/// Below this limit a donor cannot lock even a few slabs.
const SMALL_MEMLOCK_BYTES: u64 = 1 << 30;
/// A recipient needs one descriptor per slab of 16 MiB: 4096 descriptors cover 64 GiB.
const FEW_FILES: u64 = 4096;

/// Rows about limits.
pub fn examine() -> Vec<Finding> {
    vec![
        locked_memory(
            getrlimit(Resource::Memlock).current,
            kernel::has_capability(CapabilitySet::IPC_LOCK),
        ),
        open_files(getrlimit(Resource::Nofile).current),
    ]
}

fn locked_memory(limit_bytes: Option<u64>, capable: bool) -> Finding {
    let what = "locked memory";
    match limit_bytes {
        _ if capable => Finding::ok(what, "no limit for this user (CAP_IPC_LOCK)"),
        None => Finding::ok(what, "no limit"),
        Some(bytes) if bytes >= SMALL_MEMLOCK_BYTES => {
            Finding::ok(what, format!("up to {}", terminal::bytes(bytes)))
        }
        Some(bytes) => Finding::warn(
            what,
            format!("up to {}: agents cannot lock what they lend", terminal::bytes(bytes)),
            "`ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, or run as root",
        ),
    }
}

fn open_files(limit: Option<u64>) -> Finding {
    match limit {
        None => Finding::ok("open files", "no limit"),
        Some(n) if n >= FEW_FILES => Finding::ok("open files", format!("up to {n}")),
        Some(n) => Finding::warn(
            "open files",
            format!("up to {n}; a recipient holds one for every 16 MiB it borrows"),
            "`ulimit -n 65536`, or LimitNOFILE=65536 in a systemd unit",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn small_memlock_warns_without_capability() {
        assert_eq!(locked_memory(Some(8 << 20), false).state, State::Warn);
        assert_eq!(locked_memory(Some(8 << 20), true).state, State::Ok);
        assert_eq!(locked_memory(None, false).state, State::Ok);
        assert_eq!(open_files(Some(1024)).state, State::Warn);
        assert_eq!(open_files(Some(20_000)).state, State::Ok);
    }
}
