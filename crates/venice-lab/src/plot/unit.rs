//! Units of axes, and the text of their figures.

/// The unit of an axis. Values are in the base unit; labels take a fitting prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Bytes of one access or message, in powers of two.
    Bytes,
    /// Durations, in nanoseconds.
    Nanoseconds,
    /// Bytes per second, in powers of ten.
    BytesPerSecond,
    /// Percent.
    Percent,
    /// Metres.
    Metres,
    /// Counts, money, factors.
    Plain,
}

impl Unit {
    /// Formats a value: `4 KiB`, `1.4 µs`, `12 GB/s`.
    pub(crate) fn write(self, value: f64) -> String {
        match self {
            Unit::Bytes => prefixed(value, 1024.0, &["B", "KiB", "MiB", "GiB"]),
            Unit::Nanoseconds => prefixed(value, 1000.0, &["ns", "µs", "ms", "s"]),
            Unit::BytesPerSecond => {
                prefixed(value, 1000.0, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
            }
            Unit::Percent if value == 0.0 || value.abs() >= 1.0 => format!("{value:.0} %"),
            Unit::Percent => {
                let text = format!("{value:.4}");
                format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
            }
            Unit::Metres => prefixed(value, 1000.0, &["m", "km"]),
            Unit::Plain => prefixed(value, 1000.0, &["", "k", "M", "G"]).trim_end().to_owned(),
        }
    }

    /// Returns the values of a logarithmic axis that get a label and a line, within `low..=high`:
    /// powers of the unit's base, and steps between them if there are few. None if `low` is not above 0.
    pub(crate) fn ticks(self, low: f64, high: f64) -> Vec<f64> {
        if !(low > 0.0 && high.is_finite()) {
            return Vec::new();
        }
        let (base, steps): (f64, &[f64]) = match self {
            Unit::Bytes => (4.0, &[1.0]),
            _ if high / low < 50.0 => (10.0, &[1.0, 2.0, 5.0]),
            _ => (10.0, &[1.0]),
        };
        let mut ticks = Vec::new();
        let mut power = base.powf(low.log(base).floor());
        while power <= high {
            ticks.extend(steps.iter().map(|step| power * step));
            power *= base;
        }
        ticks.retain(|tick| (low * 0.999..=high * 1.001).contains(tick));
        ticks
    }
}

fn prefixed(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut at = 0;
    // A value of 999.6 would be written as 1000: it takes the next prefix.
    while value >= step - 0.5 && at + 1 < units.len() {
        value /= step;
        at += 1;
    }
    let digits = match value {
        _ if value == value.round() => 0,
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", units[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_take_a_fitting_prefix() {
        assert_eq!(Unit::Bytes.write(4.0), "4 B");
        assert_eq!(Unit::Bytes.write(16.0 * 1024.0 * 1024.0), "16 MiB");
        assert_eq!(Unit::Nanoseconds.write(1400.0), "1.40 µs");
        assert_eq!(Unit::Nanoseconds.write(999.8), "1.00 µs");
        assert_eq!(Unit::BytesPerSecond.write(625e6), "625 MB/s");
        assert_eq!(Unit::BytesPerSecond.write(12.34e9), "12.3 GB/s");
        assert_eq!(Unit::Percent.write(51.2), "51 %");
        assert_eq!((&*Unit::Percent.write(0.0), &*Unit::Percent.write(0.01)), ("0 %", "0.01 %"));
        assert_eq!(Unit::Metres.write(200.0), "200 m");
        assert_eq!(Unit::Plain.write(5.333), "5.33");
        assert_eq!(Unit::Plain.write(12_000.0), "12 k");
    }

    #[test]
    fn ticks_lie_inside_the_bounds() {
        assert_eq!(Unit::Bytes.ticks(4.0, 256.0), [4.0, 16.0, 64.0, 256.0]);
        assert_eq!(Unit::Nanoseconds.ticks(90.0, 1_000_000.0).len(), 5);
        assert_eq!(Unit::BytesPerSecond.ticks(1e9, 10e9).len(), 4);
        for (low, high) in [(0.0, 1.0), (-1.0, 1.0), (f64::NAN, 1.0), (1.0, f64::INFINITY)] {
            assert!(Unit::Plain.ticks(low, high).is_empty(), "{low} to {high}");
        }
    }
}
