//! Availability of huge pages of 2 MiB for a pager on this machine.
//!
//! Sources: `Documentation/admin-guide/mm/transhuge.rst` of the kernel; `UFFDIO_MOVE` in
//! `mm/userfaultfd.c`, which splits a huge page where there is a table of small ones;
//! `mm/pt_reclaim.c` (Linux 6.14), which frees such a table.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::PAGE;
use super::page_size::HUGE_BYTES;
use super::presence::Presence;
use super::sys::{self, Errno};
use super::uffd::Uffd;

const ALL_SIZES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const OF_2_MIB: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";

/// The reason why huge pages are unavailable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoHugePages {
    /// The kernel was built without them.
    #[error(
        "huge pages are unavailable: this kernel has no transparent huge pages ({ALL_SIZES} is missing)"
    )]
    NotBuilt,
    /// They are switched off.
    #[error("transparent huge pages are switched off: run `echo madvise > {file}` as root")]
    Off {
        /// The file that switches them.
        file: &'static str,
    },
    /// The kernel keeps a table of small pages wherever a page was touched.
    #[error(
        "this kernel does not free its tables of small pages: boot Linux 6.14 or newer with \
         CONFIG_PT_RECLAIM"
    )]
    TablesStay,
    /// The trial failed.
    #[error("the trial of a huge page failed ({0})")]
    Untried(Errno),
}

/// Set once a huge page survived the move of a trial: the kernel does not change.
static MOVE_SURVIVED: AtomicBool = AtomicBool::new(false);

/// Checks the kernel's switches, and tries one huge page: it is moved to where a small page was.
/// If memory is so fragmented that there is none to try, huge pages count as available.
///
/// # Errors
/// [`NoHugePages`].
pub fn check_available() -> Result<(), NoHugePages> {
    let read = |path| fs::read_to_string(path).ok();
    check_switches(read(ALL_SIZES).as_deref(), read(OF_2_MIB).as_deref())?;
    if MOVE_SURVIVED.load(Relaxed) {
        return Ok(());
    }
    match survives_move(|| {}) {
        Ok(Some(false)) => Err(NoHugePages::TablesStay),
        Ok(survived) => {
            MOVE_SURVIVED.store(survived.is_some(), Relaxed);
            Ok(())
        }
        Err(errno) => Err(NoHugePages::Untried(errno)),
    }
}

/// Checks the contents of the two files; the one for 2 MiB came with Linux 6.8.
fn check_switches(all_sizes: Option<&str>, of_2_mib: Option<&str>) -> Result<(), NoHugePages> {
    let all_sizes = chosen(all_sizes.ok_or(NoHugePages::NotBuilt)?);
    match of_2_mib.map_or("inherit", chosen) {
        "always" | "madvise" => Ok(()),
        "never" => Err(NoHugePages::Off { file: OF_2_MIB }),
        _ if all_sizes == "never" => Err(NoHugePages::Off { file: ALL_SIZES }),
        _ => Ok(()),
    }
}

/// Returns the word in brackets.
fn chosen(choices: &str) -> &str {
    let word = choices.split_whitespace().find(|word| word.starts_with('[')).unwrap_or("");
    word.trim_matches(['[', ']'])
}

/// True if a huge page that is moved to where a small one was stays a huge one; `None`: there was
/// none to move. `meanwhile` runs between.
fn survives_move(meanwhile: impl FnOnce()) -> Result<Option<bool>, Errno> {
    let uffd = Uffd::open()?;
    let tried = sys::map_aligned(2 * HUGE_BYTES, HUGE_BYTES).and_then(|memory| {
        let tried = try_one(uffd, memory, meanwhile);
        // SAFETY: mapped here, and used by nothing else.
        unsafe { sys::unmap(memory as *mut _, 2 * HUGE_BYTES) };
        tried
    });
    sys::close(uffd.fd);
    tried
}

/// Does the same in 4 MiB of empty memory.
fn try_one(uffd: Uffd, memory: usize, meanwhile: impl FnOnce()) -> Result<Option<bool>, Errno> {
    let (from, to) = (memory, memory + HUGE_BYTES);
    // SAFETY: advice about fresh memory that nothing else uses, and its first bytes.
    unsafe {
        // A page shared with a child cannot be moved, and a fork by another thread would wait for
        // ever until its event is read here.
        sys::madvise(memory, 2 * HUGE_BYTES, sys::MADV_DONTFORK)?;
        sys::madvise(from, HUGE_BYTES, sys::MADV_HUGEPAGE)?;
        sys::madvise(to, HUGE_BYTES, sys::MADV_NOHUGEPAGE)?;
        (from as *mut u8).write_volatile(1);
        (to as *mut u8).write_volatile(1);
        sys::madvise(to, HUGE_BYTES, sys::MADV_DONTNEED)?;
    }
    meanwhile();
    let presence = Presence::open_here();
    let was_huge = presence.is_huge(from);
    let moved = uffd.register(to, HUGE_BYTES).and_then(|()| uffd.move_pages(to, from, HUGE_BYTES));
    let is_huge = presence.is_huge(to);
    presence.close();
    assert_eq!(moved? % PAGE, 0, "whole pages are moved");
    Ok(was_huge.filter(|was_huge| *was_huge).and(is_huge))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::process::{Signal, WaitOptions, kill_process, waitpid};

    use super::super::heap::tests::fork;
    use super::*;

    #[test]
    fn both_sysfs_switches_count() {
        let on = Some("always [madvise] never\n");
        let off = Some("always madvise [never]\n");
        let inherit = Some("always [inherit] madvise never\n");
        assert_eq!(check_switches(None, None), Err(NoHugePages::NotBuilt));
        assert_eq!(check_switches(on, None), Ok(()));
        assert_eq!(check_switches(on, inherit), Ok(()));
        assert_eq!(check_switches(off, inherit), Err(NoHugePages::Off { file: ALL_SIZES }));
        assert_eq!(check_switches(on, off), Err(NoHugePages::Off { file: OF_2_MIB }));
        assert_eq!(check_switches(off, on), Ok(()), "the switch of the size takes precedence");
    }

    #[test]
    fn huge_page_trial_runs() {
        match check_available() {
            Ok(()) => {}
            Err(none) => println!("SKIPPED: huge_page_trial_runs: {none}"),
        }
    }

    #[test]
    fn concurrent_fork_keeps_huge_page() {
        if let Err(none) = check_available() {
            println!("SKIPPED: concurrent_fork_keeps_huge_page: {none}");
            return;
        }
        let mut child = None;
        let survived = survives_move(|| child = Some(fork(sleep)));
        let child = child.unwrap();
        kill_process(child, Signal::KILL).unwrap();
        waitpid(Some(child), WaitOptions::empty()).unwrap();
        assert_ne!(survived, Ok(Some(false)));
        assert_eq!(survived.map(drop), Ok(()));
    }

    /// Sleeps in a child until it is killed.
    fn sleep() -> bool {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}
