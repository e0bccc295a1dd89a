//! The memory behind the device's pages.

use std::sync::{Arc, Mutex, PoisonError};

/// Memory that is not this program's own. A value serves one queue of the device; the values of all
/// queues name the same bytes.
///
/// The kernel waits for these calls while it reclaims memory: they must not allocate.
pub trait Backing: Send {
    /// Fills `into` from `offset` on.
    ///
    /// # Errors
    /// The bytes are lost or unreachable: the program that owns the page gets SIGBUS.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), BackingError>;

    /// Stores `from` at `offset`; it is stored when this returns.
    ///
    /// # Errors
    /// The bytes cannot be stored: the kernel keeps the pages.
    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), BackingError>;
}

/// The reason the bytes could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct BackingError {
    /// The reason, as reported by the port.
    pub reason: &'static str,
}

const CHUNK_BYTES: u64 = 64 << 10;

/// Memory of this process itself, for tests and to measure the cost of the device alone.
#[derive(Clone, Debug)]
pub struct OwnMemory {
    chunks: Arc<[Mutex<Box<[u8]>>]>,
}

impl OwnMemory {
    /// Allocates `len_bytes`, rounded up to whole chunks.
    #[must_use]
    pub fn new(len_bytes: u64) -> Self {
        let chunk = || Mutex::new(vec![1u8; CHUNK_BYTES as usize].into_boxed_slice());
        Self { chunks: (0..len_bytes.div_ceil(CHUNK_BYTES)).map(|_| chunk()).collect() }
    }

    fn each_chunk(&self, offset: u64, len: usize, mut work: impl FnMut(&mut [u8], usize)) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let chunk = &self.chunks[(at / CHUNK_BYTES) as usize];
            let mut chunk = chunk.lock().unwrap_or_else(PoisonError::into_inner);
            let from = (at % CHUNK_BYTES) as usize;
            let room = (CHUNK_BYTES as usize - from).min(len - done);
            work(&mut chunk[from..from + room], done);
            done += room;
        }
    }
}

impl Backing for OwnMemory {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), BackingError> {
        self.each_chunk(offset, into.len(), |chunk, at| {
            into[at..at + chunk.len()].copy_from_slice(chunk);
        });
        Ok(())
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), BackingError> {
        self.each_chunk(offset, from.len(), |chunk, at| {
            chunk.copy_from_slice(&from[at..at + chunk.len()]);
        });
        Ok(())
    }
}
