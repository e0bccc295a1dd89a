//! Orders from the owner of a port's thread to that thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use venice_fabric::Target;
use venice_wire::GrantId;

use crate::PortError;

/// Orders to one thread. A check for new ones costs the thread one read of memory.
#[derive(Debug)]
pub(super) struct Orders {
    /// Readable if there are orders, or the thread must check other state.
    wake: OwnedFd,
    /// Copy of that state for a thread that is awake.
    is_woken: AtomicBool,
    any: AtomicBool,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    /// Orders, oldest first.
    given: Vec<(GrantId, Order)>,
    /// Number of recipients whose notification of the end of their grant is pending; see
    /// [`Orders::update_pending`].
    pending: usize,
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Share,
    Revoke,
    Forget,
}

impl Orders {
    pub(super) fn new() -> Result<Self, PortError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(PortError::at("making an eventfd"))?;
        Ok(Self {
            wake,
            is_woken: AtomicBool::new(false),
            any: AtomicBool::new(false),
            list: Mutex::default(),
        })
    }

    /// Orders a [`Target::share`].
    pub(super) fn share(&self, grant: GrantId) {
        self.give(grant, Order::Share);
    }

    /// Orders a [`Target::revoke`].
    pub(super) fn revoke(&self, grant: GrantId) {
        self.give(grant, Order::Revoke);
    }

    /// Orders the thread to end the links under the key of an ended grant, which is void from now on.
    pub(super) fn forget(&self, grant: GrantId) {
        self.give(grant, Order::Forget);
    }

    fn give(&self, grant: GrantId, order: Order) {
        self.list().given.push((grant, order));
        self.any.store(true, Ordering::Release);
        self.wake();
    }

    /// Ends the thread's sleep, or its next one. Publish the state that it must find before the
    /// call.
    pub(super) fn wake(&self) {
        // A write fails only when the counter is full; the thread is awake then.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        // After the write: a thread that sees this flag finds the counter readable.
        self.is_woken.store(true, Ordering::Release);
    }

    /// Clears the wake-up. The thread must check everything it may have been woken for after this
    /// call: a later wake-up stays, for its next sleep.
    pub(super) fn clear_wake(&self) {
        if self.is_woken.load(Ordering::Acquire) {
            self.is_woken.store(false, Ordering::Release);
            let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        }
    }

    /// Applies the orders to `target`; returns whether there were any.
    pub(super) fn apply(&self, now_ns: u64, target: &mut Target) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        // Before the list is read: a thread that adds to it afterwards sets the flag again.
        self.any.store(false, Ordering::Release);
        let mut list = self.list();
        for (grant, order) in list.given.drain(..) {
            match order {
                Order::Share => target.share(grant),
                Order::Revoke => drop(target.revoke(now_ns, grant)),
                // The caller looks for forgotten senders after any order.
                Order::Forget => {}
            }
        }
        list.pending = pending(target);
        true
    }

    /// Records the number of pending notifications, and returns whether there are any. Call it with
    /// each batch after [`Orders::apply`] until there are none.
    pub(super) fn update_pending(&self, target: &Target) -> bool {
        let pending = pending(target);
        self.list().pending = pending;
        pending > 0
    }

    /// True if every recipient that an order concerns was notified and has acknowledged.
    pub(super) fn are_done(&self) -> bool {
        let list = self.list();
        list.given.is_empty() && list.pending == 0
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pending(target: &Target) -> usize {
    target.mappings().filter(|mapping| mapping.is_revoking).count()
}

impl AsFd for Orders {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use venice_fabric::TargetConfig;
    use venice_wire::NodeId;

    use super::*;

    fn would_sleep(orders: &Orders) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(orders, PollFlags::IN)], Some(&now)) == Ok(0)
    }

    /// A relay receives a neighbour just after its check for new neighbours, and a grant just
    /// before its check for orders.
    #[test]
    fn order_keeps_unrelated_wakeup() {
        let orders = Orders::new().unwrap();
        let mut target = Target::new(TargetConfig::new(NodeId(1), 1));
        orders.clear_wake();
        orders.wake();
        orders.share(GrantId(1));
        assert!(orders.apply(0, &mut target) && !would_sleep(&orders));
        orders.clear_wake();
        assert!(!orders.apply(0, &mut target) && would_sleep(&orders));
    }
}
