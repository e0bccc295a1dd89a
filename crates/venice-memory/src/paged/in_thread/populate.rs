//! `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE` (`madvise(2)`) on memory that is served in the
//! thread. At a page that is not there the kernel returns `EFAULT`: that page is served as if the
//! thread had touched it, and the call is repeated from there. All other results are the kernel's
//! own.

use super::super::pager::Pager;
use super::super::presence::{MOST_PAGES, Presence};
use super::super::sys::{self, Errno, SysResult};
use super::super::{PAGE, address_of, pages_of};
use super::PageNumber;
use super::signal::SIGBUS_BIT;

/// Most refusals in a row of a range in which nothing is missing: populated pages were evicted
/// meanwhile.
const MOST_REFUSALS: u32 = 64;

impl Pager {
    /// Populates `[addr, addr + len_bytes)`, whole pages, for reading or, by `advice`, for writing.
    /// If that exceeds the budget, the first pages have left again at the end.
    ///
    /// # Errors
    /// The kernel's. `EFAULT`: a page is unavailable.
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
                    if !self.serve_untouched(page, is_to_write) {
                        return outcome;
                    }
                    (from, refusals) = (address_of(page), 0);
                }
                // The kernel cannot provide it, or it has left since.
                _ => refusals += 1,
            }
        }
    }

    /// Serves a page that no thread has touched.
    fn serve_untouched(&'static self, page: PageNumber, write: bool) -> bool {
        let Some(in_thread) = &self.in_thread else { return false };
        // As in the signal handler: this thread's own stack may be far.
        let mask = sys::set_signal_mask(!SIGBUS_BIT);
        let is_served = in_thread.serve(page, write, false);
        sys::set_signal_mask(mask);
        is_served
    }

    /// Returns the first page of a range that is not present.
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
