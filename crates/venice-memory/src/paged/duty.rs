//! Who serves faults: one handler while faults come from one processor, a helper on each further
//! one while they come from several.
//!
//! A userfaultfd has one queue, and a fault wakes everybody who waits on it. For the handler on
//! the faulting thread's own processor that is the cheapest wake-up there is; for one on another
//! processor it is an interrupt for nothing. So helpers wait there only while they are needed:
//! the first handler calls one when faults come from a second processor, and a helper leaves when
//! it has had nothing to do for a while (docs/decisions/0026).

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::pager::NO_CPU;
use super::spin::Spin;
use super::sys;

/// Most handlers of a process, the first one among them. Every fault wakes all that wait, so more
/// would cost more than they bring.
pub const MAX_HANDLERS: usize = 4;
/// The handler that is never off duty.
pub const FIRST: usize = 0;
/// A handler that served less than one fault in so many is one too many.
const USELESS_SHARE: u64 = 16;

const OFF: u32 = 0;
const ON: u32 = 1;
const DISMISSED: u32 = 2;

/// The handlers as they see each other.
#[derive(Debug)]
pub struct Duty {
    places: [Place; MAX_HANDLERS],
    helpers_on_duty: AtomicU32,
    reading: Spin<()>,
}

#[derive(Debug)]
struct Place {
    is_taken: AtomicU32,
    called: AtomicU32,
    /// The processor it is on; `NO_CPU`: none, or off duty.
    home: AtomicUsize,
    served: AtomicU64,
}

/// What a handler remembers of all handlers' counts.
#[derive(Debug, Default)]
pub struct Share {
    own: u64,
    all: u64,
}

impl Default for Duty {
    fn default() -> Duty {
        let place = || Place {
            is_taken: AtomicU32::new(0),
            called: AtomicU32::new(OFF),
            home: AtomicUsize::new(NO_CPU),
            served: AtomicU64::new(0),
        };
        Duty {
            places: std::array::from_fn(|_| place()),
            helpers_on_duty: AtomicU32::new(0),
            reading: Spin::new(()),
        }
    }
}

impl Duty {
    /// A handler of this number exists.
    pub fn enter(&self, handler: usize) {
        self.places[handler].is_taken.store(1, Ordering::Release);
    }

    /// In the child of a `fork`, which has none of its parent's handlers.
    pub fn reset(&self) {
        for place in &self.places {
            place.is_taken.store(0, Ordering::Relaxed);
            place.called.store(OFF, Ordering::Relaxed);
            place.home.store(NO_CPU, Ordering::Relaxed);
        }
        self.helpers_on_duty.store(0, Ordering::Relaxed);
        // SAFETY: whoever held it is a thread of the parent.
        unsafe { self.reading.forget_holder(()) };
    }

    /// Does the first handler serve alone?
    pub fn is_alone(&self) -> bool {
        self.helpers_on_duty.load(Ordering::Acquire) == 0
    }

    /// Is the userfaultfd's queue being read just now? Taken by whoever reads it, and kept until
    /// it is known whether a `fork` was read.
    pub fn reading(&self) -> &Spin<()> {
        &self.reading
    }

    /// Where `handler` is.
    pub fn home(&self, handler: usize) -> usize {
        self.places[handler].home.load(Ordering::Relaxed)
    }

    /// `handler` has moved.
    pub fn set_home(&self, handler: usize, cpu: usize) {
        self.places[handler].home.store(cpu, Ordering::Relaxed);
    }

    /// Is some handler on this processor?
    pub fn is_home(&self, cpu: usize) -> bool {
        self.places.iter().any(|place| place.home.load(Ordering::Relaxed) == cpu)
    }

    /// `handler` served a fault.
    pub fn count(&self, handler: usize) {
        self.places[handler].served.fetch_add(1, Ordering::Relaxed);
    }

    /// Is there a handler off duty?
    pub fn can_call(&self) -> bool {
        self.off_duty().is_some()
    }

