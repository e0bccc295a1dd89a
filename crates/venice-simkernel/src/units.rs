//! Times and shares in text form: `1.4us`, `0.5%`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A virtual time or duration, in nanoseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Nanos(pub u64);

/// A share in parts per million, at most all of it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Share(pub u32);

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
const SHARES: [(&str, u64); 2] = [("%", 10_000), ("ppm", 1)];

impl FromStr for Nanos {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let error = || ParseUnitError { text: text.into(), what: "a time", example: "1.4us" };
        parse(text, &TIMES).map(Self).ok_or_else(error)
    }
}

impl FromStr for Share {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let error =
            || ParseUnitError { text: text.into(), what: "a share up to 100%", example: "0.5%" };
        let parts = parse(text, &SHARES).filter(|&parts| parts <= 1_000_000).ok_or_else(error)?;
        Ok(Self(parts as u32))
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
    let places = 10u64.checked_pow(fraction.len() as u32)?;
    let fraction = fraction.parse::<u64>().ok()?.checked_mul(scale)?;
    if fraction % places != 0 {
        return None;
    }
    whole.parse::<u64>().ok()?.checked_mul(scale)?.checked_add(fraction / places)
}

/// Writes the number in the largest unit it reaches, without trailing zeros.
fn write(f: &mut fmt::Formatter<'_>, number: u64, units: &[(&str, u64)]) -> fmt::Result {
    let mut ascending: Vec<_> = units.iter().filter(|(name, _)| name.is_ascii()).collect();
    ascending.sort_by_key(|(_, scale)| *scale);
    let fitting = ascending.iter().rfind(|(_, scale)| number >= *scale);
    let (name, scale) = fitting.or(ascending.first()).expect("there are units");
    let (whole, rest) = (number / scale, number % scale);
    if rest == 0 {
        return write!(f, "{whole}{name}");
    }
    let width = scale.ilog10() as usize;
    let digits = format!("{rest:0width$}");
    write!(f, "{whole}.{}{name}", digits.trim_end_matches('0'))
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, &TIMES)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, u64::from(self.0), &SHARES[..1])
    }
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

as_text!(Nanos);
as_text!(Share);

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
        }
    }
}
