//! Results of tasks, and their bytes in a mailbox.

use super::layout::{MAX_LOG_BYTES, MAX_MESSAGE_BYTES, RESULT_BYTES};

/// Outcome of a task as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ResultCode {
    /// Done.
    Done = 0,
    /// The request is malformed, or longer than a buffer.
    Malformed = 1,
    /// The accelerator does not run such code, or has no function of that name.
    Unsupported = 2,
    /// The executable cannot be built.
    Build = 3,
    /// It failed.
    Failed = 4,
    /// The output is longer than the task allowed.
    OutputTooLong = 5,
}

impl ResultCode {
    fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Done,
            1 => Self::Malformed,
            2 => Self::Unsupported,
            3 => Self::Build,
            4 => Self::Failed,
            5 => Self::OutputTooLong,
            _ => return None,
        })
    }
}

/// A task that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TaskError {
    /// Kind of the failure; not [`ResultCode::Done`].
    pub code: ResultCode,
    /// Reason, at most 4096 bytes of which reach the recipient.
    pub message: String,
}

impl TaskError {
    /// Returns an error of this kind.
    pub fn new(code: ResultCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// A finished task: length of its output in bytes, or its error.
pub type Outcome = Result<u64, TaskError>;

/// A result in a mailbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskResult {
    /// Outcome.
    pub outcome: Outcome,
    /// Time of the task on the accelerator in nanoseconds.
    pub time_ns: u64,
}

/// A result that no host writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed result of a task")]
pub struct ResultError;

impl TaskResult {
    /// Returns the bytes behind the completion word.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let (code, output_bytes, message) = match &self.outcome {
            Ok(bytes) => (ResultCode::Done, *bytes, ""),
            Err(error) => {
                (error.code, self.log().len() as u64, cut(&error.message, MAX_MESSAGE_BYTES))
            }
        };
        let mut bytes = Vec::with_capacity(RESULT_BYTES + message.len());
        bytes.extend_from_slice(&(code as u32).to_le_bytes());
        bytes.extend_from_slice(&(message.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&output_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.time_ns.to_le_bytes());
        bytes.extend_from_slice(message.as_bytes());
        bytes
    }

    /// Returns the message of a failure that is longer than a result takes: it is in the return
    /// buffer. Else an empty text.
    pub(crate) fn log(&self) -> &str {
        match &self.outcome {
            Err(error) if error.message.len() > MAX_MESSAGE_BYTES => {
                cut(&error.message, MAX_LOG_BYTES)
            }
            Ok(_) | Err(_) => "",
        }
    }

    /// Returns the length in bytes of the message that is in the return buffer; 0: the result has it.
    pub(crate) fn log_bytes(&self, bytes: &[u8]) -> usize {
        let word = bytes.get(8..16).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes);
        match (&self.outcome, word) {
            (Err(_), Some(len)) => len.min(MAX_LOG_BYTES as u64) as usize,
            (Ok(_), _) | (_, None) => 0,
        }
    }

    /// Returns the number that a message has behind the result: bytes that tasks have printed.
    pub(crate) fn printed_in(bytes: &[u8]) -> Option<u64> {
        let len = u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?) as usize;
        let word = bytes.get(RESULT_BYTES.checked_add(len)?..)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*word))
    }

    /// Reads a result; what follows it is ignored.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ResultError> {
        let (head, rest) = bytes.split_first_chunk::<RESULT_BYTES>().ok_or(ResultError)?;
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let code = ResultCode::from_number(number(0)).ok_or(ResultError)?;
        let len = number(4) as usize;
        let message = rest.get(..len).filter(|_| len <= MAX_MESSAGE_BYTES).ok_or(ResultError)?;
        let outcome = match code {
            ResultCode::Done => Ok(long(8)),
            code => Err(TaskError::new(code, String::from_utf8_lossy(message))),
        };
        Ok(Self { outcome, time_ns: long(16) })
    }
}

/// Cuts a message at a character's boundary.
fn cut(message: &str, most: usize) -> &str {
    let mut len = message.len().min(most);
    while !message.is_char_boundary(len) {
        len -= 1;
    }
    &message[..len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_message_has_log() {
        let result = |message: &str| TaskResult {
            outcome: Err(TaskError::new(ResultCode::Build, message)),
            time_ns: 7,
        };
        for (len, log_bytes) in [(256, 0), (257, 257), (9000, MAX_LOG_BYTES)] {
            let long = result(&"x".repeat(len));
            let bytes = long.emit();
            let read = TaskResult::parse(&bytes).unwrap();
            assert_eq!((long.log().len(), read.log_bytes(&bytes)), (log_bytes, log_bytes));
            assert_eq!(read, result(&"x".repeat(len.min(MAX_MESSAGE_BYTES))));
        }
        let done = TaskResult { outcome: Ok(9), time_ns: 7 };
        assert_eq!((done.log(), done.log_bytes(&done.emit())), ("", 0));
    }

    #[test]
    fn result_reads_back() {
        let done = TaskResult { outcome: Ok(77), time_ns: 5 };
        let failed = TaskError::new(ResultCode::Build, "line 3: no");
        let failed = TaskResult { outcome: Err(failed), time_ns: u64::MAX };
        for result in [done, failed] {
            let bytes = [result.emit(), vec![9; 40]].concat();
            assert_eq!(TaskResult::parse(&bytes).unwrap(), result);
            let nines = u64::from_le_bytes([9; 8]);
            assert_eq!(TaskResult::printed_in(&bytes), Some(nines));
            assert_eq!(TaskResult::printed_in(&result.emit()), None);
        }
    }

    #[test]
    fn long_message_is_cut() {
        let long = TaskError::new(ResultCode::Failed, "ä".repeat(MAX_MESSAGE_BYTES));
        let bytes = TaskResult { outcome: Err(long), time_ns: 0 }.emit();
        assert_eq!(bytes.len(), RESULT_BYTES + MAX_MESSAGE_BYTES);
        TaskResult::parse(&bytes).unwrap();
    }

    #[test]
    fn malformed_results_are_refused() {
        let mut bytes = TaskResult { outcome: Ok(1), time_ns: 0 }.emit();
        bytes[0] = 6;
        assert_eq!(TaskResult::parse(&bytes), Err(ResultError));
        bytes[0] = 4;
        bytes[4] = 1;
        assert_eq!(TaskResult::parse(&bytes), Err(ResultError));
        assert_eq!(TaskResult::parse(&bytes[..10]), Err(ResultError));
    }
}
