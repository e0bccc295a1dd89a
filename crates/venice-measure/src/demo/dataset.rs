//! The data of the demo: numbered keys, and values computed from the number.

use crate::pattern;

/// Bytes in one value.
pub const VALUE_BYTES: usize = 1024;

/// Bytes in one key, `key:` and twelve digits.
pub const KEY_BYTES: usize = 16;

/// The numbered keys `0..count`.
#[derive(Debug, Clone, Copy)]
pub struct Dataset {
    /// Number of keys.
    pub count: u64,
}

impl Dataset {
    /// Returns the data set with as many values as fit in `bytes`, and at least one.
    pub fn of_bytes(bytes: u64) -> Self {
        Self { count: (bytes / VALUE_BYTES as u64).max(1) }
    }

    /// Returns the bytes of all values together.
    pub fn bytes(&self) -> u64 {
        self.count * VALUE_BYTES as u64
    }
}

/// Returns the name of key `number` in redis.
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"key:000000000000";
    let mut rest = number;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    assert!(rest == 0, "a key number has at most twelve digits");
    key
}

/// Writes the value of key `number` to `out`.
pub fn fill_value(number: u64, out: &mut [u8; VALUE_BYTES]) {
    pattern::fill(number, out);
}

/// True if redis returned exactly the value of key `number`.
pub fn value_is_right(number: u64, value: Option<&[u8]>) -> bool {
    value.is_some_and(|bytes| bytes.len() == VALUE_BYTES && pattern::matches(number, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_twelve_digits() {
        assert_eq!(&key(0), b"key:000000000000");
        assert_eq!(&key(1_048_575), b"key:000001048575");
    }

    #[test]
    fn wrong_value_is_detected() {
        let mut value = [0u8; VALUE_BYTES];
        fill_value(5, &mut value);
        assert!(value_is_right(5, Some(&value)));
        assert!(!value_is_right(6, Some(&value)));
        assert!(!value_is_right(5, Some(&value[..1023])));
        assert!(!value_is_right(5, Some(&[])));
        assert!(!value_is_right(5, None));
    }

    #[test]
    fn dataset_counts_whole_values() {
        assert_eq!(Dataset::of_bytes(16 << 20).count, 16_384);
        assert_eq!(Dataset::of_bytes(1500).bytes(), 1024);
    }
}
