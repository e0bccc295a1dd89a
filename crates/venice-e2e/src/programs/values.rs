//! Values computed from their keys, so that a wrong byte is detected anywhere.

use venice_testkit::random::SplitMix64;

/// The length of every value, in bytes.
pub const VALUE_BYTES: usize = 1024;

/// Returns the value of `key` in its `generation`th writing: incompressible and different for each.
pub fn value(key: u64, generation: u64) -> [u8; VALUE_BYTES] {
    let mut random = SplitMix64(
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ generation.wrapping_mul(0xd1b5_4a32_d192_ed03),
    );
    let mut bytes = [0; VALUE_BYTES];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&random.draw().to_le_bytes());
    }
    bytes
}

/// Returns the numbers `0..count` in a pseudo-random order that is always the same.
pub fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut random = SplitMix64(seed);
    let mut order: Vec<u64> = (0..count).collect();
    for last in (1..order.len()).rev() {
        let other = random.below(last as u64 + 1) as usize;
        order.swap(last, other);
    }
    order
}
