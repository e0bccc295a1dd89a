//! Queues completed accesses until they are polled.

use std::collections::VecDeque;

use venice_fabric::{AccessError, Completion, FabricError, RdmaCompletion};
use venice_wire::MAX_PAYLOAD_BYTES;

/// Most single accesses that may be complete and not yet polled; the same for bulk transfers.
const DEPTH: usize = 256;

/// Completions in the order their accesses were started, each with the time from which it may be
/// polled.
#[derive(Debug)]
pub(super) struct Queue {
    singles: VecDeque<Single>,
    bulk: VecDeque<(u64, RdmaCompletion)>,
    /// Pages for the bytes read. `free` lists the unused ones.
    pages: Box<[u8]>,
    free: Vec<usize>,
    /// Page that the caller may be reading.
    shown: Option<usize>,
}

#[derive(Debug)]
struct Single {
    due_ns: u64,
    token: u64,
    result: Result<(), AccessError>,
    page: usize,
    len_bytes: usize,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            singles: VecDeque::with_capacity(DEPTH),
            bulk: VecDeque::with_capacity(DEPTH),
            pages: vec![0; DEPTH * MAX_PAYLOAD_BYTES].into(),
            free: (0..DEPTH).rev().collect(),
            shown: None,
        }
    }

    /// Reserves a page for the bytes of one more single access.
    pub(super) fn take_page(&mut self) -> Result<(usize, &mut [u8]), FabricError> {
        let page = self.free.pop().ok_or(FabricError::WouldBlock)?;
        Ok((page, &mut self.pages[page * MAX_PAYLOAD_BYTES..][..MAX_PAYLOAD_BYTES]))
    }

    /// Copies `bytes` to the start of a reserved page.
    pub(super) fn fill(&mut self, page: usize, bytes: &[u8]) {
        self.pages[page * MAX_PAYLOAD_BYTES..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn give_page_back(&mut self, page: usize) {
        self.free.push(page);
    }

    /// Queues the completion of the access that reserved `page`: it ends at `due_ns` and brings the
    /// page's first `len_bytes`.
    pub(super) fn push(
        &mut self,
        due_ns: u64,
        token: u64,
        result: Result<(), AccessError>,
        page: usize,
        len_bytes: usize,
    ) {
        self.singles.push_back(Single { due_ns, token, result, page, len_bytes });
    }

    pub(super) fn has_bulk_room(&self) -> bool {
        self.bulk.len() < DEPTH
    }

    pub(super) fn push_bulk(&mut self, due_ns: u64, completion: RdmaCompletion) {
        self.bulk.push_back((due_ns, completion));
    }

    /// Returns the next single access if it has ended by `now_ns`. Its page is free again at the
    /// next call.
    pub(super) fn poll(&mut self, now_ns: u64) -> Option<Completion<'_>> {
        self.free.extend(self.shown.take());
        if self.singles.front()?.due_ns > now_ns {
            return None;
        }
        let Single { token, result, page, len_bytes, .. } = self.singles.pop_front()?;
        self.shown = Some(page);
        let data = &self.pages[page * MAX_PAYLOAD_BYTES..][..len_bytes];
        Some(Completion { token, result, data })
    }

    pub(super) fn poll_bulk(&mut self, now_ns: u64) -> Option<RdmaCompletion> {
        if self.bulk.front()?.0 > now_ns {
            return None;
        }
        Some(self.bulk.pop_front()?.1)
    }

    /// Returns the time at which the next access ends.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        let single_ns = self.singles.front().map(|single| single.due_ns);
        let bulk_ns = self.bulk.front().map(|bulk| bulk.0);
        single_ns.into_iter().chain(bulk_ns).min()
    }
}
