//! Amounts of memory in human-readable form.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A number of bytes. Parses `256MiB`, `1.5GiB`, `4K` or `4096`, and serialises as a number.
///
/// A lone `K`, `M`, `G`, `T` or `P` and the units with `iB` are powers of 1024; `KB`, `MB`, … are
/// powers of 1000. Case is ignored, and so is space between number and unit. `Display` rounds to a
/// tenth of the largest binary unit that fits.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

/// The reason a text is not a [`ByteSize`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseByteSizeError {
    /// The text does not start with a number.
    #[error("{0:?} is not a size: write a number and a unit, for example 256MiB or 1.5GiB")]
    NotANumber(String),
    /// The number is negative.
    #[error("a size is not negative: {0:?}")]
    Negative(String),
    /// The number is followed by an unknown unit.
    #[error("{unit:?} in {text:?} is not a unit of size: use B, KiB, MiB, GiB, TiB, PiB or EiB")]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// The text found in the unit's place.
        unit: String,
    },
    /// A number without a unit, where one is required.
    #[error("missing unit in {0:?}: write for example {0}MiB, or {0}B for bytes")]
    MissingUnit(String),
    /// The size exceeds 64 bits.
    #[error("{0:?} is too large: sizes are below 16EiB")]
    TooLarge(String),
}

const BINARY_UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

impl ByteSize {
    /// Returns the number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Returns `n` times 1024² bytes.
    ///
    /// # Panics
    /// Panics if the product exceeds 64 bits.
    pub const fn mib(n: u64) -> Self {
        Self(n * (1 << 20))
    }

    /// Returns `n` times 1024³ bytes.
    ///
    /// # Panics
    /// Panics if the product exceeds 64 bits.
    pub const fn gib(n: u64) -> Self {
        Self(n * (1 << 30))
    }
}

impl ByteSize {
    /// Parses a size that has a unit; 0 needs none.
    ///
    /// # Errors
    /// [`ParseByteSizeError`]; [`ParseByteSizeError::MissingUnit`] for a lone number.
    pub fn parse_with_unit(text: &str) -> Result<Self, ParseByteSizeError> {
        let size: Self = text.parse()?;
        match size.0 > 0 && text.trim().ends_with(|c: char| c.is_ascii_digit()) {
            true => Err(ParseByteSizeError::MissingUnit(text.trim().to_owned())),
            false => Ok(size),
        }
    }
}

impl From<u64> for ByteSize {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl From<ByteSize> for u64 {
    fn from(size: ByteSize) -> Self {
        size.0
    }
}

impl FromStr for ByteSize {
    type Err = ParseByteSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        let is_negative = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.');
        if trimmed.strip_prefix('-').is_some_and(is_negative) {
            return Err(ParseByteSizeError::Negative(text.to_owned()));
        }
        let unit_at =
            trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(unit_at);
        let (mantissa, scale) =
            parse_decimal(number).ok_or_else(|| ParseByteSizeError::NotANumber(text.to_owned()))?;
        let unit_bytes = parse_unit(unit.trim()).ok_or_else(|| {
            ParseByteSizeError::UnknownUnit { text: text.to_owned(), unit: unit.trim().to_owned() }
        })?;
        let too_large = || ParseByteSizeError::TooLarge(text.to_owned());
        let scaled = mantissa.checked_mul(unit_bytes.into()).ok_or_else(too_large)? / scale;
        u64::try_from(scaled).map(Self).map_err(|_| too_large())
    }
}

/// Parses `12.5` as `(125, 10)`, which is exact where a float is not. Accepts at most 9 digits
/// after the point.
fn parse_decimal(number: &str) -> Option<(u128, u128)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits_only = fraction.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || number.ends_with('.') || !digits_only || fraction.len() > 9 {
        return None;
    }
    // Exceeds 64 bits in any unit. Clamps longer numbers, which then fail as too large and not as
    // no number.
    const TOO_LARGE: u128 = 1 << 66;
    let whole = whole.parse().unwrap_or(TOO_LARGE).min(TOO_LARGE);
    let scale = 10u128.pow(fraction.len() as u32);
    let fraction = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    Some((whole.checked_mul(scale)?.checked_add(fraction)?, scale))
}

