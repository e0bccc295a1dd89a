//! What tasks print, until the recipient has taken it. No I/O.

use std::collections::VecDeque;

/// Most bytes that are kept for the recipient.
const MAX_KEPT_BYTES: usize = 1 << 20;
/// Most bytes of one answer.
pub(crate) const PIECE_BYTES: usize = 16 << 10;

/// Output of tasks, with a number for each byte.
#[derive(Debug, Default)]
pub(crate) struct Printed {
    /// Number of the first byte that is kept.
    begin: u64,
    kept: VecDeque<u8>,
}

impl Printed {
    /// Adds output; what is beyond the bound is dropped. Returns the number behind the last byte.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> u64 {
        let room = MAX_KEPT_BYTES - self.kept.len();
        self.kept.extend(&bytes[..bytes.len().min(room)]);
        self.begin + self.kept.len() as u64
    }

    /// Returns a piece from a byte on, and forgets those before it.
    pub(crate) fn take_from(&mut self, first: u64) -> Vec<u8> {
        let taken = first.saturating_sub(self.begin).min(self.kept.len() as u64);
        self.kept.drain(..taken as usize);
        self.begin += taken;
        self.kept.iter().take(PIECE_BYTES).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_taken_in_pieces() {
        let mut printed = Printed::default();
        assert!(printed.take_from(0).is_empty());
        assert_eq!(printed.add(b"one\n"), 4);
        assert_eq!(printed.add(&[b'x'; PIECE_BYTES]), 4 + PIECE_BYTES as u64);
        assert_eq!(printed.take_from(0).len(), PIECE_BYTES);
        assert_eq!(printed.take_from(PIECE_BYTES as u64), [b'x'; 4]);
        assert!(printed.take_from(u64::MAX).is_empty());
        let all = MAX_KEPT_BYTES as u64 + 4 + PIECE_BYTES as u64;
        assert_eq!(printed.add(&vec![0; MAX_KEPT_BYTES + 9]), all, "the rest is dropped");
    }
}
