//! By pages of which size the processes of a run page.

use std::sync::atomic::Ordering;

use super::super::page_size::PageSize;
use super::RunBlock;

impl RunBlock {
    /// The size of the pages of what the program says nothing else of.
    pub fn page_size(&self) -> PageSize {
        PageSize::of(self.page_size.load(Ordering::Relaxed))
    }

    /// Whether the program's word that it wants large pages is heeded.
    pub fn heeds_large(&self) -> bool {
        self.large_by_advice.load(Ordering::Relaxed) != 0
    }

    /// Sets both, before any process attaches.
    pub fn set_page_size(&self, size: PageSize, heeds_large: bool) {
        self.page_size.store(size as u32, Ordering::Relaxed);
        self.large_by_advice.store(u32::from(heeds_large), Ordering::Relaxed);
    }
}
