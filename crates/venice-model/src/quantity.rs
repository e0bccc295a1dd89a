//! Figures with units, in text form.

use serde::Serialize;

/// Quantity of a figure, which determines its notation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// A time, in nanoseconds: `75ns`, `1.4us`.
    Time,
    /// A length, in metres: `50m`, `2km`.
    Length,
    /// Time for each metre, in nanoseconds: `5ns/m`.
    TimePerLength,
    /// A part of a whole, of 1: `75%`, `0.75`. Above 1 for an increase.
    Share,
    /// A factor: `1.5`.
    Times,
    /// A number of things.
    Count,
    /// Money, in the unit of the given costs.
    Cost,
}

/// Error of a text that is not such a figure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}, for example {example}")]
pub struct ParseQuantityError {
    text: String,
    what: &'static str,
    example: &'static str,
}

/// Largest accepted figure: a larger one is a typing error, and no axis shows it.
const LARGEST: f64 = 1e15;

impl Quantity {
    /// Parses `text`; returns the figure in the base unit.
    ///
    /// # Errors
    /// Fails for text that is no number, negative, infinite, above 10¹⁵, or has another unit.
    pub fn parse(self, text: &str) -> Result<f64, ParseQuantityError> {
        let error = || {
            let (what, example) = self.words();
            ParseQuantityError { text: text.to_owned(), what, example }
        };
        let trimmed = text.trim();
        let unit_at = trimmed
            .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(unit_at);
        let number: f64 = number.parse().map_err(|_| error())?;
        let unit = unit.trim();
        let scale = self.units().iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
        let (_, scale) = scale
            .filter(|(name, _)| !name.is_empty() || self.needs_no_unit(number))
            .ok_or_else(error)?;
        let value = number * scale;
        if value <= LARGEST { Ok(value) } else { Err(error()) }
    }

    /// Formats the figure with its unit.
    #[must_use]
    pub fn write(self, value: f64) -> String {
        match self {
            Quantity::Time => prefixed(value, &[("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)]),
            Quantity::Length => prefixed(value, &[("m", 1.0), ("km", 1e3)]),
            Quantity::TimePerLength => format!("{} ns/m", digits(value)),
            Quantity::Share => format!("{} %", digits(100.0 * value)),
            Quantity::Times => format!("{} ×", digits(value)),
            Quantity::Count | Quantity::Cost => digits(value),
        }
    }

    /// Returns the placeholder of a value in a synopsis.
    #[must_use]
    pub fn placeholder(self) -> &'static str {
        match self {
            Quantity::Time => "TIME",
            Quantity::Length => "LENGTH",
            Quantity::TimePerLength => "TIME/m",
            Quantity::Share => "SHARE",
            Quantity::Times | Quantity::Count => "N",
            Quantity::Cost => "COST",
        }
    }

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Quantity::Time => ("a time", "75ns or 1.4us"),
            Quantity::Length => ("a length", "50m"),
            Quantity::TimePerLength => ("a time for each metre", "5ns/m"),
            Quantity::Share => ("a share", "75% or 0.75"),
            Quantity::Times | Quantity::Count => ("a number", "12"),
            Quantity::Cost => ("a cost", "350 or 0.5"),
        }
    }

    fn units(self) -> &'static [(&'static str, f64)] {
        match self {
            Quantity::Time => {
                &[("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9), ("", 1.0)]
            }
            Quantity::Length => &[("m", 1.0), ("km", 1e3), ("", 1.0)],
            Quantity::TimePerLength => &[("ns/m", 1.0), ("ns", 1.0), ("", 1.0)],
            Quantity::Share => &[("%", 0.01), ("", 1.0)],
            Quantity::Times | Quantity::Count | Quantity::Cost => &[("", 1.0)],
        }
    }

    /// True if a bare number is unambiguous: any count, 0 of everything else, and a share as a part
    /// of 1. `--latency 150` may mean anything, `--utilization 75` looks like percent.
    fn needs_no_unit(self, number: f64) -> bool {
        match self {
            Quantity::Times | Quantity::Count | Quantity::Cost => true,
            Quantity::Share => number <= 1.0,
            Quantity::Time | Quantity::Length | Quantity::TimePerLength => number == 0.0,
        }
    }
}

fn prefixed(value: f64, units: &[(&str, f64)]) -> String {
    // 999.6 ns would be written as 1000: it takes the next unit.
    let fits = |scale: f64| value.abs() >= scale * 0.9995;
    let (unit, scale) = units.iter().rfind(|(_, scale)| fits(*scale)).unwrap_or(&units[0]);
    format!("{} {unit}", digits(value / scale))
}

/// Formats three digits, without zeros at the end of the fraction.
fn digits(value: f64) -> String {
    let places = match value.abs() {
        ..0.995 => 3,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    let text = format!("{value:.places$}");
    let short = if places > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if short == "-0" { "0".to_owned() } else { short.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_figures_with_units() {
        assert_eq!(Quantity::Time.parse("75ns"), Ok(75.0));
        assert_eq!(Quantity::Time.parse("1.4 us"), Ok(1400.0));
        assert_eq!(Quantity::Time.parse("0"), Ok(0.0));
        assert_eq!(Quantity::Length.parse("2km"), Ok(2000.0));
        assert_eq!(Quantity::TimePerLength.parse("5ns/m"), Ok(5.0));
        assert_eq!(Quantity::Share.parse("75%"), Ok(0.75));
        assert_eq!(Quantity::Share.parse("0.75"), Ok(0.75));
        assert_eq!(Quantity::Count.parse("12"), Ok(12.0));
        assert_eq!(Quantity::Cost.parse("350.5"), Ok(350.5));
    }

    #[test]
    fn rejects_invalid_figures() {
        for (quantity, texts) in [
            (Quantity::Time, &["150", "-1ns", "fast", "", "1e3ns", "1.4.2us", "3m", "1e99s"][..]),
            (Quantity::Length, &["3", "3ft", "km"]),
            (Quantity::TimePerLength, &["5", "5us/m"]),
            (Quantity::Share, &["75", "-5%", "NaN", "inf%", "%"]),
            (Quantity::Count, &["", "twelve", "9999999999999999", "-1", "12 m"]),
        ] {
            for text in texts {
                assert!(quantity.parse(text).is_err(), "{quantity:?} {text}");
            }
        }
        assert!(Quantity::Time.parse("150").unwrap_err().to_string().contains("75ns"));
    }

    #[test]
    fn writes_three_digits() {
        assert_eq!(Quantity::Time.write(75.0), "75 ns");
        assert_eq!(Quantity::Time.write(1400.0), "1.4 µs");
        assert_eq!(Quantity::Time.write(999.8), "1 µs");
        assert_eq!(Quantity::Time.write(25e6), "25 ms");
        assert_eq!(Quantity::Length.write(200.0), "200 m");
        assert_eq!(Quantity::Share.write(1.0 / 3.0), "33.3 %");
        assert_eq!(Quantity::Share.write(2.667), "267 %");
        assert_eq!(Quantity::Times.write(2.333), "2.33 ×");
        assert_eq!(Quantity::Cost.write(0.0), "0");
        assert_eq!(Quantity::Cost.write(5.333), "5.33");
    }
}