    fn off_duty(&self) -> Option<&Place> {
        self.places[FIRST + 1..].iter().find(|place| {
            place.is_taken.load(Ordering::Acquire) != 0
                && place.called.load(Ordering::Acquire) == OFF
        })
    }

    /// The first handler wants one on `cpu`; `false`: there is none off duty. From now on it is
    /// not alone.
    pub fn call(&self, cpu: usize) -> bool {
        let Some(place) = self.off_duty() else { return false };
        place.home.store(cpu, Ordering::Relaxed);
        self.helpers_on_duty.fetch_add(1, Ordering::AcqRel);
        place.called.store(ON, Ordering::Release);
        sys::futex_wake(&place.called, 1, false);
        true
    }

    /// Sleeps until `helper` is called.
    pub fn wait_for_call(&self, helper: usize) {
        let called = &self.places[helper].called;
        while called.load(Ordering::Acquire) == OFF {
            sys::futex_wait(called, OFF, None, false);
        }
    }

    /// `helper` leaves.
    pub fn leave(&self, helper: usize) {
        self.places[helper].home.store(NO_CPU, Ordering::Relaxed);
        self.helpers_on_duty.fetch_sub(1, Ordering::AcqRel);
        self.places[helper].called.store(OFF, Ordering::Release);
    }

    /// Is `helper` to leave, whatever it thinks itself?
    pub fn is_dismissed(&self, helper: usize) -> bool {
        self.places[helper].called.load(Ordering::Acquire) == DISMISSED
    }

    /// The first handler has had hardly anything to do: the only helper's processor, which it
    /// is to take over. The helper is dismissed.
    pub fn take_over(&self) -> Option<usize> {
        if self.helpers_on_duty.load(Ordering::Acquire) != 1 {
            return None;
        }
        let mut helpers = self.places[FIRST + 1..].iter();
        let helper = helpers.find(|place| place.called.load(Ordering::Acquire) == ON)?;
        helper.called.store(DISMISSED, Ordering::Release);
        Some(helper.home.load(Ordering::Relaxed))
    }

    /// Has `handler` been of no use since it last asked? No faults at all count as none.
    pub fn is_useless(&self, handler: usize, since: &mut Share) -> bool {
        let served = |place: &Place| place.served.load(Ordering::Relaxed);
        let now = Share {
            own: served(&self.places[handler]),
            all: self.places.iter().map(served).fold(0, u64::wrapping_add),
        };
        let own = now.own.wrapping_sub(since.own);
        let all = now.all.wrapping_sub(since.all);
        *since = now;
        own.saturating_mul(USELESS_SHARE) < all || own == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_come_when_called_and_leave() {
        let duty = Duty::default();
        assert!(!duty.call(1), "there is no helper");
        duty.enter(FIRST);
        duty.enter(1);
        assert!(duty.is_alone());
        assert!(duty.call(5));
        duty.wait_for_call(1);
        assert!(!duty.is_alone() && duty.is_home(5) && !duty.call(6));
        assert_eq!(duty.take_over(), Some(5));
        assert!(duty.is_dismissed(1));
        duty.leave(1);
        assert!(duty.is_alone() && !duty.is_home(5));
        assert!(duty.call(6), "it can be called again");
        duty.reset();
        assert!(duty.is_alone() && !duty.call(6), "a forked child has no helpers yet");
    }

    #[test]
    fn one_fault_in_sixteen_is_worth_a_helper() {
        let (duty, mut since) = (Duty::default(), Share::default());
        (0..150).for_each(|_| duty.count(FIRST));
        (0..10).for_each(|_| duty.count(1));
        assert!(!duty.is_useless(1, &mut since));
        (0..160).for_each(|_| duty.count(FIRST));
        (0..10).for_each(|_| duty.count(1));
        assert!(duty.is_useless(1, &mut since));
        assert!(duty.is_useless(1, &mut since), "no faults at all");
    }
}
