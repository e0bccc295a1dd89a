//! The shared pager of a run, started when a process first maps shared memory.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use venice_memory::paged::{SharedPager, SharedRequest};
use venice_recipient::Holding;

/// The shared memory of a run.
pub struct SharedMemory {
    holding: Arc<Holding>,
    state: Mutex<State>,
}

enum State {
    /// No process has asked for it.
    Unused,
    /// It cannot be paged here: it stays local (`venice doctor` says why).
    Refused,
    /// It is paged.
    Paged(SharedPager),
    /// The run is over.
    Ended,
}

impl SharedMemory {
    /// Makes the shared memory of a run.
    pub fn new(holding: Arc<Holding>) -> SharedMemory {
        SharedMemory { holding, state: Mutex::new(State::Unused) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a request of a process. The reply is a number, 0 if it is refused, and a descriptor.
    pub fn serve(&self, request: SharedRequest, with: Option<OwnedFd>) -> (u64, Option<OwnedFd>) {
        let mut state = self.state();
        if matches!(*state, State::Unused) {
            *state = self.start();
        }
        match &*state {
            State::Paged(pager) => pager.serve(request, with),
            State::Unused | State::Refused | State::Ended => (0, None),
        }
    }

    fn start(&self) -> State {
        let holding = self.holding.clone();
        let slabs = Box::new(move |replica| holding.slab(replica));
        SharedPager::start(self.holding.block().clone(), slabs).map_or(State::Refused, State::Paged)
    }

    /// Frees what belonged to processes that have ended. To be called now and then.
    pub fn tidy(&self) {
        if let State::Paged(pager) = &*self.state() {
            pager.tidy();
        }
    }

    /// True while processes use it.
    pub fn is_in_use(&self) -> bool {
        matches!(&*self.state(), State::Paged(pager) if pager.has_users())
    }

    /// Ends it, once no process uses it.
    pub fn end(&self) {
        if let State::Paged(pager) = std::mem::replace(&mut *self.state(), State::Ended) {
            pager.end();
        }
    }
}
