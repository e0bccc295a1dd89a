//! Looks at the processes of a run for memory that Venice does not manage.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use venice_memory::paged::run_block::RunBlockMap;
use venice_recipient::runs::{Cause, Identity, Unmanaged, total_bytes};
use venice_wire::PAGE_BYTES;

use super::super::program;
use super::address_space::{self, AddressSpace};

/// Least memory of one cause in one process that counts: a program's text, libraries and stacks
/// have less.
const LEAST_BYTES: u64 = 4 << 20;
/// Change of a figure of `/proc/PID/status`, in parts of it, after which a process is looked at
/// again; at least [`LEAST_BYTES`].
const CHANGE_SHARE: u64 = 16;
/// Age from which a process with the shim and without a pager is no longer being forked, or about
/// to call `exec`.
const SETTLED: Duration = Duration::from_secs(1);

/// The processes of a run, and their unmanaged memory.
pub struct ProcessWatch {
    block: Arc<RunBlockMap>,
    /// The program, the first process of the run.
    first: u32,
    seen: BTreeMap<u32, Seen>,
}

/// A process of the run.
struct Seen {
    identity: Identity,
    since: Instant,
    /// Its figures when its address space was read.
    figures: Figures,
    unmanaged: BTreeMap<Cause, u64>,
}

/// The cheap figures of a process, in bytes: memory beside what its pager manages, shared memory,
/// huge pages, locked memory.
type Figures = [u64; 4];

impl ProcessWatch {
    /// Begins with the process `first`.
    pub fn new(block: Arc<RunBlockMap>, first: u32) -> ProcessWatch {
        ProcessWatch { block, first, seen: BTreeMap::new() }
    }

    /// Returns the unmanaged memory of all living processes by cause.
    pub fn look(&mut self) -> Vec<Unmanaged> {
        self.find_processes();
        let attached = attached(&self.block);
        for (&pid, seen) in &mut self.seen {
            seen.look(pid, attached.get(&pid).copied(), self.block.is_window());
        }
        let mut parts: BTreeMap<Cause, (Unmanaged, u64)> = BTreeMap::new();
        for (&pid, seen) in &self.seen {
            for (&cause, &bytes) in &seen.unmanaged {
                let part = parts.entry(cause).or_insert_with(|| {
                    (Unmanaged { cause, bytes: 0, pid, name: String::new() }, 0)
                });
                part.0.bytes += bytes;
                if bytes > part.1 {
                    (part.0.pid, part.1) = (pid, bytes);
                }
            }
        }
        let named = |(part, _): (Unmanaged, u64)| Unmanaged { name: name_of(part.pid), ..part };
        parts.into_values().map(named).collect()
    }

    /// Adds new processes: attached ones, and children of those known. Forgets ended ones.
    fn find_processes(&mut self) {
        self.seen.retain(|_, seen| seen.identity.exists());
        let mut found: Vec<u32> = attached(&self.block).into_keys().collect();
        found.push(self.first);
        found.extend(self.seen.keys());
        let mut next = 0;
        while let Some(&pid) = found.get(next) {
            next += 1;
            if let std::collections::btree_map::Entry::Vacant(entry) = self.seen.entry(pid) {
                let Some(identity) = Identity::of(pid) else { continue };
                entry.insert(Seen::new(identity));
            }
            let new = children(pid).into_iter().filter(|child| !found.contains(child));
            found.extend(new.collect::<Vec<_>>());
        }
    }
}

impl Seen {
    fn new(identity: Identity) -> Seen {
        let (figures, unmanaged) = (Figures::default(), BTreeMap::new());
        Seen { identity, since: Instant::now(), figures, unmanaged }
    }

    /// Reads the process again if it has changed; `managed_bytes`: its pager has so much resident.
    fn look(&mut self, pid: u32, managed_bytes: Option<u64>, is_window: bool) {
        let Some(figures) = figures(pid, managed_bytes.unwrap_or(0)) else { return };
        if !differ(figures, self.figures) {
            return;
        }
        let is_new = managed_bytes.is_none() && self.since.elapsed() < SETTLED;
        if is_new && address_space::has_shim(pid) {
            return;
        }
        let mut unmanaged = match AddressSpace::of(pid) {
            Ok(space) => match (managed_bytes.is_some() && space.has_run_block, is_window) {
                // The slabs themselves are the memory of a window.
                (true, true) => BTreeMap::new(),
                (true, false) => space.unmanaged,
                (false, _) => BTreeMap::from([(cause(pid, space.has_shim), space.total_bytes)]),
            },
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let [anonymous, shared, huge, _locked] = figures;
                BTreeMap::from([(Cause::SetUser, anonymous + shared + huge)])
            }
            // It has ended.
            Err(_) => return,
        };
        unmanaged.retain(|_, bytes| *bytes >= LEAST_BYTES);
        (self.figures, self.unmanaged) = (figures, unmanaged);
    }
}

