//! Random sizes and times of published workloads.
//!
//! Drawn with functions that give the same bits on every machine (the crate `libm`, IEEE 754 beside).

use serde::{Deserialize, Serialize};
use venice_simkernel::random::Stream;

use crate::host::config::BadValue;

/// A distribution of a positive number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum Distribution {
    /// Always the same.
    Constant {
        /// The value.
        value: f64,
    },
    /// Exponential.
    Exponential {
        /// The mean.
        mean: f64,
    },
    /// Generalized extreme values.
    ExtremeValue {
        /// Location.
        location: f64,
        /// Scale.
        scale: f64,
        /// Shape; positive: a heavy tail.
        shape: f64,
    },
    /// Generalized Pareto.
    Pareto {
        /// Location.
        location: f64,
        /// Scale.
        scale: f64,
        /// Shape, below 1 for a finite mean.
        shape: f64,
    },
}

impl Distribution {
    /// Lengths of keys in Facebook's pool ETC, in bytes (Atikoglu et al., SIGMETRICS 2012, section 5).
    pub const ETC_KEY: Self =
        Self::ExtremeValue { location: 30.7984, scale: 8.20449, shape: 0.078688 };
    /// Lengths of values in that pool from 15 bytes on.
    const ETC_LONG_VALUE: Self = Self::Pareto { location: 15.0, scale: 214.476, shape: 0.348238 };
    /// Microseconds between two requests at one server of that pool.
    pub const ETC_GAP: Self = Self::Pareto { location: 0.0, scale: 16.0292, shape: 0.154971 };

    /// Draws a number.
    pub fn draw(&self, random: &mut Stream) -> f64 {
        match *self {
            Self::Constant { value } => value,
            Self::Exponential { mean } => -libm::log(share(random)) * mean,
            Self::ExtremeValue { location, scale, shape } => {
                let power = libm::pow(-libm::log(share(random)), -shape);
                location + scale * (power - 1.0) / shape
            }
            Self::Pareto { location, scale, shape } => {
                location + scale * (libm::pow(share(random), -shape) - 1.0) / shape
            }
        }
    }

    /// Checks its bounds; `key` is its name.
    ///
    /// # Errors
    /// The value that is out of its bounds.
    pub fn check(&self, key: &str) -> Result<(), BadValue> {
        let (part, value) = match *self {
            Self::Constant { value } => ("value", value),
            Self::Exponential { mean } => ("mean", mean),
            Self::ExtremeValue { scale, .. } | Self::Pareto { scale, .. } => ("scale", scale),
        };
        let is_good = (0.0..=1e12).contains(&value);
        BadValue::unless(is_good, part, value, "0 to 1e12").map_err(|bad| bad.within(key))
    }

    /// Returns the mean; infinite where the tail is too heavy.
    pub fn mean(&self) -> f64 {
        match *self {
            Self::Constant { value } => value,
            Self::Exponential { mean } => mean,
            Self::ExtremeValue { location, scale, shape } if shape < 1.0 => {
                location + scale * (libm::tgamma(1.0 - shape) - 1.0) / shape
            }
            Self::Pareto { location, scale, shape } if shape < 1.0 => {
                location + scale / (1.0 - shape)
            }
            Self::ExtremeValue { .. } | Self::Pareto { .. } => f64::INFINITY,
        }
    }
}

/// A share above 0, up to 1.
fn share(random: &mut Stream) -> f64 {
    ((random.draw() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// Probabilities of values of 0 to 14 bytes in Facebook's pool ETC, in hundred-thousandths (the
/// distribution that mutilate has of Atikoglu et al.).
const ETC_SHORT_VALUES: [u32; 15] =
    [536, 47, 17820, 9239, 18, 2740, 65, 606, 23, 837, 837, 8989, 92, 326, 1980];

/// Draws the length of a key in Facebook's pool ETC, 1 to 250 bytes (memcached's bound).
pub fn etc_key(random: &mut Stream) -> u32 {
    Distribution::ETC_KEY.draw(random).clamp(1.0, 250.0) as u32
}

/// Draws the length of a value in that pool, at most `most` bytes.
pub fn etc_value(random: &mut Stream, most: u32) -> u32 {
    let mut place = random.below(100_000) as u32;
    for (bytes, share) in (0..).zip(ETC_SHORT_VALUES) {
        match place.checked_sub(share) {
            None => return bytes,
            Some(rest) => place = rest,
        }
    }
    Distribution::ETC_LONG_VALUE.draw(random).min(f64::from(most)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(mut draw: impl FnMut(&mut Stream) -> f64) -> f64 {
        const DRAWS: u32 = 400_000;
        let mut random = Stream::new(1);
        (0..DRAWS).map(|_| draw(&mut random)).sum::<f64>() / f64::from(DRAWS)
    }

    #[test]
    fn published_means_are_met() {
        let near = |one: f64, other: f64| (one / other - 1.0).abs() < 0.02;
        for (distribution, published) in
            [(Distribution::ETC_KEY, 36.2), (Distribution::ETC_GAP, 18.97)]
        {
            assert!(near(distribution.mean(), published), "{distribution:?}");
            let drawn = mean(|random| distribution.draw(random));
            assert!(near(drawn, published), "{drawn} of {published}");
        }
        let drawn = mean(|random| etc_value(random, 1 << 20).into());
        assert!(near(drawn, 194.0), "{drawn}");
        let exponential = Distribution::Exponential { mean: 7.0 };
        assert!(near(mean(|random| exponential.draw(random)), 7.0));
    }

    #[test]
    fn draws_repeat_bit_for_bit() {
        let mut random = Stream::new(9);
        let drawn: Vec<u64> =
            (0..4).map(|_| Distribution::ETC_KEY.draw(&mut random).to_bits()).collect();
        let expected =
            [4630685016963198949, 4631046909106123369, 4628716374569794320, 4631262891545520138u64];
        assert_eq!(drawn, expected);
    }
}
