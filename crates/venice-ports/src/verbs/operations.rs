//! Operations of a driver: outstanding, deferred and completed accesses.

use std::collections::VecDeque;

use venice_fabric::AccessError;

/// One access or transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub token: u64,
    pub result: Result<(), AccessError>,
    /// Bytes that it brings in its page.
    pub data_len: u16,
    /// Requests posted and not completed.
    outstanding: u32,
    /// True if a part of it is still to be posted.
    is_deferred: bool,
}

impl Operation {
    pub(super) fn new(token: u64, data_len: u16) -> Self {
        Self { token, result: Ok(()), data_len, outstanding: 0, is_deferred: false }
    }
}

/// Part of an operation that is still to be posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    pub link: u32,
    pub opcode: i32,
    pub remote_addr: u64,
    pub local_addr: u64,
    pub lkey: u32,
    pub left_bytes: u64,
}

impl Rest {
    /// Records that `len_bytes` more were posted.
    pub(super) fn advance(&mut self, len_bytes: u64) {
        self.remote_addr += len_bytes;
        self.local_addr += len_bytes;
        self.left_bytes -= len_bytes;
    }
}

/// Table of operations, of fixed size; the index of an operation is also that of its page.
#[derive(Debug)]
pub(super) struct Operations {
    table: Box<[Operation]>,
    free: Vec<u16>,
    waiting: VecDeque<(u16, Rest)>,
    done: VecDeque<u16>,
    /// Operation whose page the caller may be reading.
    shown: Option<u16>,
}

impl Operations {
    pub(super) fn new(depth: u16) -> Self {
        let room = usize::from(depth);
        Self {
            table: vec![Operation::new(0, 0); room].into(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::with_capacity(room),
            done: VecDeque::with_capacity(room),
            shown: None,
        }
    }

    /// Reserves a place for an operation; `None` if all are taken.
    pub(super) fn begin(&mut self, operation: Operation) -> Option<u16> {
        let index = self.free.pop()?;
        self.table[usize::from(index)] = operation;
        Some(index)
    }

    /// Records that a request of it was posted.
    pub(super) fn posted(&mut self, index: u16) {
        self.table[usize::from(index)].outstanding += 1;
    }

    /// Records that a request of it has completed.
    pub(super) fn completed(&mut self, index: u16, result: Result<(), AccessError>) {
        let operation = &mut self.table[usize::from(index)];
        operation.outstanding -= 1;
        if let (Ok(()), Err(reason)) = (operation.result, result) {
            operation.result = Err(reason);
        }
        self.settle(index);
    }

    /// Fails the operation: its unposted part is never posted.
    pub(super) fn fail(&mut self, index: u16, reason: AccessError) {
        let operation = &mut self.table[usize::from(index)];
        if operation.result.is_ok() {
            operation.result = Err(reason);
        }
        self.settle(index);
    }

    fn settle(&mut self, index: u16) {
        let operation = &self.table[usize::from(index)];
        if operation.outstanding == 0 && !operation.is_deferred {
            self.done.push_back(index);
        }
    }

    /// Defers the rest of an operation, behind the others that wait.
    pub(super) fn defer(&mut self, index: u16, rest: Rest) {
        self.table[usize::from(index)].is_deferred = true;
        self.waiting.push_back((index, rest));
    }

    /// Returns the number of deferred operations.
    pub(super) fn deferred_count(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the operation deferred first, to be posted or deferred again now.
    pub(super) fn next_deferred(&mut self) -> Option<(u16, Rest)> {
        let (index, rest) = self.waiting.pop_front()?;
        self.table[usize::from(index)].is_deferred = false;
        Some((index, rest))
    }

    /// True if an operation is complete and not taken.
    pub(super) fn any_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Takes the next completed operation. Its place is free again at the next call.
    pub(super) fn take_done(&mut self) -> Option<(u16, Operation)> {
        self.free.extend(self.shown.take());
        let index = self.done.pop_front()?;
        self.shown = Some(index);
        Some((index, self.table[usize::from(index)]))
    }
}
