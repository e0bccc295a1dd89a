//! The unit of paging: a page of 4 KiB, or a large or huge page of several of them.
//!
//! A large or huge page is as many pages in a row as its size holds, aligned to their number. Page
//! table, far slots and fingerprints stay those of 4 KiB pages, so operations on a part of it
//! (`munmap`, `mprotect`, a copy on write after a fork, a lost page) need no special case. At the
//! edges of a region a large page has only as many pages as there are. Huge pages are whole or
//! none: the part of one at an edge is paged by large pages.

use std::ops::Range;

use super::PAGE;
use super::page_table::PageNumber;

/// The size of a page, the unit of paging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum PageSize {
    /// 4 KiB.
    #[default]
    Small = 0,
    /// 64 KiB.
    Large = 1,
    /// 2 MiB, which the processor translates as one.
    Huge = 2,
}

/// Pages of 4 KiB in a large one.
pub const LARGE_PAGES: usize = (64 << 10) / PAGE;
/// Pages of 4 KiB in a huge one.
pub const HUGE_PAGES: usize = (2 << 20) / PAGE;
/// Bytes of a huge page.
pub const HUGE_BYTES: usize = HUGE_PAGES * PAGE;

const ALL: [PageSize; 3] = [PageSize::Small, PageSize::Large, PageSize::Huge];

impl PageSize {
    /// Its pages of 4 KiB.
    pub fn pages(self) -> usize {
        match self {
            PageSize::Small => 1,
            PageSize::Large => LARGE_PAGES,
            PageSize::Huge => HUGE_PAGES,
        }
    }

    /// Returns the size of a discriminant; any other number is the small one.
    pub fn of(number: u32) -> PageSize {
        ALL.into_iter().find(|size| *size as u32 == number).unwrap_or_default()
    }
}

impl std::fmt::Display for PageSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PageSize::Small => "4k",
            PageSize::Large => "64k",
            PageSize::Huge => "2m",
        })
    }
}

impl std::str::FromStr for PageSize {
    type Err = String;

    fn from_str(text: &str) -> Result<PageSize, String> {
        let named = ALL.into_iter().find(|size| size.to_string() == text);
        named.ok_or_else(|| format!("invalid page size {text:?}: expected 4k, 64k or 2m"))
    }
}

/// Returns the pages of the large page around `page`, as if all of them existed.
pub fn large_page_around(page: PageNumber) -> Range<PageNumber> {
    let first = page / LARGE_PAGES * LARGE_PAGES;
    first..first + LARGE_PAGES
}

/// Returns the pages of the huge page around `page`, as if all of them existed.
pub fn huge_page_around(page: PageNumber) -> Range<PageNumber> {
    let first = page / HUGE_PAGES * HUGE_PAGES;
    first..first + HUGE_PAGES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes_roundtrip() {
        for size in ALL {
            assert_eq!(size.to_string().parse(), Ok(size));
            assert_eq!(PageSize::of(size as u32), size);
        }
        assert!("1g".parse::<PageSize>().unwrap_err().contains("64k or 2m"));
        assert_eq!(PageSize::of(77), PageSize::Small);
        assert_eq!(large_page_around(LARGE_PAGES + 3), LARGE_PAGES..2 * LARGE_PAGES);
        assert_eq!(huge_page_around(HUGE_PAGES + 3), HUGE_PAGES..2 * HUGE_PAGES);
    }
}