fn parse_unit(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let (letter, base) = match unit.as_str() {
        "" | "b" => return Some(1),
        _ if unit.ends_with("ib") => (unit.strip_suffix("ib")?, 1024u64),
        _ if unit.ends_with('b') => (unit.strip_suffix('b')?, 1000),
        _ => (unit.as_str(), 1024),
    };
    let power = ["k", "m", "g", "t", "p", "e"].iter().position(|&known| known == letter)?;
    Some(base.pow(power as u32 + 1))
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut unit = 0;
        // Moves to the next unit once the value would round up to 1024.0 of this one.
        while unit + 1 < BINARY_UNITS.len() && tenths(self.0, unit) >= 10_240 {
            unit += 1;
        }
        let tenths = tenths(self.0, unit);
        let (whole, tenth) = (tenths / 10, tenths % 10);
        let text = match tenth {
            0 => format!("{whole}{}", BINARY_UNITS[unit]),
            _ => format!("{whole}.{tenth}{}", BINARY_UNITS[unit]),
        };
        f.pad(&text)
    }
}

/// Returns `bytes` in tenths of 1024^unit, rounded to the nearest.
fn tenths(bytes: u64, unit: usize) -> u128 {
    let unit_bytes = 1u128 << (10 * unit);
    (u128::from(bytes) * 10 + unit_bytes / 2) / unit_bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parses_common_notations() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("17b", 17),
            ("4K", 4096),
            ("4KiB", 4096),
            ("4kb", 4000),
            ("256MiB", 256 << 20),
            ("256 mib", 256 << 20),
            (" 1GiB ", 1 << 30),
            ("1.5GiB", 3 << 29),
            ("0.3K", 307),
            ("2T", 2 << 40),
            ("1PB", 1_000_000_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn parse_error_names_reason() {
        use ParseByteSizeError as E;
        assert_eq!(ByteSize::parse_with_unit("3"), Err(E::MissingUnit("3".into())));
        assert_eq!(ByteSize::parse_with_unit("0"), Ok(ByteSize(0)));
        assert_eq!(ByteSize::parse_with_unit("3B"), Ok(ByteSize(3)));
        for text in ["-1", "-5M", " -0.5GiB", "-.5G"] {
            assert_eq!(text.parse::<ByteSize>(), Err(E::Negative(text.into())), "{text}");
        }
        for text in ["", "GiB", "-", "--1", "-G", ".5G", "1.G", "1.2.3G", "1.0000000001G", "٣"] {
            assert_eq!(text.parse::<ByteSize>(), Err(E::NotANumber(text.into())), "{text}");
        }
        for text in ["1X", "1Gi", "1e9", "5 m m", "1iB"] {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert!(matches!(error, E::UnknownUnit { .. }), "{text}: {error}");
        }
        for text in
            ["18446744073709551616", "16384PiB", "99999999999999999999999999999999999999999"]
        {
            assert_eq!(text.parse::<ByteSize>(), Err(E::TooLarge(text.into())), "{text}");
        }
    }

    #[test]
    fn shows_binary_units() {
        for (bytes, text) in [
            (0, "0B"),
            (1000, "1000B"),
            (1536, "1.5KiB"),
            (256 << 20, "256MiB"),
            ((1 << 20) - 1, "1MiB"),
            (u64::MAX, "16EiB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}|", ByteSize(4096)), "    4KiB|");
    }

    proptest! {
        #[test]
        fn parse_never_panics(text in "\\PC*") {
            let _ = text.parse::<ByteSize>();
        }

        #[test]
        fn display_parses_within_five_percent(bytes in 0u64..1 << 59) {
            let back: ByteSize = ByteSize(bytes).to_string().parse().unwrap();
            prop_assert!(back.0.abs_diff(bytes) <= bytes / 20);
        }
    }
}
