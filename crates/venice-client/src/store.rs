//! The memory behind an object cache.

use std::sync::RwLock;

use venice_recipient::Copies;

use crate::Error;

/// Memory that is read and written by address, from any thread.
pub trait Store: Send + Sync {
    /// Returns its size in bytes.
    fn len_bytes(&self) -> u64;

    /// Returns the state of its copies, if there are any.
    fn copies(&self) -> Option<Copies> {
        None
    }

    /// Fills `into` from address `at` on.
    ///
    /// # Errors
    /// [`Error::DonorLost`] if the requested bytes were lost with their donor.
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), Error>;

    /// Stores `from` at address `at`; it is stored when this returns.
    ///
    /// # Errors
    /// Like [`Store::read_at`].
    fn write_at(&self, at: u64, from: &[u8]) -> Result<(), Error>;
}

/// Bytes of local memory under one lock.
const PIECE_BYTES: usize = 1 << 20;

/// Memory of this process: the baseline for borrowed memory.
pub struct LocalMemory {
    pieces: Vec<RwLock<Box<[u8]>>>,
}

impl LocalMemory {
    /// Allocates `len_bytes`, rounded up to whole pieces.
    pub fn of_bytes(len_bytes: u64) -> LocalMemory {
        let count = len_bytes.div_ceil(PIECE_BYTES as u64);
        let piece = || RwLock::new(vec![0; PIECE_BYTES].into_boxed_slice());
        LocalMemory { pieces: (0..count).map(|_| piece()).collect() }
    }

    /// Calls `access` with each piece that `at..at + len` touches: its lock, the range in it, the
    /// range in the whole access.
    fn each_piece(
        &self,
        at: u64,
        len: usize,
        mut access: impl FnMut(&RwLock<Box<[u8]>>, std::ops::Range<usize>, std::ops::Range<usize>),
    ) -> Result<(), Error> {
        let size_bytes = self.len_bytes();
        if at.checked_add(len as u64).is_none_or(|end| end > size_bytes) {
            return Err(Error::OutOfRange { offset: at, len_bytes: len as u64, size_bytes });
        }
        let mut done = 0;
        while done < len {
            let from = at + done as u64;
            let (piece, start) = (from / PIECE_BYTES as u64, (from % PIECE_BYTES as u64) as usize);
            let here = (PIECE_BYTES - start).min(len - done);
            access(&self.pieces[piece as usize], start..start + here, done..done + here);
            done += here;
        }
        Ok(())
    }
}

impl Store for LocalMemory {
    fn len_bytes(&self) -> u64 {
        (self.pieces.len() * PIECE_BYTES) as u64
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        self.each_piece(at, into.len(), |piece, within, of_access| {
            into[of_access].copy_from_slice(&piece.read().expect(UNPOISONED)[within]);
        })
    }

    fn write_at(&self, at: u64, from: &[u8]) -> Result<(), Error> {
        self.each_piece(at, from.len(), |piece, within, of_access| {
            piece.write().expect(UNPOISONED)[within].copy_from_slice(&from[of_access]);
        })
    }
}

const UNPOISONED: &str = "no thread panics while it holds the lock";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_spans_pieces_but_not_end() {
        let memory = LocalMemory::of_bytes(2 * PIECE_BYTES as u64 + 1);
        assert_eq!(memory.len_bytes(), 3 * PIECE_BYTES as u64);
        let written: Vec<u8> = (0..PIECE_BYTES + 7).map(|at| (at * 31) as u8).collect();
        let at = PIECE_BYTES as u64 - 3;
        memory.write_at(at, &written).unwrap();
        let mut read = vec![0; written.len()];
        memory.read_at(at, &mut read).unwrap();
        assert_eq!(read, written);
        let end = memory.read_at(2 * PIECE_BYTES as u64, &mut vec![0; PIECE_BYTES + 1]);
        assert!(matches!(end, Err(Error::OutOfRange { .. })));
        assert!(memory.write_at(u64::MAX, &[1]).is_err());
    }
}
