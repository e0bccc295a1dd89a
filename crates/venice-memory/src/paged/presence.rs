//! Presence of pages: in memory, or in the host's own swap.
//!
//! `mincore(2)` reports a page that the host has swapped out as absent, and an absent page counts
//! as having no contents. `/proc/self/pagemap` (`proc_pid_pagemap(5)`) tells the two apart.

use std::ops::Range;

use super::descriptors::Descriptors;
use super::sys::{self, SysResult};
use super::{
    PAGE,
    page_size::{HUGE_BYTES, HUGE_PAGES},
};

const PAGEMAP: &[u8] = b"/proc/self/pagemap\0";
/// `struct pm_scan_arg` of `linux/fs.h` (Linux 6.7).
#[derive(Default)]
#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const PAGEMAP_SCAN: usize = 3 << 30 | size_of::<ScanArg>() << 16 | (b'f' as usize) << 8 | 16;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;
/// Stretches of pages found by one scan.
const MOST_FOUND: usize = 64;
/// A stretch: first address, address after the last, categories (`struct page_region`).
type Found = [u64; 3];
/// In memory, or swapped out.
const THERE: u64 = 1 << 63 | 1 << 62;

/// An open page map of one process.
#[derive(Debug)]
pub struct Presence {
    /// -1: the kernel refuses it (a program that has changed its user).
    fd: i32,
}

/// Most pages checked in one call.
pub const MOST_PAGES: usize = HUGE_PAGES;

/// The presence of pages in a row.
pub type PresentPages = [bool; MOST_PAGES];

impl Presence {
    /// Opens the page map of this process.
    pub fn open(descriptors: &Descriptors) -> Presence {
        Presence { fd: sys::open_readonly(PAGEMAP).map_or(-1, |fd| descriptors.keep(fd)) }
    }

    /// Opens it for a few calls, at any descriptor number.
    pub fn open_here() -> Presence {
        Presence { fd: sys::open_readonly(PAGEMAP).unwrap_or(-1) }
    }

    /// Closes its descriptor.
    pub fn close(self) {
        if self.fd >= 0 {
            sys::close(self.fd);
        }
    }

    /// True if swapped-out pages are recognised.
    pub fn reports_swap(&self) -> bool {
        self.fd >= 0
    }

    /// Checks the `pages` pages from `addr` on, all mapped, at most [`MOST_PAGES`].
    ///
    /// # Errors
    /// The kernel's; `ENOMEM` where a page is not mapped and swap is not recognised.
    pub fn look(&self, addr: usize, pages: usize) -> SysResult<PresentPages> {
        look(self.fd, addr, pages)
    }

    /// Returns which of the `pages` pages from `addr` on are in memory and mapped by other processes
    /// too; at most [`MOST_PAGES`]. None are where the kernel does not report it (a program that has
    /// changed its user).
    pub fn shared(&self, addr: usize, pages: usize) -> PresentPages {
        const PRESENT: u64 = 1 << 63;
        const EXCLUSIVE: u64 = 1 << 56;
        if self.fd < 0 {
            return [false; MOST_PAGES];
        }
        let is_shared = |word: u64| word & (PRESENT | EXCLUSIVE) == PRESENT;
        let mut shared = page_map(self.fd, addr, pages, is_shared).unwrap_or([false; MOST_PAGES]);
        if shared.contains(&true) {
            self.leave_out_zeros(addr, pages, &mut shared);
        }
        shared
    }

    /// Leaves out where the kernel's page of zeros is mapped, which counts as no process's own.
    fn leave_out_zeros(&self, addr: usize, pages: usize, shared: &mut PresentPages) {
        let (mut from, end) = (addr, addr + pages * PAGE);
        let page = |address: u64| (address as usize - addr) / PAGE;
        while from < end {
            let mut found = [Found::default(); MOST_FOUND];
            let Some((count, walk_end)) = self.scan(from..end, PAGE_IS_PFNZERO, &mut found) else {
                return;
            };
            let zeros = found[..count].iter().map(|[start, end, _]| page(*start)..page(*end));
            zeros.for_each(|zeros| shared[zeros].fill(false));
            if walk_end <= from {
                return;
            }
            from = walk_end;
        }
    }

    /// True if the memory from `addr` on, a multiple of 2 MiB, is a huge page of the kernel's,
    /// translated as one. `None`: the kernel does not report it (a program that has changed its
    /// user).
    pub fn is_huge(&self, addr: usize) -> Option<bool> {
        let (end, mut found) = (addr + HUGE_BYTES, [Found::default()]);
        self.scan(addr..end, PAGE_IS_HUGE, &mut found)?;
        Some(found[0][..2] == [addr as u64, end as u64])
    }

    /// Finds the stretches of pages of a category. Returns their number, and the address up to which
    /// it has looked. `None`: the kernel refuses it.
    fn scan(
        &self,
        range: Range<usize>,
        category: u64,
        found: &mut [Found],
    ) -> Option<(usize, usize)> {
        let mut scan = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: range.start as u64,
            end: range.end as u64,
            vec: found.as_mut_ptr() as u64,
            vec_len: found.len() as u64,
            category_mask: category,
            return_mask: category,
            ..ScanArg::default()
        };
        // SAFETY: the structure is the one the request expects, with room for as many stretches.
        let count = unsafe { sys::ioctl(self.fd, PAGEMAP_SCAN, &mut scan) }.ok()?;
        Some((count, scan.walk_end as usize))
    }
}

