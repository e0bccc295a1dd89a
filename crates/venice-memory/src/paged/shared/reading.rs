//! Reading of shared memory by the supervisor, for core dumps: a page stays where it is.

use super::super::PAGE;
use super::super::page_table::{BLOCK_PAGES, Entry, PageNumber, State};
use super::SharedPager;

/// Reads a far slot into a page; false if it is lost.
pub type ReadSlot<'a> = dyn FnMut(u32, &mut [u8]) -> bool + 'a;

impl SharedPager {
    /// Reads the pages of an object from `first` on, as numbered here, into `into`. Returns for each
    /// if it was found: pages that are lost or of no object are not.
    pub fn read(
        &self,
        first: PageNumber,
        into: &mut [u8],
        read_slot: &mut ReadSlot<'_>,
    ) -> Vec<bool> {
        let mut found = Vec::with_capacity(into.len() / PAGE);
        for (block, into) in into.chunks_mut(BLOCK_PAGES * PAGE).enumerate() {
            // No page leaves while the structure is held; pages may come in.
            let _structure = self.service().pager.hold_structure();
            for (at, page) in into.chunks_exact_mut(PAGE).enumerate() {
                let number = first + block * BLOCK_PAGES + at;
                found.push(self.read_page(number, page, read_slot));
            }
        }
        found
    }

    fn read_page(&self, page: PageNumber, into: &mut [u8], read_slot: &mut ReadSlot<'_>) -> bool {
        let is_of_object = || self.service().home.objects().object_of(page).is_some();
        // A file never had the pages behind its end.
        let Some(entry) = self.service().pager.table.entry(page) else { return is_of_object() };
        loop {
            let state = entry.state();
            let is_found = match state {
                State::Busy => {
                    // The handler brings it in; it needs the objects, so they are not held here.
                    std::thread::yield_now();
                    continue;
                }
                State::Zero => is_of_object(),
                State::Resident => self.read_resident(page, into),
                State::Staged => self.read_frame(entry, into),
                State::Far => entry.slot().is_none_or(|slot| read_slot(slot, into)),
                State::Poisoned => false,
            };
            if entry.state() == state {
                return is_found;
            }
            into.fill(0);
        }
    }

    fn read_resident(&self, page: PageNumber, into: &mut [u8]) -> bool {
        let objects = self.service().home.objects();
        let Some(object) = objects.object_of(page) else { return false };
        rustix::io::pread(&object.memory, into, object.offset(page)) == Ok(PAGE)
    }

    fn read_frame(&self, entry: &Entry, into: &mut [u8]) -> bool {
        let frame = self.service().pager.staging.address(entry.frame());
        // SAFETY: the frame has contents as long as the page is staged, and the evictor, which alone
        // empties frames, waits for the structure.
        unsafe { std::ptr::copy_nonoverlapping(frame as *const u8, into.as_mut_ptr(), PAGE) };
        true
    }
}
