//! Times and shares in text form: `1.4us`, `0.5%`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Defines a number that is read and written with a unit.
macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $units:expr, $what:literal, $example:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub u64);

        impl FromStr for $name {
            type Err = ParseUnitError;

            fn from_str(text: &str) -> Result<Self, ParseUnitError> {
                let error = || ParseUnitError { text: text.into(), what: $what, example: $example };
                parse(text, &$units).map(Self).ok_or_else(error)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write(f, self.0, &$units)
            }
        }

        as_text!($name);
    };
}

macro_rules! as_text {
    ($unit:ty) => {
        impl TryFrom<String> for $unit {
            type Error = ParseUnitError;

            fn try_from(text: String) -> Result<Self, ParseUnitError> {
                text.parse()
            }
        }

        impl From<$unit> for String {
            fn from(unit: $unit) -> String {
                unit.to_string()
            }
        }
    };
}

unit!(
    /// A virtual time or duration, in nanoseconds.
    Nanos, TIMES, "a time", "1.4us"
);
unit!(
    /// A virtual time or duration, in picoseconds.
    Picos, FINE_TIMES, "a time", "1.4us"
);
unit!(
    /// A rate of a link, in bits a second.
    BitRate, RATES, "a rate", "10Gbps"
);
unit!(
    /// A frequency, in hertz.
    Hertz, FREQUENCIES, "a frequency", "4GHz"
);
unit!(
    /// A number of bytes.
    Bytes, SIZES, "a size", "4KiB"
);

/// A share in parts per million, at most all of it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Share(pub u32);

as_text!(Share);

/// An unreadable value, with the expected form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {what}, for example {example}")]
pub struct ParseUnitError {
    text: String,
    what: &'static str,
    example: &'static str,
}

const TIMES: [(&str, u64); 5] =
    [("ns", 1), ("us", 1_000), ("µs", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
const FINE_TIMES: [(&str, u64); 6] = [
    ("ps", 1),
    ("ns", 1_000),
    ("us", 1_000_000),
    ("µs", 1_000_000),
    ("ms", 1_000_000_000),
    ("s", 1_000_000_000_000),
];
const RATES: [(&str, u64); 4] =
    [("bps", 1), ("kbps", 1_000), ("Mbps", 1_000_000), ("Gbps", 1_000_000_000)];
const FREQUENCIES: [(&str, u64); 4] =
    [("Hz", 1), ("kHz", 1_000), ("MHz", 1_000_000), ("GHz", 1_000_000_000)];
const SIZES: [(&str, u64); 7] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];
const SHARES: [(&str, u64); 2] = [("%", 10_000), ("ppm", 1)];

impl FromStr for Share {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let error =
            || ParseUnitError { text: text.into(), what: "a share up to 100%", example: "0.5%" };
        let parts = parse(text, &SHARES).filter(|&parts| parts <= 1_000_000).ok_or_else(error)?;
        Ok(Self(parts as u32))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, u64::from(self.0), &SHARES[..1])
    }
}

impl Picos {
    /// One nanosecond.
    pub const NANO: u64 = 1_000;
    /// One microsecond.
    pub const MICRO: u64 = 1_000_000;
    /// One second.
    pub const SECOND: u64 = 1_000_000_000_000;

    /// Returns the time in seconds, rounded to a float.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / Self::SECOND as f64
    }
}

impl BitRate {
    /// Returns the time that so many bytes take, in picoseconds, rounded up.
    ///
    /// # Panics
    /// If the rate is 0.
    pub fn time_of(self, bytes: u64) -> u64 {
        let bits = u128::from(bytes) * 8 * u128::from(Picos::SECOND);
        u64::try_from(bits.div_ceil(self.0.into())).unwrap_or(u64::MAX)
    }
}

