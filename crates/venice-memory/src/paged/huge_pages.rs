//! Whether this machine has huge pages of 2 MiB for a pager.
//!
//! Sources: `Documentation/admin-guide/mm/transhuge.rst` of the kernel; `UFFDIO_MOVE` in
//! `mm/userfaultfd.c`, which splits a huge page where there is a table of small ones; `mm/pt_reclaim.c`
//! (Linux 6.14), by which such a table goes.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::PAGE;
use super::page_size::HUGE_BYTES;
use super::presence::Presence;
use super::sys::{self, Errno};
use super::uffd::Uffd;

const ALL_SIZES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const OF_2_MIB: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";

/// Why it has none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoHugePages {
    /// The kernel was built without them.
    #[error("this kernel has no transparent huge pages ({ALL_SIZES} is not there)")]
    NotBuilt,
    /// They are switched off.
    #[error("transparent huge pages are switched off: `echo madvise > {file}` as root")]
    Off {
        /// Where.
        file: &'static str,
    },
    /// What is touched has a table of small pages for good.
    #[error(
        "this kernel keeps its tables of small pages: boot Linux 6.14 or newer with \
         CONFIG_PT_RECLAIM"
    )]
    TablesStay,
    /// It could not be tried.
    #[error("a huge page could not be tried ({0}): see the rows on the kernel in `venice doctor`")]
    Untried(Errno),
}

/// The kernel does not change: one that stayed a huge page answers for all that come later.
static ONE_STAYED: AtomicBool = AtomicBool::new(false);

/// Asks the kernel, and tries one: it is moved to where a small page was. Where memory is so
/// fragmented that there is none to try, they count as being there.
///
/// # Errors
/// [`NoHugePages`].
pub fn are_to_be_had() -> Result<(), NoHugePages> {
    let read = |path| fs::read_to_string(path).ok();
    judge(read(ALL_SIZES).as_deref(), read(OF_2_MIB).as_deref())?;
    if ONE_STAYED.load(Relaxed) {
        return Ok(());
    }
    match stays_one(|| {}) {
        Ok(Some(false)) => Err(NoHugePages::TablesStay),
        Ok(stayed) => {
            ONE_STAYED.store(stayed.is_some(), Relaxed);
            Ok(())
        }
        Err(errno) => Err(NoHugePages::Untried(errno)),
    }
}

/// By what the two files say; the one for 2 MiB came with Linux 6.8.
fn judge(all_sizes: Option<&str>, of_2_mib: Option<&str>) -> Result<(), NoHugePages> {
    let all_sizes = chosen(all_sizes.ok_or(NoHugePages::NotBuilt)?);
    match of_2_mib.map_or("inherit", chosen) {
        "always" | "madvise" => Ok(()),
        "never" => Err(NoHugePages::Off { file: OF_2_MIB }),
        _ if all_sizes == "never" => Err(NoHugePages::Off { file: ALL_SIZES }),
        _ => Ok(()),
    }
}

/// The word in brackets.
fn chosen(choices: &str) -> &str {
    let word = choices.split_whitespace().find(|word| word.starts_with('[')).unwrap_or("");
    word.trim_matches(['[', ']'])
}

/// Does a huge page that is moved to where a small one was stay a huge one? `None`: there was none to
/// move. Others may do what they like meanwhile.
fn stays_one(meanwhile: impl FnOnce()) -> Result<Option<bool>, Errno> {
    let uffd = Uffd::open()?;
    let tried = sys::map_aligned(2 * HUGE_BYTES, HUGE_BYTES).and_then(|memory| {
        let tried = try_one(uffd, memory, meanwhile);
        // SAFETY: mapped here, and nobody else has it.
        unsafe { sys::unmap(memory as *mut _, 2 * HUGE_BYTES) };
        tried
    });
    sys::close(uffd.fd);
    tried
}

/// The same in 4 MiB of empty memory.
fn try_one(uffd: Uffd, memory: usize, meanwhile: impl FnOnce()) -> Result<Option<bool>, Errno> {
    let (from, to) = (memory, memory + HUGE_BYTES);
    // SAFETY: advice about fresh memory that nobody else has, and its first bytes.
    unsafe {
        // What a child has too cannot be moved; and a fork by another thread would wait for ever
        // until somebody here read of it.
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
    fn both_switches_count() {
        let on = Some("always [madvise] never\n");
        let off = Some("always madvise [never]\n");
        let inherit = Some("always [inherit] madvise never\n");
        assert_eq!(judge(None, None), Err(NoHugePages::NotBuilt));
        assert_eq!(judge(on, None), Ok(()));
        assert_eq!(judge(on, inherit), Ok(()));
        assert_eq!(judge(off, inherit), Err(NoHugePages::Off { file: ALL_SIZES }));
        assert_eq!(judge(on, off), Err(NoHugePages::Off { file: OF_2_MIB }));
        assert_eq!(judge(off, on), Ok(()), "the size's own comes first");
    }

    #[test]
    fn one_is_tried() {
        match are_to_be_had() {
            Ok(()) => {}
            Err(none) => println!("SKIPPED: one_is_tried: {none}"),
        }
    }

    #[test]
    fn it_does_not_matter_who_forks_meanwhile() {
        if let Err(none) = are_to_be_had() {
            println!("SKIPPED: it_does_not_matter_who_forks_meanwhile: {none}");
            return;
        }
        let mut child = None;
        let stayed = stays_one(|| child = Some(fork(sleep)));
        let child = child.unwrap();
        kill_process(child, Signal::KILL).unwrap();
        waitpid(Some(child), WaitOptions::empty()).unwrap();
        assert_ne!(stayed, Ok(Some(false)));
        assert_eq!(stayed.map(drop), Ok(()));
    }

    /// What a child does until it is killed.
    fn sleep() -> bool {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}
