//! Shortage and excess of forecasts.

use super::report::{AheadReport, CurvePoint, MethodReport};
use super::walk::ResourceForecast;
use super::{ForecastArgs, Predictor};

/// Points of a curve.
const MARGINS: usize = 16;
/// Relative shortage that counts as rounding.
const ROUNDING: f64 = 1e-9;

/// Evaluates one method's forecasts of one resource.
pub(super) fn score(
    predictor: Predictor,
    windows: &[ResourceForecast<'_>],
    ahead: AheadReport,
    args: &ForecastArgs,
) -> MethodReport {
    let step = args.most_margin / (MARGINS - 1) as f64;
    // Perfect foresight needs no margin.
    let margins = if predictor == Predictor::Foresight { 1 } else { MARGINS };
    let curve = (0..margins).map(|at| at_margin(windows, at as f64 * step)).collect();
    let equal = margin_for(windows, args.short).map(|margin| at_margin(windows, margin));
    MethodReport { predictor, curve, at_short: equal, ahead }
}

/// Evaluates a reservation of the forecast plus `margin`.
fn at_margin(windows: &[ResourceForecast<'_>], margin: f64) -> CurvePoint {
    let mut point = CurvePoint { margin, short_windows: 0.0, under: 0.0, over: 0.0 };
    let mut used = 0.0;
    for window in windows {
        let reserved = window.forecast * (1.0 + margin);
        for came in window.came {
            used += came;
            point.under += (came - reserved).max(0.0);
            point.over += (reserved - came).max(0.0);
        }
        if window.peak() > reserved * (1.0 + ROUNDING) {
            point.short_windows += 1.0;
        }
    }
    point.short_windows /= windows.len().max(1) as f64;
    if used > 0.0 {
        point.under /= used;
        point.over /= used;
    }
    point
}

/// Finds the least margin, possibly negative, by which at most this share of the windows is short;
/// it is known only afterwards. `None` if no margin suffices: the forecast was zero, and the use
/// was not.
fn margin_for(windows: &[ResourceForecast<'_>], short: f64) -> Option<f64> {
    let enough = |window: &ResourceForecast<'_>| match (window.peak(), window.forecast) {
        (0.0, _) => 0.0,
        (_, 0.0) => f64::INFINITY,
        (peak, forecast) => peak / forecast,
    };
    let mut factors: Vec<f64> = windows.iter().map(enough).collect();
    factors.sort_unstable_by(|a, b| b.total_cmp(a));
    let may_be_short = (short * windows.len() as f64) as usize;
    let factor = factors.get(may_be_short).copied().unwrap_or(0.0);
    factor.is_finite().then_some(factor - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: [ResourceForecast<'static>; 4] = [
        ResourceForecast { forecast: 10.0, came: &[8.0, 10.0] },
        ResourceForecast { forecast: 10.0, came: &[12.0, 4.0] },
        ResourceForecast { forecast: 10.0, came: &[15.0, 5.0] },
        ResourceForecast { forecast: 10.0, came: &[6.0, 0.0] },
    ];

    #[test]
    fn shortage_and_excess_are_relative_to_use() {
        let point = at_margin(&WINDOWS, 0.0);
        assert_eq!(point.short_windows, 0.5);
        assert!(
            (point.under - 7.0 / 60.0).abs() < 1e-12 && (point.over - 27.0 / 60.0).abs() < 1e-12
        );
        let more = at_margin(&WINDOWS, 0.5);
        assert_eq!((more.short_windows, more.under), (0.0, 0.0));
        assert!(more.over > point.over);
    }

    #[test]
    fn margin_is_the_least_sufficient() {
        for (short, margin, windows) in
            [(0.0, 0.5, 0.0), (0.25, 0.2, 0.25), (0.5, 0.0, 0.5), (0.75, -0.4, 0.75)]
        {
            let found = margin_for(&WINDOWS, short).unwrap();
            assert!((found - margin).abs() < 1e-12, "{short}: {found}");
            assert_eq!(at_margin(&WINDOWS, found).short_windows, windows);
        }
        let hopeless = [ResourceForecast { forecast: 0.0, came: &[1.0] }];
        assert_eq!(margin_for(&hopeless, 0.01), None);
        let idle = [ResourceForecast { forecast: 0.0, came: &[0.0] }];
        assert_eq!(at_margin(&idle, 0.3).over, 0.0);
        assert_eq!(margin_for(&idle, 0.01), Some(-1.0));
    }
}
