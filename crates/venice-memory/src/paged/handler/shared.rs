//! Service of shared memory: pages are placed in the supervisor's own mapping, as others are, and
//! given to the users whose threads wait for them.

use std::ops::Range;

use super::super::PAGE;
use super::super::address_of;
use super::super::page_table::{Entry, PageNumber, State};
use super::super::shared::{Message, SharedHome, Waiter};
use super::super::staging::Frame;
use super::super::sys::{self, Errno, SysResult};
use super::super::uffd::FaultKind;
use super::{Cause, Fault, Handler};

impl Handler {
    /// Serves one message of each user that has any.
    pub(super) fn serve_users(&mut self, home: &SharedHome) {
        for user in home.ready() {
            if let Some(Message::Fault { waiter, thread, write }) = home.next_message(user) {
                let (cause, started_ns) = (Cause::Demand, sys::monotonic_ns());
                let waiter = Some(waiter);
                self.serve(Fault { page: 0, write, thread, cause, started_ns, waiter });
            }
        }
    }

    /// Serves a fault on shared memory. Its thread is woken to try again, unless it has got its
    /// page or is to wait.
    pub(super) fn serve_shared(&mut self, fault: Fault, home: &SharedHome, waiter: Waiter) {
        self.is_waiter_settled = false;
        match home.page_of(&waiter) {
            Ok(page) => self.serve_page(Fault { page, ..fault }),
            Err(Errno::EAGAIN) => self.defer(fault),
            // Mapped by a bare system call: there is nothing that could be served.
            Err(_) => drop(home.poison(&waiter)),
        }
        if !self.is_waiter_settled {
            home.wake_waiter(&waiter);
        }
    }

    /// The waiter of the fault being served needs no wake-up any more, or gets one later.
    pub(super) fn settle_waiter(&mut self) {
        self.is_waiter_settled = true;
    }

    /// Gives `pages`, which this handler owns, to the user of a waiter. Without the waiter's page
    /// among them nothing is given.
    pub(super) fn give(&mut self, fault: Fault, waiter: Waiter, pages: Range<PageNumber>) {
        let Some(home) = &self.pager.shared else { return };
        if pages.contains(&fault.page) {
            let given = home.give(&waiter, fault.page, pages);
            self.settle_given(fault, given);
        }
    }

    fn settle_given(&mut self, fault: Fault, given: SysResult<()>) {
        match given {
            Ok(()) => self.settle_waiter(),
            Err(Errno::EAGAIN) => self.defer(fault),
            // Unmapped meanwhile: the thread tries again.
            Err(_) => {}
        }
    }

    /// Serves a fault on a page that is in its object, or was until the program removed it by a
    /// bare system call.
    pub(super) fn serve_shared_resident(&mut self, fault: Fault, entry: &Entry, waiter: Waiter) {
        let Some(home) = &self.pager.shared else { return };
        if !entry.claim(State::Resident) {
            return self.serve_page(fault);
        }
        let outcome = match waiter.kind {
            FaultKind::Protected => home.allow_write(&waiter),
            FaultKind::Minor => home.give(&waiter, fault.page, fault.page..fault.page + 1),
            FaultKind::Missing => {
                if self.pager.uffd().zero(address_of(fault.page), PAGE, false).is_ok() {
                    self.forget_slot(entry);
                }
                home.give(&waiter, fault.page, fault.page..fault.page + 1)
            }
        };
        self.settle_given(fault, outcome);
        self.release(fault.page, entry, State::Resident);
    }

    pub(super) fn poison_shared(&mut self, fault: Fault, waiter: Waiter) {
        let Some(home) = &self.pager.shared else { return };
        let outcome = home.poison(&waiter);
        self.settle_given(fault, outcome);
    }

    /// Accepts the page of the page cache where the page table has another: something wrote to it
    /// past all mappings that are known. `to` is the state to which the page was released.
    pub(super) fn accept_cached(&mut self, fault: Fault, entry: &Entry, to: State) {
        let Some(home) = &self.pager.shared else { return };
        if !self.claim(fault.page, entry, to) {
            return;
        }
        if !home.is_cached(fault.page) {
            return self.release(fault.page, entry, to);
        }
        if to == State::Staged {
            self.pager.staging.set(entry.frame(), Frame::Orphan);
        }
        self.forget_slot(entry);
        self.arrived(1);
        self.release(fault.page, entry, State::Resident);
    }
}
