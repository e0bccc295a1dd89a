//! Anchor page: one page of a file that a memory cgroup never loses, so that reclaim always scans
//! its pages.
//!
//! The kernel decides by statistics that are up to some seconds old whether to scan a group's
//! active pages (`inactive_is_low` in `mm/vmscan.c`; flushed every two seconds). A program that
//! starts to use all its memory at once makes all its pages active within a fraction of that time.
//! Then the statistics report inactive pages although there are none. If the group has no page of a
//! file either, reclaim scans nothing at all and the kernel kills the program, although swap has
//! room. With a page of a file on the group's lists it does scan, finds too little, and then turns
//! to the active pages whatever the statistics report.
//!
//! The page is one of the swap device, read outside all its used ranges; a pipe without reads holds
//! it. It is not locked in memory: locked pages are on none of the lists that reclaim scans.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::path::Path;

use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use venice_wire::PAGE_BYTES;

use crate::{SwapError, sys};

/// Other anchors may hold pages of the same device.
const MOST_HELD: u64 = 1024;

/// The anchor of a group. Once it is dropped, the page may go.
#[derive(Debug)]
pub(crate) struct Anchor {
    device: File,
    last_page: u64,
    held: HeldPage,
}

/// The holder of the page. It does not block the removal of the device.
#[derive(Debug)]
pub(crate) struct HeldPage {
    // Without a reader the pipe would hold nothing.
    _reader: PipeReader,
    writer: PipeWriter,
}

impl Anchor {
    /// Prepares a page of `device`, which a process of the group then charges by [`Anchor::lay`].
    pub(crate) fn on(device: &Path) -> Result<Self, SwapError> {
        let mut file = File::open(device).map_err(SwapError::file("open", device))?;
        let len_bytes = file.seek(SeekFrom::End(0)).map_err(SwapError::file("measure", device))?;
        let pipe = std::io::pipe().map_err(SwapError::file("hold a page of", device))?;
        let (reader, writer) = pipe;
        let held = HeldPage { _reader: reader, writer };
        let last_page = len_bytes.saturating_sub(PAGE_BYTES) / PAGE_BYTES;
        Ok(Self { device: file, last_page, held })
    }

    /// Reads the page, which is charged to the group of the calling process, and holds it. Neither
    /// allocates nor locks.
    pub(crate) fn lay(&self) -> std::io::Result<()> {
        // From the last page backwards: nothing follows that the kernel would read along with it.
        let pages = (0..=self.last_page).rev().take(MOST_HELD as usize);
        for offset in pages.map(|page| page * PAGE_BYTES) {
            // Another process may have read the device before, and been charged for the page.
            fadvise(&self.device, offset, NonZeroU64::new(PAGE_BYTES), Advice::DontNeed)?;
            // Still cached: another group's anchor holds it.
            if !sys::is_cached(&self.device, offset)? {
                sys::splice(&self.device, offset, &self.held.writer, PAGE_BYTES as usize)?;
                return Ok(());
            }
        }
        Err(Errno::BUSY.into())
    }

    /// Returns the holder of the page alone, once it is charged.
    pub(crate) fn into_held(self) -> HeldPage {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_hold_different_pages() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        std::fs::write(&path, vec![1; 3 * PAGE_BYTES as usize]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        let is_cached = || {
            fadvise(&file, 0, NonZeroU64::new(3 * PAGE_BYTES), Advice::DontNeed).unwrap();
            [0, 1, 2].map(|page| sys::is_cached(&file, page * PAGE_BYTES).unwrap())
        };
        if is_cached() != [false; 3] {
            return println!(
                "SKIPPED: anchors_hold_different_pages: {} is not on a disk",
                path.display()
            );
        }
        // Another processor may reference a page for a moment, and it is not freed then.
        let comes_to = |wanted| {
            let pause = || std::thread::sleep(std::time::Duration::from_millis(10));
            (0..200).any(|_| is_cached() == wanted || (pause(), false).1)
        };
        let mut held = Vec::new();
        for wanted in [[false, false, true], [false, true, true], [true; 3]] {
            let anchor = Anchor::on(&path).unwrap();
            anchor.lay().unwrap();
            held.push(anchor.into_held());
            assert!(comes_to(wanted), "{:?}", is_cached());
        }
        let one_too_many = Anchor::on(&path).unwrap().lay().unwrap_err();
        assert_eq!(one_too_many.raw_os_error(), Some(libc::EBUSY));
        held.remove(1);
        assert!(comes_to([true, false, true]), "{:?}", is_cached());
    }
}
