//! The CRMA channel: single accesses of 1 to 4096 bytes, each with a page of buffer for its answer;
//! and posted writes, which have none.

mod atomic;
mod posted;

use std::collections::VecDeque;

use venice_wire::MAX_PAYLOAD_BYTES;

pub use self::atomic::Atomic;
use self::posted::PostedWrites;
use crate::AccessError;

/// A CRMA access that is over.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion<'a> {
    /// The token given with the access.
    pub token: u64,
    /// Whether it succeeded.
    pub result: Result<(), AccessError>,
    /// The bytes read; for an atomic the eight that were there before, little-endian; empty for a
    /// write, a fence or an error. Valid until the next poll.
    pub data: &'a [u8],
}

impl Completion<'_> {
    /// What an atomic found; `None` if this is the completion of anything else, or an error.
    pub fn old_value(&self) -> Option<u64> {
        self.data.try_into().ok().map(u64::from_le_bytes)
    }
}

/// The accesses outstanding, and those done but not yet polled.
#[derive(Debug)]
pub(crate) struct Crma {
    slots: Box<[Slot]>,
    buffers: Box<[u8]>,
    free: Vec<u16>,
    done: VecDeque<u16>,
    posted: PostedWrites,
    /// The slot whose buffer the caller may be looking at.
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

    /// Whether another access can be taken.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Accesses that are over and not yet polled.
    pub(crate) fn done(&self) -> usize {
        self.done.len()
    }

    /// Takes a slot for an access; there must be room.
    pub(crate) fn begin(&mut self, token: u64) -> u16 {
        let slot = self.free.pop().expect("the caller checks for room");
        self.slots[usize::from(slot)] = Slot { token, result: Ok(()), data_len: 0 };
        slot
    }

    /// The access succeeded and brought `data`, at most a page.
    pub(crate) fn succeed(&mut self, slot: u16, data: &[u8]) {
        self.buffers[usize::from(slot) * MAX_PAYLOAD_BYTES..][..data.len()].copy_from_slice(data);
        self.slots[usize::from(slot)].data_len = data.len() as u16;
        self.done.push_back(slot);
    }

    /// The access failed.
    pub(crate) fn fail(&mut self, slot: u16, error: AccessError) {
        self.slots[usize::from(slot)].result = Err(error);
        self.done.push_back(slot);
    }

    /// A write was posted; returns the number it must be settled under.
    pub(crate) fn post(&mut self) -> u32 {
        self.posted.post()
    }

    /// A posted write is over.
    pub(crate) fn settle(&mut self, stretch: u32, result: Result<(), AccessError>) {
        self.posted.settle(stretch, result);
        self.finish_fences();
    }

    /// Takes a slot for a fence, which completes like an access; there must be room.
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

    /// The next access that is over. Its buffer is free again at the next call.
    pub(crate) fn poll(&mut self) -> Option<Completion<'_>> {
        self.free.extend(self.shown.take());
        let slot = self.done.pop_front()?;
        self.shown = Some(slot);
        let Slot { token, result, data_len } = self.slots[usize::from(slot)];
        let data = &self.buffers[usize::from(slot) * MAX_PAYLOAD_BYTES..][..usize::from(data_len)];
        Some(Completion { token, result, data })
    }
}
