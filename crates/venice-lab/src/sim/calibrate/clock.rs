//! The clock of a core, by a chain of instructions that each wait for the one before.

use std::hint::black_box;

use anyhow::Result;

use super::sample::Effort;

/// Links of the chain. Each is a shift and an exclusive or, of one cycle each.
const LINKS: u32 = 240_000;
const CYCLES_PER_LINK: f64 = 2.0;

/// Returns the frequency in hertz: that of the shortest sample, as nothing makes a chain faster.
pub(super) fn frequency(effort: &Effort) -> Result<f64> {
    let one = Effort { samples: 1, ..*effort };
    let mut shortest = f64::INFINITY;
    for _ in 0..effort.samples {
        let link = || {
            black_box(chain(black_box(1)));
            Ok(())
        };
        shortest = shortest.min(one.repeat(1, link)?.ns);
    }
    Ok(f64::from(LINKS) * CYCLES_PER_LINK * 1e9 / shortest)
}

/// Operators alone: a build without optimisation calls the functions of numbers.
#[inline(never)]
fn chain(mut value: u64) -> u64 {
    let mut left = LINKS / 6;
    while left > 0 {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
        value ^= value << 11;
        value ^= value >> 5;
        value ^= value << 19;
        left -= 1;
    }
    value
}
