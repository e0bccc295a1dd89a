//! Reassembles messages that travelled in several datagrams.

use venice_wire::{MAX_HOP_BYTES, SealedHeader};

/// The one message of a sender that is being reassembled. Pieces arrive one behind the other; if
/// those of two messages mix, the older message is dropped, and the link above replays it.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    /// Allocated with the first piece ever.
    buffer: Box<[u8]>,
    /// Counter of its first piece.
    first: u64,
    pieces: u8,
    /// Bitmap of the pieces that have come.
    have: u16,
    /// Length of every piece but the last, which may be shorter.
    each: usize,
    last_len: usize,
}

impl Reassembly {
    /// Allocates at once, for users that must not allocate later.
    pub(super) fn with_room() -> Self {
        Self { buffer: room(), ..Self::default() }
    }

    /// Takes the text of a genuine datagram; returns the message once it is complete. A message of
    /// one piece is returned unchanged.
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
            // The position of a last piece is known only once another piece has come: it is stored
            // behind all others until then.
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
    fn reassembles_pieces_in_any_order() {
        let mut whole = Reassembly::default();
        assert_eq!(whole.take(&header(10, 2, 3), b"e"), None);
        assert_eq!(whole.take(&header(10, 0, 3), b"ab"), None);
        assert_eq!(whole.take(&header(10, 1, 3), b"cd"), Some(&b"abcde"[..]));
    }

    #[test]
    fn incomplete_message_yields_to_next() {
        let mut whole = Reassembly::default();
        assert_eq!(whole.take(&header(0, 0, 2), b"lost"), None);
        assert_eq!(whole.take(&header(2, 0, 2), b"here"), None);
        assert_eq!(whole.take(&header(0, 1, 2), b"late"), None);
        assert_eq!(whole.take(&header(2, 1, 2), b"!"), None, "its buffer was reused as well");
        assert_eq!(whole.take(&header(4, 0, 1), b"single"), Some(&b"single"[..]));
    }

    proptest! {
        #[test]
        fn reassembly_never_panics(
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
