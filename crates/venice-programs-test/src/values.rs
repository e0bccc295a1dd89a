//! Values that follow from their keys, so that a wrong byte shows wherever it turns up.

/// The length of every value, in bytes.
pub const VALUE_BYTES: usize = 1024;

/// The value of `key` in its `generation`th writing: incompressible and different for each.
pub fn value(key: u64, generation: u64) -> [u8; VALUE_BYTES] {
    let mut state =
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ generation.wrapping_mul(0xd1b5_4a32_d192_ed03);
    let mut bytes = [0; VALUE_BYTES];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&split_mix(&mut state).to_le_bytes());
    }
    bytes
}

/// The next number of Steele and Vigna's SplitMix64.
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The numbers `0..count` in an order that looks random and is always the same.
pub fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut state = seed;
    let mut order: Vec<u64> = (0..count).collect();
    for last in (1..order.len()).rev() {
        let other = split_mix(&mut state) as usize % (last + 1);
        order.swap(last, other);
    }
    order
}
