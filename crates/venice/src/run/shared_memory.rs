//! The shared pager of a run, started when a process first maps shared memory.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use venice_memory::dump::AbsentPages;
use venice_memory::paged::{SharedPager, SharedRequest, SlotReader};
use venice_recipient::Holding;
use venice_wire::PAGE_BYTES;

const PAGE: usize = PAGE_BYTES as usize;

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

/// The pages of a run that are in none of its processes, for core dumps.
pub struct RunPages {
    reader: SlotReader,
    shared: Arc<SharedMemory>,
}

impl RunPages {
    /// Opens a way to the far pages of `holding`, and to `shared`.
    ///
    /// # Errors
    /// If the donors cannot be reached.
    pub fn open(holding: &Arc<Holding>, shared: Arc<SharedMemory>) -> anyhow::Result<RunPages> {
        Ok(RunPages { reader: holding.slot_reader()?, shared })
    }
}

impl AbsentPages for RunPages {
    fn far(&mut self, slots: &[u32], into: &mut [u8]) -> io::Result<Vec<bool>> {
        let pages = slots.iter().zip(into.chunks_exact_mut(PAGE));
        Ok(pages.map(|(slot, page)| self.reader.read(*slot, page)).collect())
    }

    fn shared(&mut self, first: usize, into: &mut [u8]) -> io::Result<Vec<bool>> {
        let state = self.shared.state();
        Ok(match &*state {
            State::Paged(pager) => {
                pager.read(first, into, &mut |slot, page| self.reader.read(slot, page))
            }
            State::Unused | State::Refused | State::Ended => vec![false; into.len() / PAGE],
        })
    }
}
