//! By pages of which size the processes of a run page.

use std::sync::atomic::Ordering;

use super::super::page_size::PageSize;
use super::RunBlock;

impl RunBlock {
    /// The size of the pages of what the program says nothing else of.
    pub fn page_size(&self) -> PageSize {
        PageSize::of(self.page_size.load(Ordering::Relaxed))
    }

    /// The size of the pages of what the program says it wants large ones of; small ones: its word
    /// is not heeded.
    pub fn advised_page_size(&self) -> PageSize {
        PageSize::of(self.advised_page_size.load(Ordering::Relaxed))
    }

    /// The largest pages there may be.
    pub fn largest_page_size(&self) -> PageSize {
        [self.page_size(), self.advised_page_size()]
            .into_iter()
            .max_by_key(|size| size.pages())
            .expect("two sizes")
    }

    /// Sets both, before any process attaches.
    pub fn set_page_size(&self, size: PageSize, advised: PageSize) {
        self.page_size.store(size as u32, Ordering::Relaxed);
        self.advised_page_size.store(advised as u32, Ordering::Relaxed);
    }

    /// Some region's pages are of this size, whatever those of others are.
    pub fn note_page_size(&self, size: PageSize) {
        if size.pages() > self.largest_page_size().pages() {
            self.advised_page_size.store(size as u32, Ordering::Relaxed);
        }
    }
}
