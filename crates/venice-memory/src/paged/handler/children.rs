//! Service for children that were just forked and have no pager of their own yet.

use super::super::fork_state::Content;
use super::super::in_thread::InThread;
use super::super::page_table::{PageNumber, State};
use super::super::sys::{self, Errno, SysResult};
use super::super::uffd::Uffd;
use super::super::{PAGE, address_of};
use super::Handler;

impl Handler {
    /// Copies all far and staged pages into `child`, which cannot have a pager of its own.
    pub(super) fn copy_all_to_child(&mut self, child: Uffd) {
        let pager = self.pager;
        pager.fork.wait_for_evictor(&pager.evictor_busy);
        pager.table.for_each_live_anywhere(|page, entry| {
            let is_away = matches!(entry.state(), State::Far | State::Staged | State::Busy);
            if is_away && !pager.table.is_dont_fork(page) {
                self.place_in_child(child, page);
            }
        });
        // If part of the memory is served in threads, the child does not run before this is
        // read.
        let in_thread = pager.in_thread.as_ref().map(InThread::read_forked_child);
        pager.fork.finish_full_copy(child, in_thread);
    }

    /// Serves the faults of children that were just forked and have no pager of their own yet.
    pub(super) fn serve_forked_children(&mut self) {
        let pager = self.pager;
        if let Some(child) = pager.fork.child_that_cannot_page() {
            self.copy_rest_to_child(child);
            return pager.fork.release_child(&pager.descriptors);
        }
        while let Some((child, page)) = pager.fork.next_child_fault(&pager.descriptors) {
            // Keeps other handlers from dropping the page's source meanwhile.
            let _apart = pager.block_event_reads();
            self.place_in_child(child, page);
            child.wake(address_of(page), PAGE);
        }
    }

    /// Does the same as [`Handler::copy_all_to_child`] for a child that was to have a pager of its own.
    /// Frames and slots are as they were at the fork, but pages that came in since are in the
    /// parent alone.
    fn copy_rest_to_child(&mut self, child: Uffd) {
        let pager = self.pager;
        let _apart = pager.block_event_reads();
        pager.table.for_each_live_anywhere(|page, entry| {
            if entry.state() != State::Zero && !pager.table.is_dont_fork(page) {
                self.place_in_child(child, page);
            }
        });
    }

    fn place_in_child(&mut self, child: Uffd, page: PageNumber) {
        let address = address_of(page);
        let outcome = match self.pager.content_for_child(page) {
            Content::Zeros => child.zero(address, PAGE, true),
            Content::Frame(source) => child.copy(address, source, PAGE, true),
            Content::Slot(slot) => self.copy_to_child(child, address, slot),
            Content::Lost => child.poison(address, PAGE),
        };
        if outcome == Err(Errno::ENOMEM) {
            sys::die("this machine is out of memory for a page of a forked child");
        }
    }

    fn copy_to_child(&mut self, child: Uffd, address: usize, slot: u32) -> SysResult<usize> {
        let block = &self.pager.block;
        self.far.hold_for(1);
        let mut buffer = [0u64; PAGE / 8];
        match self.far.fetch_at_once(block, slot, &mut buffer) {
            Some(source) => child.copy(address, source, PAGE, true),
            None => child.poison(address, PAGE),
        }
    }
}