/// Returns the attached processes with the bytes that their pagers have resident.
fn attached(block: &RunBlockMap) -> BTreeMap<u32, u64> {
    let bytes = |pages: u64| pages * PAGE_BYTES;
    let processes = block.live_processes().map(|(_, process)| {
        let resident_pages = process.resident_pages.load(Ordering::Relaxed);
        (process.pid.load(Ordering::Acquire), bytes(resident_pages))
    });
    processes.collect()
}

/// Returns the children of all threads of a process (proc_tid_children(5)).
fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let read = |path: PathBuf| fs::read_to_string(path.join("children")).unwrap_or_default();
    let lists = threads.flatten().map(|thread| read(thread.path()));
    let pids = lists.flat_map(|list| {
        list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
    });
    pids.collect()
}

/// Reads the cheap figures (proc_pid_status(5)); `None`: it has ended.
fn figures(pid: u32, managed_bytes: u64) -> Option<Figures> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(figures_in(&text, managed_bytes))
}

fn figures_in(text: &str, managed_bytes: u64) -> Figures {
    let [anonymous, shared, huge, locked] = ["RssAnon:", "RssShmem:", "HugetlbPages:", "VmLck:"]
        .map(|name| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok());
            kib.unwrap_or(0u64) << 10
        });
    [anonymous.saturating_sub(managed_bytes), shared, huge, locked]
}

/// True if a figure differs so much that the process is worth a look.
fn differ(figures: Figures, before: Figures) -> bool {
    let differs =
        |(now, before): (u64, u64)| now.abs_diff(before) >= LEAST_BYTES.max(before / CHANGE_SHARE);
    figures.into_iter().zip(before).any(differs)
}

/// Returns the reason why a process has no pager.
fn cause(pid: u32, has_shim: bool) -> Cause {
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    if has_shim {
        Cause::Forked
    } else if program::check(&exe).is_err() {
        Cause::StaticProgram
    } else if changes_user(&exe) {
        Cause::SetUser
    } else {
        Cause::NoShim
    }
}

fn changes_user(exe: &Path) -> bool {
    const SET_ID_BITS: u32 = 0o6000;
    exe.metadata().is_ok_and(|meta| meta.permissions().mode() & SET_ID_BITS != 0)
}

fn name_of(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map_or_else(|_| "?".to_owned(), |name| name.trim_end().to_owned())
}

/// True if so much unmanaged memory is reported, where a run may have `local_bytes`: 16 MiB at
/// least, and a sixteenth of the budget.
pub fn is_much(parts: &[Unmanaged], local_bytes: u64) -> bool {
    const LEAST_TOTAL_BYTES: u64 = 16 << 20;
    const SHARE_OF_LOCAL: u64 = 16;
    total_bytes(parts) >= LEAST_TOTAL_BYTES.max(local_bytes / SHARE_OF_LOCAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_leave_managed_memory_out() {
        let text = "Name:\tx\nVmLck:\t      16 kB\nRssAnon:\t    3000 kB\nRssShmem:\t  8 kB\n";
        assert_eq!(figures_in(text, 1000 << 10), [2000 << 10, 8 << 10, 0, 16 << 10]);
        assert_eq!(figures_in(text, 4000 << 10)[0], 0);
    }

    #[test]
    fn small_changes_are_not_read() {
        let before = [100 << 20, 0, 0, 0];
        assert!(!differ([106 << 20, 3 << 20, 0, 0], before));
        assert!(differ([107 << 20, 0, 0, 0], before) && differ([100 << 20, 0, 4 << 20, 0], before));
        assert!(differ([0; 4], before), "freed memory is looked at too");
    }

    #[test]
    fn threshold_follows_local_budget() {
        let part = |bytes| Unmanaged { cause: Cause::Stack, bytes, pid: 1, name: String::new() };
        assert!(!is_much(&[part(15 << 20)], 0) && is_much(&[part(8 << 20), part(8 << 20)], 0));
        assert!(!is_much(&[part(63 << 20)], 1 << 30) && is_much(&[part(64 << 20)], 1 << 30));
    }

    #[test]
    fn own_children_are_found() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(children(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
