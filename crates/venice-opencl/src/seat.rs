//! The seat of a granted device: the donor where it is now, which changes when the device moves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};

use venice_wire::GrantId;

use crate::gate;
use crate::link::Link;

/// A seat.
pub struct Seat {
    /// Grant that the program began with.
    pub grant: GrantId,
    link: RwLock<Arc<Link>>,
    /// True while new commands are held back.
    is_held: AtomicBool,
    held: Mutex<()>,
    let_go: Condvar,
}

impl Seat {
    /// Takes a link as the present one.
    pub fn new(grant: GrantId, link: Arc<Link>) -> Self {
        let (link, is_held) = (RwLock::new(link), AtomicBool::new(false));
        Self { grant, link, is_held, held: Mutex::default(), let_go: Condvar::new() }
    }

    /// Returns the present link.
    pub fn link(&self) -> Arc<Link> {
        Arc::clone(&self.link.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes another link as the present one; returns the former one.
    pub fn change_link(&self, link: Arc<Link>) -> Arc<Link> {
        std::mem::replace(&mut self.link.write().unwrap_or_else(PoisonError::into_inner), link)
    }

    /// Waits while new commands are held back.
    pub fn wait_while_held(&self) {
        if self.is_held.load(Ordering::Relaxed) {
            gate::outside(|| {
                let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
                let is_held = |(): &mut ()| self.is_held.load(Ordering::Relaxed);
                drop(self.let_go.wait_while(held, is_held));
            });
        }
    }
}

/// New commands of a device that are held back until this is dropped.
pub struct Hold<'a>(&'a Seat);

impl<'a> Hold<'a> {
    /// Holds them back.
    pub fn of(seat: &'a Seat) -> Self {
        seat.is_held.store(true, Ordering::Relaxed);
        Self(seat)
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let held = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.is_held.store(false, Ordering::Relaxed);
        drop(held);
        self.0.let_go.notify_all();
    }
}
