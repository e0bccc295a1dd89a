//! A byte ring: the data one end has queued, or the other has received and not yet read.

/// A queue of bytes of fixed capacity.
#[derive(Debug, Default)]
pub(super) struct ByteRing {
    /// Its length is a power of two, or zero.
    bytes: Box<[u8]>,
    /// Byte counts since the start: `start..end` is in the ring.
    start: u64,
    end: u64,
}

impl ByteRing {
    /// Returns a ring for `capacity` bytes, a power of two.
    pub(super) fn new(capacity: usize) -> Self {
        assert!(capacity.is_power_of_two(), "positions must map to bytes by a mask");
        Self { bytes: vec![0; capacity].into(), start: 0, end: 0 }
    }

    pub(super) fn capacity(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn room(&self) -> usize {
        self.capacity() - self.len()
    }

    /// Appends `bytes`. Panics without room.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.room(), "credits never exceed the room");
        if bytes.is_empty() {
            return;
        }
        let at = self.index(self.end);
        let before_wrap = bytes.len().min(self.bytes.len() - at);
        self.bytes[at..at + before_wrap].copy_from_slice(&bytes[..before_wrap]);
        self.bytes[..bytes.len() - before_wrap].copy_from_slice(&bytes[before_wrap..]);
        self.end += bytes.len() as u64;
    }

    /// Appends a little-endian number. Panics without room.
    #[inline]
    pub(super) fn push_u32(&mut self, number: u32) {
        let bytes = number.to_le_bytes();
        assert!(self.room() >= 4, "credits never exceed the room");
        let at = self.index(self.end);
        match self.bytes.get_mut(at..at + 4) {
            Some(place) => {
                place.copy_from_slice(&bytes);
                self.end += 4;
            }
            None => self.push(&bytes),
        }
    }

    /// Returns `len` bytes at `offset` after the oldest, in two parts because of the wrap.
    pub(super) fn slices(&self, offset: usize, len: usize) -> (&[u8], &[u8]) {
        assert!(offset + len <= self.len(), "only what is in the ring can be seen");
        if len == 0 {
            return (&[], &[]);
        }
        let at = self.index(self.start + offset as u64);
        let before_wrap = len.min(self.bytes.len() - at);
        (&self.bytes[at..at + before_wrap], &self.bytes[..len - before_wrap])
    }

    /// Copies the bytes at `offset` after the oldest; as many as `into` is long must be there.
    pub(super) fn copy_to(&self, offset: usize, into: &mut [u8]) {
        let (front, back) = self.slices(offset, into.len());
        into[..front.len()].copy_from_slice(front);
        into[front.len()..].copy_from_slice(back);
    }

    /// Returns the little-endian number at `offset` after the oldest byte, if all of it is there.
    pub(super) fn u32_at(&self, offset: usize) -> Option<u32> {
        if self.len() < offset + 4 {
            return None;
        }
        let mut word = [0; 4];
        let at = self.index(self.start + offset as u64);
        match self.bytes.get(at..at + 4) {
            Some(bytes) => word.copy_from_slice(bytes),
            None => self.copy_to(offset, &mut word),
        }
        Some(u32::from_le_bytes(word))
    }

    /// Drops the oldest `len` bytes.
    pub(super) fn discard(&mut self, len: usize) {
        assert!(len <= self.len(), "only what is in the ring can be dropped");
        self.start += len as u64;
    }

    /// Drops all bytes; returns their number.
    pub(super) fn clear(&mut self) -> usize {
        let len = self.len();
        self.start = self.end;
        len
    }

    fn index(&self, position: u64) -> usize {
        position as usize & (self.bytes.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn ring_is_fifo(ops in prop::collection::vec((any::<bool>(), 0..20usize), 1..100)) {
            let (mut ring, mut model) = (ByteRing::new(16), VecDeque::<u8>::new());
            let mut next = 0u8;
            for (is_push, len) in ops {
                if is_push {
                    let bytes: Vec<u8> = (0..len.min(ring.room())).map(|n| next + n as u8).collect();
                    next = next.wrapping_add(bytes.len() as u8) % 100;
                    ring.push(&bytes);
                    model.extend(&bytes);
                } else {
                    let len = len.min(ring.len());
                    ring.discard(len);
                    model.drain(..len);
                }
                let mut all = vec![0; ring.len()];
                ring.copy_to(0, &mut all);
                prop_assert!(model.iter().eq(&all));
                prop_assert_eq!(ring.len() + ring.room(), ring.capacity());
            }
        }
    }
}