/// Checks once the `pages` pages from `addr` on, all mapped.
///
/// # Errors
/// The errors of [`Presence::look`].
pub fn look_once(addr: usize, pages: usize) -> SysResult<PresentPages> {
    let presence = Presence::open_here();
    let there = presence.look(addr, pages);
    presence.close();
    there
}

fn look(fd: i32, addr: usize, pages: usize) -> SysResult<PresentPages> {
    if fd < 0 {
        let mut there = [false; MOST_PAGES];
        let mut bytes = [0u8; MOST_PAGES];
        sys::mincore(addr, &mut bytes[..pages])?;
        there.iter_mut().zip(bytes).for_each(|(there, byte)| *there = byte & 1 != 0);
        return Ok(there);
    }
    page_map(fd, addr, pages, |word| word & THERE != 0)
}

fn page_map(
    fd: i32,
    addr: usize,
    pages: usize,
    is_it: impl Fn(u64) -> bool,
) -> SysResult<PresentPages> {
    let mut found = [false; MOST_PAGES];
    let mut text = [[0u8; 8]; MOST_PAGES];
    let wanted = text[..pages].as_flattened_mut();
    let len = sys::pread(fd, (addr / PAGE * 8) as u64, wanted)?;
    assert_eq!(len, pages * 8, "a page map has a word for each page");
    let words = text[..pages].iter().map(|word| u64::from_ne_bytes(*word));
    found.iter_mut().zip(words).for_each(|(found, word)| *found = is_it(word));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::huge_pages::check_available;
    use super::*;

    #[test]
    fn huge_page_is_recognised() {
        if let Err(none) = check_available() {
            println!("SKIPPED: huge_page_is_recognised: {none}");
            return;
        }
        let presence = Presence::open_here();
        let memory = sys::map_aligned(2 * HUGE_BYTES, HUGE_BYTES).unwrap();
        let [advised, other] = [memory, memory + HUGE_BYTES].map(|addr| {
            let advice = if addr == memory { sys::MADV_HUGEPAGE } else { sys::MADV_NOHUGEPAGE };
            // SAFETY: advice about fresh memory, and a byte of it.
            unsafe {
                sys::madvise(addr, HUGE_BYTES, advice).unwrap();
                (addr as *mut u8).write(1);
            }
            presence.is_huge(addr)
        });
        // The kernel gives small pages where its memory is in pieces.
        assert_eq!(advised, Some(smaps_counts_huge(memory)));
        assert_eq!(other, Some(false));
        presence.close();
        // SAFETY: mapped above, and used by nothing else.
        unsafe { sys::unmap(memory as *mut _, 2 * HUGE_BYTES) };
    }

    /// True if `/proc/self/smaps` counts bytes of huge pages in the mapping that begins at `addr`.
    fn smaps_counts_huge(addr: usize) -> bool {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&format!("{addr:x}-")));
        !lines.find(|line| line.starts_with("AnonHugePages:")).unwrap().ends_with(" 0 kB")
    }

    /// More stretches than one scan finds.
    #[test]
    fn zeros_are_not_shared() {
        const PAGES: usize = 4 * MOST_FOUND;
        let presence = Presence::open_here();
        let memory = sys::map_private(PAGES * PAGE).unwrap();
        // Other tests fork, and their children would share the written pages.
        // SAFETY: advice about the fresh mapping, and accesses within it.
        unsafe {
            sys::madvise(memory as usize, PAGES * PAGE, sys::MADV_DONTFORK).unwrap();
            sys::madvise(memory as usize, PAGES * PAGE, sys::MADV_NOHUGEPAGE).unwrap();
            for page in 0..PAGES {
                match page % 2 {
                    0 => assert_eq!(memory.add(page * PAGE).read_volatile(), 0),
                    _ => memory.add(page * PAGE).write_volatile(1),
                }
            }
        }
        assert_eq!(presence.shared(memory as usize, PAGES), [false; MOST_PAGES]);
        presence.close();
        // SAFETY: mapped above, and used by nothing else.
        unsafe { sys::unmap(memory.cast(), PAGES * PAGE) };
    }

    #[test]
    fn mincore_and_pagemap_agree() {
        let memory = sys::map_private(4 * PAGE).unwrap();
        // SAFETY: within the fresh mapping.
        unsafe { memory.add(2 * PAGE).write(1) };
        let mut expected = [false; MOST_PAGES];
        expected[2] = true;
        assert_eq!(look(-1, memory as usize, 4), Ok(expected));
        assert_eq!(look_once(memory as usize, 4), Ok(expected));
        // SAFETY: mapped above, and used by nothing else.
        unsafe { sys::unmap(memory.cast(), 4 * PAGE) };
        assert!(look(-1, memory as usize, 4).is_err(), "an unmapped range is an error");
    }
}
