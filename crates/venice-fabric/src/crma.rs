//! The CRMA channel: single accesses of 1 to 4096 bytes, each with a page of buffer for its answer.

use std::collections::VecDeque;

use venice_wire::MAX_PAYLOAD_BYTES;

use crate::AccessError;

/// A CRMA access that is over.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion<'a> {
    /// The token given with the access.
    pub token: u64,
    /// Whether it succeeded.
    pub result: Result<(), AccessError>,
    /// The bytes read; empty for a write or an error. Valid until the next poll.
    pub data: &'a [u8],
}

/// The accesses outstanding, and those done but not yet polled.
#[derive(Debug)]
pub(crate) struct Crma {
    slots: Box<[Slot]>,
    buffers: Box<[u8]>,
    free: Vec<u16>,
    done: VecDeque<u16>,
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
            shown: None,
        }
    }

    /// Whether another access can be taken.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
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
