//! The memory of a bulk transfer: mapped ranges at donors, and local segments.

use venice_wire::MAX_PAYLOAD_BYTES;

/// A range of the mapped address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowRange {
    /// Its first address.
    pub window_addr: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
}

/// A bulk transfer between several mapped ranges and several local segments, each taken in the
/// order listed; both lists have the same length in bytes. Empty pieces are skipped.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ScatterGather {
    /// The mapped ranges.
    pub ranges: Vec<WindowRange>,
    /// The local segments.
    pub segments: Vec<Vec<u8>>,
}

/// The memory of one descriptor.
#[derive(Debug)]
pub(crate) enum Memory {
    /// One range, and one buffer of the same length.
    Plain {
        window_addr: u64,
        buffer: Vec<u8>,
    },
    Lists(ScatterGather),
}

/// A position in the segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    segment: u32,
    at: usize,
}

/// A position in ranges and segments, always on an existing byte, or past the end of all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    range: u32,
    range_at: u64,
    place: Place,
}

impl Memory {
    /// Returns the bytes on each side, the mapped side first; `None` if a range runs past the end
    /// of the address space.
    pub(crate) fn len_bytes(&self) -> Option<(u64, u64)> {
        match self {
            Self::Plain { window_addr, buffer } => {
                let len_bytes = buffer.len() as u64;
                window_addr.checked_add(len_bytes).map(|_| (len_bytes, len_bytes))
            }
            Self::Lists(ScatterGather { ranges, segments }) => {
                let there = ranges.iter().try_fold(0u64, |sum, range| {
                    range.window_addr.checked_add(range.len_bytes)?;
                    sum.checked_add(range.len_bytes)
                })?;
                Some((there, segments.iter().map(|segment| segment.len() as u64).sum()))
            }
        }
    }

    /// Returns the first address, for messages.
    pub(crate) fn window_addr(&self) -> u64 {
        self.range(0).map_or(0, |range| range.window_addr)
    }

    /// Returns the position of the first byte.
    pub(crate) fn start(&self) -> Cursor {
        let mut cursor = Cursor::default();
        self.advance(&mut cursor, 0);
        cursor
    }

    /// Returns the address of a cursor, and the most bytes that one chunk may have from there.
    pub(crate) fn piece(&self, cursor: &Cursor) -> Option<(u64, u16)> {
        let range = self.range(cursor.range)?;
        let len_bytes = (range.len_bytes - cursor.range_at).min(MAX_PAYLOAD_BYTES as u64);
        Some((range.window_addr + cursor.range_at, len_bytes as u16))
    }

    /// Advances by `len` bytes, which must not leave the range.
    pub(crate) fn advance(&self, cursor: &mut Cursor, len: u16) {
        cursor.range_at += u64::from(len);
        while self.range(cursor.range).is_some_and(|range| cursor.range_at == range.len_bytes) {
            (cursor.range, cursor.range_at) = (cursor.range + 1, 0);
        }
        let place = &mut cursor.place;
        place.at += usize::from(len);
        while let Some(segment) = self.segment(place.segment)
            && place.at >= segment.len()
        {
            place.at -= segment.len();
            place.segment += 1;
        }
    }

    /// Copies the bytes from `place` on into `into`.
    pub(crate) fn gather(&self, place: Place, into: &mut [u8]) {
        let (mut place, mut done) = (place, 0);
        while done < into.len() {
            let segment = self.segment(place.segment).expect("a chunk lies in the segments");
            let part = &segment[place.at..];
            let len = part.len().min(into.len() - done);
            into[done..done + len].copy_from_slice(&part[..len]);
            done += len;
            place = Place { segment: place.segment + 1, at: 0 };
        }
    }

    /// Copies `data` to the bytes from `place` on.
    pub(crate) fn scatter(&mut self, place: Place, data: &[u8]) {
        let (mut place, mut left) = (place, data);
        while !left.is_empty() {
            let segment = self.segment_mut(place.segment).expect("a chunk lies in the segments");
            let part = &mut segment[place.at..];
            let (now, later) = left.split_at(part.len().min(left.len()));
            part[..now.len()].copy_from_slice(now);
            left = later;
            place = Place { segment: place.segment + 1, at: 0 };
        }
    }

    /// Returns the caller's memory: the buffer, and the lists.
    pub(crate) fn give_back(self) -> (Vec<u8>, ScatterGather) {
        match self {
            Self::Plain { buffer, .. } => (buffer, ScatterGather::default()),
            Self::Lists(lists) => (Vec::new(), lists),
        }
    }

    fn range(&self, n: u32) -> Option<WindowRange> {
        match self {
            Self::Plain { window_addr, buffer } => (n == 0).then_some(WindowRange {
                window_addr: *window_addr,
                len_bytes: buffer.len() as u64,
            }),
            Self::Lists(lists) => lists.ranges.get(n as usize).copied(),
        }
    }

    fn segment(&self, n: u32) -> Option<&[u8]> {
        match self {
            Self::Plain { buffer, .. } => (n == 0).then_some(buffer),
            Self::Lists(lists) => lists.segments.get(n as usize).map(Vec::as_slice),
        }
    }

    fn segment_mut(&mut self, n: u32) -> Option<&mut [u8]> {
        match self {
            Self::Plain { buffer, .. } => (n == 0).then_some(buffer),
            Self::Lists(lists) => lists.segments.get_mut(n as usize).map(Vec::as_mut_slice),
        }
    }
}

impl Cursor {
    /// Returns the position in the segments.
    pub(crate) fn place(&self) -> Place {
        self.place
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Chunk by chunk, whatever the cuts on both sides, every byte goes where the lists place
        /// it.
        #[test]
        fn chunks_cover_lists_once(
            range_lens in prop::collection::vec(0..9000u64, 1..6),
            cuts in prop::collection::vec(0..3000usize, 0..12),
            shorter in 1..5000u16,
        ) {
            let total: u64 = range_lens.iter().sum();
            let mut at = 1 << 40;
            let ranges: Vec<_> = range_lens.iter().map(|&len_bytes| {
                at += 100_000;
                WindowRange { window_addr: at, len_bytes }
            }).collect();
            let mut left = total as usize;
            let mut segments = Vec::new();
            for cut in cuts {
                segments.push(vec![0; cut.min(left)]);
                left -= cut.min(left);
            }
            segments.push(vec![0; left]);
            let mut memory = Memory::Lists(ScatterGather { ranges: ranges.clone(), segments });
            prop_assert_eq!(memory.len_bytes(), Some((total, total)));

            let byte_at = |addr: u64| ((addr * 31) >> 3) as u8;
            let mut cursor = memory.start();
            let mut done = 0;
            while done < total {
                let (addr, len) = memory.piece(&cursor).unwrap();
                let len = len.min(shorter);
                prop_assert!(len > 0);
                let bytes: Vec<u8> = (addr..addr + u64::from(len)).map(byte_at).collect();
                memory.scatter(cursor.place(), &bytes);
                let mut back = vec![0; bytes.len()];
                memory.gather(cursor.place(), &mut back);
                prop_assert_eq!(back, bytes);
                memory.advance(&mut cursor, len);
                done += u64::from(len);
            }
            prop_assert!(memory.piece(&cursor).is_none());
            let expected: Vec<u8> = ranges.iter()
                .flat_map(|range| range.window_addr..range.window_addr + range.len_bytes)
                .map(byte_at)
                .collect();
            let (_, lists) = memory.give_back();
            prop_assert!(lists.segments.concat() == expected);
        }
    }
}