/// Parses a decimal number and a unit; a bare `0` needs none. `None` if it is neither, too large,
/// or finer than the smallest unit.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    if text == "0" {
        return Some(0);
    }
    let number_len = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(number_len);
    let &(_, scale) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim()))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let places = 10u128.checked_pow(fraction.len() as u32)?;
    let fraction = fraction.parse::<u128>().ok()?.checked_mul(scale.into())?;
    if fraction % places != 0 {
        return None;
    }
    let fraction = u64::try_from(fraction / places).ok()?;
    whole.parse::<u64>().ok()?.checked_mul(scale)?.checked_add(fraction)
}

/// Writes the number in the largest unit that it fills with at most [`MOST_PLACES`], without
/// trailing zeros.
fn write(f: &mut fmt::Formatter<'_>, number: u64, units: &[(&str, u64)]) -> fmt::Result {
    let ascending = || units.iter().filter(|(name, _)| name.is_ascii());
    let is_written = |scale: u64| number >= scale && places(number % scale, scale).is_some();
    let fitting = ascending().filter(|(_, scale)| is_written(*scale)).max_by_key(|(_, s)| *s);
    let (name, scale) = fitting.or(ascending().next()).expect("there are units");
    let (whole, rest) = (number / scale, number % scale);
    match places(rest, *scale).expect("checked above, or the unit is 1") {
        0 => write!(f, "{whole}{name}"),
        width => {
            let digits = u128::from(rest) * 10u128.pow(width) / u128::from(*scale);
            let digits = format!("{digits:0width$}", width = width as usize);
            write!(f, "{whole}.{}{name}", digits.trim_end_matches('0'))
        }
    }
}

/// Decimal places of a number in text form.
const MOST_PLACES: u32 = 6;

/// Returns the number of decimal places that the fraction `rest / scale` needs, if few.
fn places(rest: u64, scale: u64) -> Option<u32> {
    (0..=MOST_PLACES)
        .find(|places| (u128::from(rest) * 10u128.pow(*places)).is_multiple_of(u128::from(scale)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_are_parsed() {
        assert_eq!("1.4us".parse(), Ok(Nanos(1400)));
        assert_eq!("250ns".parse(), Ok(Nanos(250)));
        assert_eq!("0".parse(), Ok(Nanos(0)));
        assert_eq!("2 s".parse(), Ok(Nanos(2_000_000_000)));
        assert_eq!("1%".parse(), Ok(Share(10_000)));
        assert_eq!("0.05%".parse(), Ok(Share(500)));
        assert_eq!("7ppm".parse(), Ok(Share(7)));
        assert_eq!("1.5us".parse(), Ok(Picos(1_500_000)));
        assert_eq!("10Gbps".parse(), Ok(BitRate(10_000_000_000)));
        assert_eq!("4KiB".parse(), Ok(Bytes(4096)));
        assert_eq!(
            (Bytes(4096).to_string(), Bytes(1500).to_string()),
            ("4KiB".into(), "1.5kB".into())
        );
        assert_eq!(BitRate(1_000_000_000).time_of(1538), 12_304_000);
    }

    #[test]
    fn invalid_value_gets_an_example() {
        for wrong in ["", "fast", "1", "1.5ns", "-1us", "1..2us", "99999999999s", "1.us", ".5us"] {
            assert!(wrong.parse::<Nanos>().is_err(), "{wrong}");
        }
        let error = "101%".parse::<Share>().unwrap_err();
        assert_eq!(error.to_string(), "'101%' is not a share up to 100%, for example 0.5%");
    }

    proptest! {
        #[test]
        fn text_round_trips(number in any::<u64>(), shift in 0..64u32) {
            let number = number >> shift;
            prop_assert_eq!(Nanos(number).to_string().parse(), Ok(Nanos(number)));
            let share = Share((number % 1_000_001) as u32);
            prop_assert_eq!(share.to_string().parse(), Ok(share));
            prop_assert_eq!(Picos(number).to_string().parse(), Ok(Picos(number)));
            prop_assert_eq!(BitRate(number).to_string().parse(), Ok(BitRate(number)));
            prop_assert_eq!(Hertz(number).to_string().parse(), Ok(Hertz(number)));
            prop_assert_eq!(Bytes(number).to_string().parse(), Ok(Bytes(number)));
        }
    }
}
