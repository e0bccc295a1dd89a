//! `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE` (`madvise(2)`) of memory that is served in the
//! thread. The kernel, which does not know who serves it, comes to a page that is not there, and says
//! `EFAULT`: that page is served as if the thread had touched it, and the kernel goes on from there.
//! So all else that it has to say is the kernel's own.

use super::super::pager::Pager;
use super::super::presence::{MOST_PAGES, Presence};
use super::super::sys::{self, Errno, SysResult};
use super::super::{PAGE, address_of, pages_of};
use super::PageNumber;
use super::signal::SIGBUS_BIT;

/// So often in a row the kernel may refuse a range in which nothing is missing: what was had come
/// meanwhile.
const MOST_REFUSALS: u32 = 64;

impl Pager {
    /// Has `[addr, addr + len_bytes)`, whole pages, there for reading or, as `advice` says, for
    /// writing. Where that is more than the budget, the first of it has left again at the end.
    ///
    /// # Errors
    /// The kernel's. `EFAULT`: a page cannot be had.
    pub fn populate_as_advised(
        &'static self,
        addr: usize,
        len_bytes: usize,
        advice: usize,
    ) -> SysResult<()> {
        let is_to_write = advice == sys::MADV_POPULATE_WRITE;
        let end = addr + len_bytes;
        let (mut from, mut refusals) = (addr, 0);
        loop {
            // SAFETY: populating changes no contents.
            let outcome = unsafe { sys::madvise(from, end - from, advice) };
            if outcome != Err(Errno::EFAULT) || refusals > MOST_REFUSALS {
                return outcome;
            }
            match self.first_missing(from, end)? {
                Some(page) if self.table.is_in_thread(page) => {
                    if !self.serve_unasked(page, is_to_write) {
                        return outcome;
                    }
                    (from, refusals) = (address_of(page), 0);
                }
                // It cannot be had from the kernel, or has left since.
                _ => refusals += 1,
            }
        }
    }

    /// Serves a page that no thread has touched.
    fn serve_unasked(&'static self, page: PageNumber, write: bool) -> bool {
        let Some(in_thread) = &self.in_thread else { return false };
        // As in the signal's handler: this thread's own stack may be far.
        let mask = sys::set_signal_mask(!SIGBUS_BIT);
        let is_served = in_thread.serve(page, write, false);
        sys::set_signal_mask(mask);
        is_served
    }

    /// The first page of a range that is not there.
    fn first_missing(&self, addr: usize, end: usize) -> SysResult<Option<PageNumber>> {
        let presence = Presence::open_here();
        let found = first_missing(&presence, pages_of(addr, end - addr));
        presence.close();
        found
    }
}

fn first_missing(
    presence: &Presence,
    pages: std::ops::Range<PageNumber>,
) -> SysResult<Option<PageNumber>> {
    for first in pages.clone().step_by(MOST_PAGES) {
        let count = MOST_PAGES.min(pages.end - first);
        let there = presence.look(first * PAGE, count)?;
        if let Some(at) = there[..count].iter().position(|there| !there) {
            return Ok(Some(first + at));
        }
    }
    Ok(None)
}
