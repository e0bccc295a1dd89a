//! What the owner of a thread of the port tells it while it serves.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use venice_fabric::Target;
use venice_wire::GrantId;

use crate::PortError;

/// The orders to one thread. Looking for some costs it one read of memory.
#[derive(Debug)]
pub(super) struct Orders {
    /// Readable when there are some, or the thread is to look around otherwise.
    wake: OwnedFd,
    /// The same, for who is awake.
    is_woken: AtomicBool,
    any: AtomicBool,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    /// In the order given.
    given: Vec<(GrantId, Order)>,
    /// Recipients that are being told of the end of their grant; see [`Orders::note_untold`].
    untold: usize,
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Share,
    Revoke,
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

    /// See [`Target::share`].
    pub(super) fn share(&self, grant: GrantId) {
        self.give(grant, Order::Share);
    }

    /// See [`Target::revoke`].
    pub(super) fn revoke(&self, grant: GrantId) {
        self.give(grant, Order::Revoke);
    }

    fn give(&self, grant: GrantId, order: Order) {
        self.list().given.push((grant, order));
        self.any.store(true, Ordering::Release);
        self.wake();
    }

    /// Ends the thread's sleep, or its next one. What it is to find comes first.
    pub(super) fn wake(&self) {
        // It only fails when the counter is full, and then the thread is awake already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        // After that: who takes note of this has something to read.
        self.is_woken.store(true, Ordering::Release);
    }

    /// Takes note that the thread was woken. It has to look at everything it may have been woken
    /// for after this: a wake that comes later stays, for its next sleep.
    pub(super) fn hear_wake(&self) {
        if self.is_woken.load(Ordering::Acquire) {
            self.is_woken.store(false, Ordering::Release);
            let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        }
    }

    /// Has `target` do what was ordered; returns whether there was anything.
    pub(super) fn carry_out(&self, now_ns: u64, target: &mut Target) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        // Before the look at the list: who adds to it afterwards says so again.
        self.any.store(false, Ordering::Release);
        let mut list = self.list();
        for (grant, order) in list.given.drain(..) {
            match order {
                Order::Share => target.share(grant),
                Order::Revoke => drop(target.revoke(now_ns, grant)),
            }
        }
        list.untold = untold(target);
        true
    }

    /// Notes how many recipients are still to be told, and returns whether there are any: to be
    /// called with each batch after [`Orders::carry_out`] until there are none.
    pub(super) fn note_untold(&self, target: &Target) -> bool {
        let untold = untold(target);
        self.list().untold = untold;
        untold > 0
    }

    /// Whether everybody whom an order concerns has been told, and has said so.
    pub(super) fn are_done(&self) -> bool {
        let list = self.list();
        list.given.is_empty() && list.untold == 0
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn untold(target: &Target) -> usize {
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

    /// A relay is told of a neighbour just after it has looked for news of them, and of a grant just
    /// before it looks for orders.
    #[test]
    fn a_wake_for_something_else_is_not_lost_to_an_order() {
        let orders = Orders::new().unwrap();
        let mut target = Target::new(TargetConfig::new(NodeId(1), 1));
        orders.hear_wake();
        orders.wake();
        orders.share(GrantId(1));
        assert!(orders.carry_out(0, &mut target) && !would_sleep(&orders));
        orders.hear_wake();
        assert!(!orders.carry_out(0, &mut target) && would_sleep(&orders));
    }
}
