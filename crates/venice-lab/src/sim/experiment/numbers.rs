//! Figures as text.

/// Formats a figure with four digits; a whole number with all of its own.
pub(super) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let size = value.abs();
    if (value == value.round() && size < 1e15) || size >= 1000.0 {
        return format!("{value:.0}");
    }
    if size < 1e-3 {
        return format!("{value:.3e}");
    }
    let digits = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{value:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a figure with its unit.
pub(super) fn with_unit(value: f64, unit: &str) -> String {
    let text = number(value);
    if unit.is_empty() { text } else { format!("{text} {unit}") }
}

/// Formats picoseconds with a fitting unit.
pub(super) fn time(ps: u64) -> String {
    let units = [(1e12, "s"), (1e9, "ms"), (1e6, "us"), (1e3, "ns"), (1.0, "ps")];
    let value = ps as f64;
    let (scale, unit) = units.into_iter().find(|(scale, _)| value >= *scale).unwrap_or((1.0, "s"));
    format!("{} {unit}", number(value / scale))
}

/// Formats a count of events a second.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        1e6.. => format!("{:.1} M events/s", per_second / 1e6),
        1e3.. => format!("{:.0} k events/s", per_second / 1e3),
        _ => format!("{per_second:.0} events/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_four_digits() {
        for (value, text) in [
            (0.0, "0"),
            (800.0, "800"),
            (1_234_567.4, "1234567"),
            (801.25, "801.2"),
            (0.12345, "0.1235"),
            (1.5, "1.5"),
            (-2.0004, "-2"),
            (1.2e-7, "1.200e-7"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(with_unit(2.0, "us"), "2 us");
        assert_eq!(
            (&*time(0), &*time(1_500_000), &*time(2_000_000_000_000)),
            ("0 s", "1.5 us", "2 s")
        );
        assert_eq!((&*rate(12.0), &*rate(2_500_000.0)), ("12 events/s", "2.5 M events/s"));
    }
}
