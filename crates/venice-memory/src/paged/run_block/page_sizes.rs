//! Page sizes of a run's processes.

use std::sync::atomic::Ordering;

use super::super::page_size::PageSize;
use super::RunBlock;

impl RunBlock {
    /// The page size of memory for which the program gives no advice.
    pub fn page_size(&self) -> PageSize {
        PageSize::of(self.page_size.load(Ordering::Relaxed))
    }

    /// The page size of memory for which the program advises large pages. Small: the advice is
    /// ignored.
    pub fn advised_page_size(&self) -> PageSize {
        PageSize::of(self.advised_page_size.load(Ordering::Relaxed))
    }

    /// The larger of both sizes.
    pub fn largest_page_size(&self) -> PageSize {
        [self.page_size(), self.advised_page_size()]
            .into_iter()
            .max_by_key(|size| size.pages())
            .expect("two sizes are given")
    }

    /// Sets both sizes. Called before any process attaches.
    pub fn set_page_size(&self, size: PageSize, advised: PageSize) {
        self.page_size.store(size as u32, Ordering::Relaxed);
        self.advised_page_size.store(advised as u32, Ordering::Relaxed);
    }

    /// Records that some region has pages of this size, whatever the size of other regions.
    pub fn note_page_size(&self, size: PageSize) {
        if size.pages() > self.largest_page_size().pages() {
            self.advised_page_size.store(size as u32, Ordering::Relaxed);
        }
    }
}
