//! The messages with which processes of a run end, for the supervisor to print.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use super::RunBlock;

/// Messages that wait to be printed. A process that finds no room prints its own.
const MESSAGES: usize = 16;
/// Most bytes of a message.
pub const MESSAGE_BYTES: usize = 1000;

const FREE: u32 = 0;
const IN_USE: u32 = 1;
const COMPLETE: u32 = 2;

/// The messages of a run.
#[derive(Debug)]
#[repr(C)]
pub struct EndMessages([EndMessage; MESSAGES]);

#[derive(Debug)]
#[repr(C)]
struct EndMessage {
    /// `FREE`, `IN_USE` (by its writer or reader) or `COMPLETE`. A process killed while it writes
    /// uses up its entry.
    state: AtomicU32,
    pid: AtomicU32,
    len_bytes: AtomicU32,
    text: [AtomicU8; MESSAGE_BYTES],
}

impl EndMessage {
    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl EndMessages {
    /// Records the message of process `pid`, cut to [`MESSAGE_BYTES`]. `false`: there is no room.
    pub fn put(&self, pid: u32, text: &[u8]) -> bool {
        let Some(free) = self.0.iter().find(|message| message.change(FREE, IN_USE)) else {
            return false;
        };
        free.pid.store(pid, Ordering::Relaxed);
        free.len_bytes.store(text.len().min(MESSAGE_BYTES) as u32, Ordering::Relaxed);
        for (to, byte) in free.text.iter().zip(text) {
            to.store(*byte, Ordering::Relaxed);
        }
        free.change(IN_USE, COMPLETE)
    }
}

impl RunBlock {
    /// Takes the messages recorded since the last call, each with the id of its process.
    pub fn take_end_messages(&self) -> Vec<(u32, String)> {
        let complete =
            self.end_messages.0.iter().filter(|message| message.change(COMPLETE, IN_USE));
        let read = |message: &EndMessage| {
            let len_bytes = message.len_bytes.load(Ordering::Relaxed) as usize;
            let text = message.text.iter().take(len_bytes);
            let text: Vec<u8> = text.map(|byte| byte.load(Ordering::Relaxed)).collect();
            let pid = message.pid.load(Ordering::Relaxed);
            message.state.store(FREE, Ordering::Release);
            (pid, String::from_utf8_lossy(&text).into_owned())
        };
        complete.map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PortKind, RunBlockMap};
    use super::*;

    #[test]
    fn message_is_taken_once() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        assert!(block.end_messages.put(7, b"far memory is used up"));
        assert_eq!(block.take_end_messages(), [(7, "far memory is used up".to_string())]);
        assert!(block.take_end_messages().is_empty());
    }

    #[test]
    fn full_table_takes_no_message() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        assert!((0..MESSAGES).all(|_| block.end_messages.put(7, &[b'a'; 2 * MESSAGE_BYTES])));
        assert!(!block.end_messages.put(8, b"b"));
        assert_eq!(block.take_end_messages()[MESSAGES - 1].1.len(), MESSAGE_BYTES);
        assert!(block.end_messages.put(8, b"b"));
    }
}
