//! The seam between mailboxes and accelerators.

use std::cell::RefCell;

use super::outcome::{Outcome, ResultCode, TaskError};
use super::task::Task;

/// Memory with mailboxes in it. Others write to it at any time: implementations copy bytes and access
/// words atomically. A range beyond the end, or an unaligned word, is refused.
pub trait MailboxMemory {
    /// Copies bytes out.
    #[must_use]
    fn read(&self, offset: u64, into: &mut [u8]) -> bool;
    /// Copies bytes in.
    #[must_use]
    fn write(&self, offset: u64, from: &[u8]) -> bool;
    /// Loads a word, and with it what was stored before it.
    fn load_word(&self, offset: u64) -> Option<u64>;
    /// Stores a word after all that was stored before.
    #[must_use]
    fn store_word(&self, offset: u64, word: u64) -> bool;
    /// Returns the address of a range, if it has one for devices.
    fn address(&self, offset: u64, len: u64) -> Option<*mut u8>;
}

impl MailboxMemory for crate::region::RegionHost {
    fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        Self::read(self, offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> bool {
        Self::write(self, offset, from)
    }

    fn load_word(&self, offset: u64) -> Option<u64> {
        Self::load_word(self, offset)
    }

    fn store_word(&self, offset: u64, word: u64) -> bool {
        Self::store_word(self, offset, word)
    }

    fn address(&self, offset: u64, len: u64) -> Option<*mut u8> {
        self.at(offset, usize::try_from(len).ok()?)
    }
}

/// Memory of one thread: for accelerators of the program's own, and for virtual time.
#[derive(Debug)]
pub struct PrivateMemory(RefCell<Vec<u8>>);

impl PrivateMemory {
    /// Returns so many zeros.
    pub fn new(bytes: usize) -> Self {
        Self(RefCell::new(vec![0; bytes]))
    }
}

impl MailboxMemory for PrivateMemory {
    fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        let bytes = self.0.borrow();
        let from = bytes.get(offset as usize..).and_then(|rest| rest.get(..into.len()));
        from.map(|from| into.copy_from_slice(from)).is_some()
    }

    fn write(&self, offset: u64, from: &[u8]) -> bool {
        let mut bytes = self.0.borrow_mut();
        let into = bytes.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..from.len()));
        into.map(|into| into.copy_from_slice(from)).is_some()
    }

    fn load_word(&self, offset: u64) -> Option<u64> {
        let mut word = [0; 8];
        self.read(offset, &mut word).then(|| u64::from_le_bytes(word))
    }

    fn store_word(&self, offset: u64, word: u64) -> bool {
        self.write(offset, &word.to_le_bytes())
    }

    fn address(&self, _offset: u64, _len: u64) -> Option<*mut u8> {
        None
    }
}

/// Input and output of one task in its mailbox. The recipient may write to both meanwhile: only the
/// task's own result suffers.
pub struct TaskBuffers<'a> {
    pub(crate) memory: &'a dyn MailboxMemory,
    pub(crate) input_at: u64,
    pub(crate) input_bytes: u64,
    pub(crate) output_at: u64,
    pub(crate) output_bytes: u64,
}

impl TaskBuffers<'_> {
    /// Returns the length of the input in bytes.
    pub fn input_bytes(&self) -> u64 {
        self.input_bytes
    }

    /// Returns the longest output in bytes.
    pub fn output_bytes(&self) -> u64 {
        self.output_bytes
    }

    /// Copies input out.
    ///
    /// # Errors
    /// [`ResultCode::Malformed`] beyond its end.
    pub fn read_input(&self, offset: u64, into: &mut [u8]) -> Result<(), TaskError> {
        let is_inside = fits(offset, into.len(), self.input_bytes);
        match is_inside && self.memory.read(self.input_at + offset, into) {
            true => Ok(()),
            false => Err(TaskError::new(ResultCode::Malformed, "the input is too short")),
        }
    }

    /// Copies output in.
    ///
    /// # Errors
    /// [`ResultCode::OutputTooLong`] beyond its end.
    pub fn write_output(&mut self, offset: u64, from: &[u8]) -> Result<(), TaskError> {
        let is_inside = fits(offset, from.len(), self.output_bytes);
        match is_inside && self.memory.write(self.output_at + offset, from) {
            true => Ok(()),
            false => {
                let most = self.output_bytes;
                let said = format!("the output has more than the {most} bytes allowed");
                Err(TaskError::new(ResultCode::OutputTooLong, said))
            }
        }
    }

    /// Returns the addresses of the input and of the room for the output, for devices that work in
    /// place. No reference to them may be formed.
    pub fn addresses(&self) -> Option<(*const u8, *mut u8)> {
        let input = self.memory.address(self.input_at, self.input_bytes)?;
        Some((input.cast_const(), self.memory.address(self.output_at, self.output_bytes)?))
    }
}

fn fits(offset: u64, len: usize, room: u64) -> bool {
    offset.checked_add(len as u64).is_some_and(|end| end <= room)
}

/// An accelerator that runs tasks, one after the other.
pub trait Executor: Send {
    /// Runs a task; returns the length of its output in bytes. The buffers are those that the task
    /// names, and have been checked.
    ///
    /// # Errors
    /// The reason for the recipient.
    fn run(&mut self, task: &Task, buffers: &mut TaskBuffers<'_>) -> Outcome;

    /// Returns what tasks have printed since the last call.
    fn take_output(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Returns the least time of a task on the accelerator in nanoseconds, counted from its begin:
    /// for emulated ones. Its completion is not flagged earlier.
    fn least_time_ns(&self, _task: &Task) -> u64 {
        0
    }

    /// Returns the names of its functions, for recipients.
    fn functions(&self) -> Vec<String>;
}
