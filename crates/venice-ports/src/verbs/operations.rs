//! The accesses of a driver that are under way, those waiting to be posted, and those done.

use std::collections::VecDeque;

use venice_fabric::AccessError;

/// One access or transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub token: u64,
    pub result: Result<(), AccessError>,
    /// Bytes it brings in its page.
    pub data_len: u16,
    /// Requests posted and not completed.
    under_way: u32,
    /// Whether some of it is still to be posted.
    put_off: bool,
}

impl Operation {
    pub(super) fn new(token: u64, data_len: u16) -> Self {
        Self { token, result: Ok(()), data_len, under_way: 0, put_off: false }
    }
}

/// What is still to be posted of an operation.
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
    /// So many bytes more are posted.
    pub(super) fn advance(&mut self, len_bytes: u64) {
        self.remote_addr += len_bytes;
        self.local_addr += len_bytes;
        self.left_bytes -= len_bytes;
    }
}

/// A table of fixed size; the index of an operation is also that of its page.
#[derive(Debug)]
pub(super) struct Operations {
    table: Box<[Operation]>,
    free: Vec<u16>,
    waiting: VecDeque<(u16, Rest)>,
    done: VecDeque<u16>,
    /// The one whose page the caller may be looking at.
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

    /// Takes a place for an operation; `None` when all are taken.
    pub(super) fn begin(&mut self, operation: Operation) -> Option<u16> {
        let index = self.free.pop()?;
        self.table[usize::from(index)] = operation;
        Some(index)
    }

    /// A request of it was posted.
    pub(super) fn posted(&mut self, index: u16) {
        self.table[usize::from(index)].under_way += 1;
    }

    /// A request of it is over.
    pub(super) fn completed(&mut self, index: u16, result: Result<(), AccessError>) {
        let operation = &mut self.table[usize::from(index)];
        operation.under_way -= 1;
        if let (Ok(()), Err(reason)) = (operation.result, result) {
            operation.result = Err(reason);
        }
        self.settle(index);
    }

    /// What is not yet posted of it never will be.
    pub(super) fn fail(&mut self, index: u16, reason: AccessError) {
        let operation = &mut self.table[usize::from(index)];
        if operation.result.is_ok() {
            operation.result = Err(reason);
        }
        self.settle(index);
    }

    fn settle(&mut self, index: u16) {
        let operation = &self.table[usize::from(index)];
        if operation.under_way == 0 && !operation.put_off {
            self.done.push_back(index);
        }
    }

    /// Keeps the rest of an operation for later, behind the others that wait.
    pub(super) fn put_off(&mut self, index: u16, rest: Rest) {
        self.table[usize::from(index)].put_off = true;
        self.waiting.push_back((index, rest));
    }

    /// How many wait.
    pub(super) fn put_off_count(&self) -> usize {
        self.waiting.len()
    }

    /// The one that waits longest, to be posted or put off again now.
    pub(super) fn next_put_off(&mut self) -> Option<(u16, Rest)> {
        let (index, rest) = self.waiting.pop_front()?;
        self.table[usize::from(index)].put_off = false;
        Some((index, rest))
    }

    /// Whether one is done and not taken.
    pub(super) fn any_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// The next that is done. Its place is free again at the next call.
    pub(super) fn take_done(&mut self) -> Option<(u16, Operation)> {
        self.free.extend(self.shown.take());
        let index = self.done.pop_front()?;
        self.shown = Some(index);
        Some((index, self.table[usize::from(index)]))
    }
}
