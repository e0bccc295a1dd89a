//! Messages that travelled in several datagrams, put together again.

use venice_wire::{MAX_HOP_BYTES, SealedHeader};

/// The message of one sender that is coming in just now. Pieces come one behind the other; where
/// those of two messages mix, the older message is given up, and the link above repeats it.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    /// Allocated with the first piece ever.
    buffer: Box<[u8]>,
    /// The counter of its first piece.
    first: u64,
    pieces: u8,
    /// Bit `i`: piece `i` is there.
    have: u16,
    /// Length of every piece but the last, which may be shorter.
    each: usize,
    last_len: usize,
}

impl Reassembly {
    /// For who must not allocate later.
    pub(super) fn with_room() -> Self {
        Self { buffer: room(), ..Self::default() }
    }

    /// Takes a genuine datagram's text; returns the message once all of it is there. A message of
    /// one piece is returned as it is.
    pub(super) fn take<'a>(
        &'a mut self,
        header: &SealedHeader,
        text: &'a [u8],
    ) -> Option<&'a [u8]> {
        if header.pieces == 1 {
            return Some(text);
        }
        let first = header.counter.checked_sub(header.piece.into())?;
        if (self.first, self.pieces) != (first, header.pieces) || self.have == 0 {
            if self.buffer.is_empty() {
                self.buffer = room();
            }
            (self.first, self.pieces, self.have, self.each) = (first, header.pieces, 0, 0);
        }
        self.put(header, text)?;
        self.have |= 1 << header.piece;
        if self.have.count_ones() < u32::from(self.pieces) {
            return None;
        }
        self.have = 0;
        self.close_up()
    }

    fn put(&mut self, header: &SealedHeader, text: &[u8]) -> Option<()> {
        if header.piece + 1 == header.pieces {
            // Where it belongs is known once another piece is there: it waits behind all others.
            self.buffer.get_mut(MAX_HOP_BYTES..)?.get_mut(..text.len())?.copy_from_slice(text);
            self.last_len = text.len();
            return Some(());
        }
        if self.each == 0 {
            self.each = text.len();
        }
        let at = usize::from(header.piece) * self.each;
        let place = self.buffer[..MAX_HOP_BYTES].get_mut(at..)?.get_mut(..text.len())?;
        place.copy_from_slice(text);
        (text.len() == self.each).then_some(())
    }

    fn close_up(&mut self) -> Option<&[u8]> {
        let at = usize::from(self.pieces - 1) * self.each;
        let len = at + self.last_len;
        if len > MAX_HOP_BYTES {
            return None;
        }
        self.buffer.copy_within(MAX_HOP_BYTES..MAX_HOP_BYTES + self.last_len, at);
        Some(&self.buffer[..len])
    }
}

fn room() -> Box<[u8]> {
    vec![0; 2 * MAX_HOP_BYTES].into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use venice_wire::{KeyName, NodeId, SealAlgorithm, SealDirection};

    fn header(first: u64, piece: u8, pieces: u8) -> SealedHeader {
        SealedHeader {
            algorithm: SealAlgorithm::Aes256Gcm,
            direction: SealDirection::ToOwner,
            key: KeyName::Peer(NodeId(1)),
            salt: 1,
            counter: first + u64::from(piece),
            pieces,
            piece,
        }
    }

    #[test]
    fn pieces_come_in_any_order() {
        let mut whole = Reassembly::default();
        assert_eq!(whole.take(&header(10, 2, 3), b"e"), None);
        assert_eq!(whole.take(&header(10, 0, 3), b"ab"), None);
        assert_eq!(whole.take(&header(10, 1, 3), b"cd"), Some(&b"abcde"[..]));
    }

    #[test]
    fn a_message_that_lacks_a_piece_is_given_up_for_the_next() {
        let mut whole = Reassembly::default();
        assert_eq!(whole.take(&header(0, 0, 2), b"lost"), None);
        assert_eq!(whole.take(&header(2, 0, 2), b"here"), None);
        assert_eq!(whole.take(&header(0, 1, 2), b"late"), None);
        assert_eq!(whole.take(&header(2, 1, 2), b"!"), None, "it made room as well");
        assert_eq!(whole.take(&header(4, 0, 1), b"single"), Some(&b"single"[..]));
    }

    proptest! {
        #[test]
        fn no_genuine_sender_can_make_it_panic(
            pieces in proptest::collection::vec((0u64..6, 0u8..15, 2u8..=15, 0usize..5000), 0..60)
        ) {
            let mut whole = Reassembly::with_room();
            for (first, piece, pieces, len) in pieces {
                let piece = piece % pieces;
                if let Some(message) = whole.take(&header(first, piece, pieces), &vec![1; len]) {
                    prop_assert!(message.len() <= MAX_HOP_BYTES);
                }
            }
        }
    }
}
