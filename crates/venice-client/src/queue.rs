//! Concurrent accesses: a bounded queue, and the thread that performs its accesses, many at a time.
//!
//! Accesses take effect in the order in which they were submitted: those taken from the queue
//! together are either all reads or all writes to different bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use venice_recipient::{Lane, LaneError, ReadPart, WritePart};

use crate::Error;
use crate::pending::Outcome;

/// Most accesses taken from the queue together.
const BATCH: usize = 64;

/// The callback of an access, called on the queue's thread.
pub type Done = Box<dyn FnOnce(Outcome) + Send>;

/// One access.
pub struct Access {
    /// The offset in bytes.
    pub offset: u64,
    /// The bytes to write, or the buffer to read into.
    pub buffer: Vec<u8>,
    /// True for a write.
    pub is_write: bool,
    /// The callback.
    pub done: Done,
}

/// The queue. When dropped, it finishes the submitted accesses.
pub struct Queue {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    most: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when there is an access, or the queue ends.
    work: Condvar,
    /// Signalled when an access has completed.
    room: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Access>,
    /// Accesses waiting or being performed.
    under_way: usize,
    is_ending: bool,
}

impl Queue {
    /// Starts a queue for at most `most` accesses at a time, performed by `lane`.
    ///
    /// # Errors
    /// [`Error::Refused`] if no thread can be started.
    pub fn start(lane: Lane, most: usize) -> Result<Queue, Error> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let thread = std::thread::Builder::new()
            .name("venice-queue".into())
            .spawn(move || carry_out_all(&theirs, lane))
            .map_err(|error| {
                Error::Refused(format!("cannot start a thread for asynchronous accesses: {error}"))
            })?;
        Ok(Queue { shared, thread: Some(thread), most: most.max(1) })
    }

    /// Submits an access; waits while the maximum is outstanding.
    pub fn submit(&self, access: Access) {
        let state = self.shared.lock();
        let is_full = |state: &mut State| state.under_way >= self.most;
        let mut state = self.shared.room.wait_while(state, is_full).expect(UNPOISONED);
        state.under_way += 1;
        state.waiting.push_back(access);
        self.shared.work.notify_one();
    }

    /// Returns the number of outstanding accesses.
    pub fn under_way(&self) -> usize {
        self.shared.lock().under_way
    }

    /// Waits until none is outstanding.
    pub fn drain(&self) {
        let state = self.shared.lock();
        drop(self.shared.room.wait_while(state, |state| state.under_way > 0));
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.lock().is_ending = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

const UNPOISONED: &str = "no thread panics while it holds the lock";

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(UNPOISONED)
    }

    /// Takes the next accesses, at least one; an empty list once the queue ends.
    fn take_batch(&self) -> Vec<Access> {
        let idle = |state: &mut State| state.waiting.is_empty() && !state.is_ending;
        let mut state = self.work.wait_while(self.lock(), idle).expect(UNPOISONED);
        let mut batch: Vec<Access> = Vec::with_capacity(state.waiting.len().min(BATCH));
        while batch.len() < BATCH
            && state.waiting.front().is_some_and(|next| may_join(&batch, next))
        {
            batch.extend(state.waiting.pop_front());
        }
        batch
    }

    fn finish(&self, count: usize) {
        self.lock().under_way -= count;
        self.room.notify_all();
    }
}

/// True if `next` can be performed together with those of `batch` without a visible difference.
fn may_join(batch: &[Access], next: &Access) -> bool {
    let overlaps = |other: &Access| {
        next.offset < other.offset + other.buffer.len() as u64
            && other.offset < next.offset + next.buffer.len() as u64
    };
    batch.iter().all(|other| other.is_write == next.is_write && !(next.is_write && overlaps(other)))
}

fn carry_out_all(shared: &Shared, mut lane: Lane) {
    loop {
        let batch = shared.take_batch();
        if batch.is_empty() {
            return;
        }
        let count = batch.len();
        if batch[0].is_write {
            write(&mut lane, batch)
        } else {
            read(&mut lane, batch)
        }
        shared.finish(count);
    }
}

fn read(lane: &mut Lane, mut batch: Vec<Access>) {
    let mut parts: Vec<ReadPart<'_>> =
        batch.iter_mut().map(|access| ReadPart::new(access.offset, &mut access.buffer)).collect();
    let all = lane.read_all(&mut parts);
    let lost: Vec<bool> = parts.iter().map(|part| part.is_lost).collect();
    for (access, is_lost) in batch.into_iter().zip(lost) {
        let Access { offset, mut buffer, done, .. } = access;
        let outcome = match (&all, is_lost) {
            (Err(error), _) => Err(error.clone()),
            // Repeated alone, to learn which donor is lost.
            (Ok(()), true) => lane.read(offset, &mut buffer),
            (Ok(()), false) => Ok(()),
        };
        complete(done, buffer, outcome);
    }
}

fn write(lane: &mut Lane, batch: Vec<Access>) {
    let mut parts: Vec<WritePart<'_>> =
        batch.iter().map(|access| WritePart::new(access.offset, &access.buffer)).collect();
    let all = lane.write_all(&mut parts);
    let lost: Vec<bool> = parts.iter().map(|part| part.is_lost).collect();
    for (access, is_lost) in batch.into_iter().zip(lost) {
        let Access { offset, buffer, done, .. } = access;
        let outcome = match (&all, is_lost) {
            (Err(error), _) => Err(error.clone()),
            (Ok(()), true) => lane.write(offset, &buffer),
            (Ok(()), false) => Ok(()),
        };
        complete(done, buffer, outcome);
    }
}

fn complete(done: Done, buffer: Vec<u8>, outcome: Result<(), LaneError>) {
    done(outcome.map(|()| buffer).map_err(Error::from));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(offset: u64, len: usize, is_write: bool) -> Access {
        Access { offset, buffer: vec![0; len], is_write, done: Box::new(drop) }
    }

    #[test]
    fn batch_keeps_visible_order() {
        let reads = [access(0, 10, false), access(5, 10, false)];
        assert!(may_join(&reads[..1], &reads[1]), "two reads of the same bytes");
        let writes = [access(0, 10, true), access(10, 5, true), access(9, 2, true)];
        assert!(may_join(&writes[..1], &writes[1]));
        assert!(!may_join(&writes[..2], &writes[2]), "bytes 9 and 10 are written twice");
        assert!(!may_join(&reads, &writes[1]) && !may_join(&writes, &reads[0]));
    }
}
