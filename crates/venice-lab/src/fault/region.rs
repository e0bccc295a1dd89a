//! The region whose pages are touched: anonymous memory, or UMap's, with a checkable pattern in
//! every word.

use std::io;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};

use super::PAGE_BYTES;
use super::umap::UmapMemory;
use venice_measure::pattern;

/// Words in one page.
pub(crate) const WORDS_PER_PAGE: u64 = PAGE_BYTES / pattern::WORD_BYTES as u64;

/// A mapping, shared by the measuring threads.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    pages: u64,
    /// UMap's memory, if UMap serves it.
    umap: Option<UmapMemory>,
}

// SAFETY: the mapping belongs to the region alone, stays until it is dropped, and is accessed
// through atomics only.
unsafe impl Send for Region {}
// SAFETY: as above; concurrent atomic accesses are allowed.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `pages` pages by libc's `mmap`, which a paging shim can intercept.
    ///
    /// # Errors
    /// When the kernel has no room for the mapping.
    pub(crate) fn map(pages: u64) -> Result<Self> {
        let len_bytes = usize::try_from(pages * PAGE_BYTES).context("the region is too large")?;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing else.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).context("cannot map the region");
        }
        let base = NonNull::new(address.cast()).context("the region was mapped at 0")?;
        // SAFETY: the range was mapped above. A refusal (a kernel without huge pages) is harmless.
        unsafe { libc::madvise(address, len_bytes, libc::MADV_NOHUGEPAGE) };
        Ok(Self { base, pages, umap: None })
    }

    /// Requests large pages of the pager or the kernel.
    pub(crate) fn ask_for_large_pages(&self) {
        // SAFETY: the range was mapped when this was made. A refusal is harmless.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len_bytes(), libc::MADV_HUGEPAGE) };
    }

    /// Maps pages that UMap serves.
    ///
    /// # Errors
    /// The same as [`UmapMemory::map`].
    pub(crate) fn by_umap(library: &Path, pages: u64) -> Result<Self> {
        let umap = UmapMemory::map(library, pages * PAGE_BYTES)?;
        Ok(Self { base: umap.base(), pages, umap: Some(umap) })
    }

    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    pub(crate) fn len_bytes(&self) -> usize {
        (self.pages * PAGE_BYTES) as usize
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Returns word `index` of `page`. Reading or writing it touches the page.
    pub(crate) fn word(&self, page: u64, index: u64) -> &AtomicU64 {
        assert!(page < self.pages && index < WORDS_PER_PAGE, "an access outside of the region");
        let offset = page * PAGE_BYTES + index * pattern::WORD_BYTES as u64;
        // SAFETY: inside the mapping by the assertion, aligned because pages and words are, and all
        // accesses to the mapping go through these atomics.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset as usize).cast()) }
    }

    /// Writes every word of `page` with the pattern of its own number.
    pub(crate) fn fill_page(&self, page: u64) {
        for index in 0..WORDS_PER_PAGE {
            self.word(page, index).store(pattern::word(page, index), Ordering::Relaxed);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.umap.is_some() {
            return;
        }
        // SAFETY: the range was mapped by `map` and no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len_bytes()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_keep_their_words() {
        let region = Region::map(3).unwrap();
        (0..3).for_each(|page| region.fill_page(page));
        for page in 0..3 {
            let word = region.word(page, 511).load(Ordering::Relaxed);
            assert_eq!(word, pattern::word(page, 511));
        }
    }

    #[test]
    #[should_panic(expected = "outside of the region")]
    fn access_outside_panics() {
        let region = Region::map(1).unwrap();
        region.word(1, 0);
    }
}
