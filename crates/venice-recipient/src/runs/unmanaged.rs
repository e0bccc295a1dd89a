//! Memory of a run that Venice does not manage: it stays on this machine, whatever the budget.

use serde::{Deserialize, Serialize};

/// The reason why memory is not managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Memory with a name that processes share and no shared pager serves: memfds that can be sealed,
    /// POSIX and System V segments.
    SharedMemory,
    /// Shared anonymous memory (`MAP_SHARED`), where no shared pager serves it.
    SharedAnonymous,
    /// Mapped by a system call of the program's own, not by the C library.
    PastLibrary,
    /// Advised `MADV_WIPEONFORK`, or kept from forks by a bare system call.
    Advice,
    /// Locked by `mlock` or `mlockall`, or mapped with `MAP_LOCKED`.
    Locked,
    /// Stacks: the first thread's, and those mapped with `MAP_STACK`.
    Stack,
    /// Huge pages of hugetlbfs.
    Hugetlb,
    /// Static data of the program and its libraries, written pages of private file mappings, and
    /// the heap from before the shim was loaded.
    StaticData,
    /// A process that is a static program, or has another C library than glibc.
    StaticProgram,
    /// A process that changed its user as it started (set-user-id): the kernel drops the shim.
    SetUser,
    /// A forked process without a pager: by a bare `clone`, beyond the limit of processes, or
    /// over verbs.
    Forked,
    /// Any other process without a pager: its environment was changed by a bare `execve`.
    NoShim,
}

impl Cause {
    /// Describes the memory, for users.
    pub fn describe(self) -> &'static str {
        match self {
            Cause::SharedMemory => "shared memory",
            Cause::SharedAnonymous => "shared anonymous memory",
            Cause::PastLibrary => "memory mapped by system calls past the C library",
            Cause::Advice => "memory advised MADV_WIPEONFORK",
            Cause::Locked => "memory locked by mlock",
            Cause::Stack => "stacks",
            Cause::Hugetlb => "huge pages of hugetlbfs",
            Cause::StaticData => "static data, or other pages of mapped files that it has changed",
            Cause::StaticProgram => "a static program, or one of another C library",
            Cause::SetUser => "a set-user-id program, which drops the shim",
            Cause::Forked => "a forked process without a pager",
            Cause::NoShim => "a process started without the shim",
        }
    }

    /// Returns the remedy, for users.
    pub fn remedy(self) -> &'static str {
        match self {
            Cause::SharedMemory
            | Cause::PastLibrary
            | Cause::Advice
            | Cause::StaticData
            | Cause::StaticProgram => "use --mode swap",
            Cause::SharedAnonymous => {
                "see the row \"shared memory\" of `venice doctor`, or use --mode swap"
            }
            Cause::Locked => "turn locking off in the program, or add it to --local",
            Cause::Stack => "use --mode swap, or fewer threads",
            Cause::Hugetlb => "turn huge pages off in the program",
            Cause::SetUser => "start it as that user, or use --mode swap",
            Cause::Forked => "use fewer processes (64 page at a time), or --mode swap",
            Cause::NoShim => {
                "keep LD_PRELOAD and VENICE_RUN_SOCKET in its environment, or use --mode swap"
            }
        }
    }
}

/// Unmanaged memory of one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmanaged {
    /// The cause.
    pub cause: Cause,
    /// Resident bytes. Memory that processes share is divided among them.
    pub bytes: u64,
    /// The process that has most of it.
    pub pid: u32,
    /// The name of that process.
    pub name: String,
}

impl std::fmt::Display for Unmanaged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = venice_wire::ByteSize(self.bytes);
        let (what, remedy) = (self.cause.describe(), self.cause.remedy());
        write!(f, "{bytes} not managed: {what} ({}, process {}): {remedy}", self.name, self.pid)
    }
}

/// Returns all bytes of `parts`.
pub fn total_bytes(parts: &[Unmanaged]) -> u64 {
    parts.iter().map(|part| part.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_names_cause_and_remedy() {
        let (pid, name) = (7, "db".to_owned());
        let part = Unmanaged { cause: Cause::SharedMemory, bytes: 3 << 20, pid, name };
        let said = "3MiB not managed: shared memory (db, process 7): use --mode swap";
        assert_eq!(part.to_string(), said);
        let json = serde_json::to_value(&part).unwrap();
        assert_eq!(json["cause"], "shared-memory");
        assert_eq!(total_bytes(&[part.clone(), part]), 6 << 20);
    }
}
