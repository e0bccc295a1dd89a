//! Values that can be checked to the last byte without computing them: slices of one long
//! incompressible text, with a number in front.
//!
//! The client's share of a request has to be small, since it shares its processors with the server:
//! a value is stored and checked by copying and comparing memory.

use venice_measure::pattern;

/// Bytes of the number.
const HEAD_BYTES: usize = 16;
/// Number of offsets at which slices begin.
const PLACES: usize = 1 << 20;
/// Seed of the text's pattern.
const TEXT: u64 = 0x7669_6374_696d;

/// All values of one size.
#[derive(Debug)]
pub(super) struct Values {
    text: Vec<u8>,
    pub(super) value_bytes: usize,
}

impl Values {
    pub(super) fn of_bytes(value_bytes: usize) -> Self {
        let mut text = vec![0; value_bytes.saturating_sub(HEAD_BYTES) + PLACES];
        pattern::fill(TEXT, &mut text);
        Self { text, value_bytes }
    }

    /// Returns the value of `key` in `version`: its number and its slice.
    pub(super) fn parts(&self, key: u64, version: u64) -> ([u8; HEAD_BYTES], &[u8]) {
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&key.to_le_bytes());
        head[8..].copy_from_slice(&version.to_le_bytes());
        let at = pattern::scramble(key ^ version << 40) as usize % PLACES;
        (head, &self.text[at..at + self.value_bytes - HEAD_BYTES])
    }

    /// True if `value` is that of `key` in `version`, to the last byte.
    pub(super) fn is_right(&self, key: u64, version: u64, value: &[u8]) -> bool {
        let (head, window) = self.parts(key, version);
        value.split_at_checked(HEAD_BYTES) == Some((&head[..], window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_wrong_byte_is_detected() {
        let values = Values::of_bytes(1000);
        let whole = |key, version| {
            let (head, window) = values.parts(key, version);
            [&head[..], window].concat()
        };
        let mut value = whole(7, 3);
        assert_eq!(value.len(), 1000);
        assert!(values.is_right(7, 3, &value));
        for (key, version) in [(7, 2), (8, 3), (3, 7)] {
            assert!(!values.is_right(7, 3, &whole(key, version)));
            assert_ne!(whole(key, version)[HEAD_BYTES..], value[HEAD_BYTES..]);
        }
        for at in 0..value.len() {
            value[at] ^= 1;
            assert!(!values.is_right(7, 3, &value), "a flipped bit at {at} was not detected");
            value[at] ^= 1;
        }
        assert!(!values.is_right(7, 3, &value[..999]) && !values.is_right(7, 3, &[]));
    }
}
