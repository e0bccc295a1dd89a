//! The CRMA channel: single accesses of 1 to 4096 bytes, each with a page of buffer for its answer;
//! and posted writes, which have none.

mod atomic;
mod posted;

use std::collections::VecDeque;

use venice_wire::MAX_PAYLOAD_BYTES;

pub use self::atomic::Atomic;
use self::posted::PostedWrites;
use crate::AccessError;

/// A completed CRMA access.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion<'a> {
    /// The token given with the access.
    pub token: u64,
    /// The outcome.
    pub result: Result<(), AccessError>,
    /// The bytes read; for an atomic the eight previous bytes, little-endian; empty for a write, a
    /// fence or an error. Valid until the next poll.
    pub data: &'a [u8],
}

impl Completion<'_> {
    /// Returns the value an atomic found; `None` for the completion of anything else, or an error.
    pub fn old_value(&self) -> Option<u64> {
        self.data.try_into().ok().map(u64::from_le_bytes)
    }
}

/// The outstanding accesses, and the completed ones not yet polled.
#[derive(Debug)]
pub(crate) struct Crma {
    slots: Box<[Slot]>,
    buffers: Box<[u8]>,
    free: Vec<u16>,
    done: VecDeque<u16>,
    posted: PostedWrites,
    /// The slot whose buffer the caller may be reading.
    shown: Option<u16>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    token: u64,
    result: Result<(), AccessError>,
    data_len: u16,
}

impl Crma {
    pub(crate) fn new(depth: u16) -> Self {
        let depth = depth.max(1);
        Self {
            slots: vec![Slot { token: 0, result: Ok(()), data_len: 0 }; depth.into()].into(),
            buffers: vec![0; usize::from(depth) * MAX_PAYLOAD_BYTES].into(),
            free: (0..depth).rev().collect(),
            done: VecDeque::with_capacity(depth.into()),
            posted: PostedWrites::new(depth),
            shown: None,
        }
    }

    /// True if another access can be taken.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns the number of completed accesses not yet polled.
    pub(crate) fn done(&self) -> usize {
        self.done.len()
    }

    /// Takes a slot for an access. Panics without room.
    pub(crate) fn begin(&mut self, token: u64) -> u16 {
        let slot = self.free.pop().expect("the caller checks for room");
        self.slots[usize::from(slot)] = Slot { token, result: Ok(()), data_len: 0 };
        slot
    }

    /// Completes an access with `data`, at most a page.
    pub(crate) fn succeed(&mut self, slot: u16, data: &[u8]) {
        self.buffers[usize::from(slot) * MAX_PAYLOAD_BYTES..][..data.len()].copy_from_slice(data);
        self.slots[usize::from(slot)].data_len = data.len() as u16;
        self.done.push_back(slot);
    }

    /// Completes an access with an error.
    pub(crate) fn fail(&mut self, slot: u16, error: AccessError) {
        self.slots[usize::from(slot)].result = Err(error);
        self.done.push_back(slot);
    }

    /// Counts a posted write; returns the number under which it must be settled.
    pub(crate) fn post(&mut self) -> u32 {
        self.posted.post()
    }

    /// Settles a posted write.
    pub(crate) fn settle(&mut self, stretch: u32, result: Result<(), AccessError>) {
        self.posted.settle(stretch, result);
        self.finish_fences();
    }

    /// Takes a slot for a fence, which completes like an access. Panics without room.
    pub(crate) fn fence(&mut self, token: u64) {
        let slot = self.begin(token);
        self.posted.fence(slot);
        self.finish_fences();
    }

    fn finish_fences(&mut self) {
        while let Some((slot, result)) = self.posted.pop_complete() {
            self.slots[usize::from(slot)].result = result;
            self.done.push_back(slot);
        }
    }

    /// Returns the next completed access. Its buffer is free again at the next call.
    pub(crate) fn poll(&mut self) -> Option<Completion<'_>> {
        self.free.extend(self.shown.take());
        let slot = self.done.pop_front()?;
        self.shown = Some(slot);
        let Slot { token, result, data_len } = self.slots[usize::from(slot)];
        let data = &self.buffers[usize::from(slot) * MAX_PAYLOAD_BYTES..][..usize::from(data_len)];
        Some(Completion { token, result, data })
    }
}
