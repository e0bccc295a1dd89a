//! Walks a trace, prediction window by prediction window.

use anyhow::Result;
use venice_rack::forecast::{ForecastError, Forecaster, Method, Windows};

use super::trace::Trace;
use venice_cli::failure::usage;

/// Forecast and use of one prediction window, by resource.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WindowForecast {
    pub(super) forecast: Vec<f64>,
    pub(super) came: Vec<Vec<f64>>,
}

/// The same for one resource.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ResourceForecast<'a> {
    pub(super) forecast: f64,
    pub(super) came: &'a [f64],
}

impl WindowForecast {
    pub(super) fn of(&self, resource: usize) -> ResourceForecast<'_> {
        ResourceForecast { forecast: self.forecast[resource], came: &self.came[resource] }
    }
}

impl ResourceForecast<'_> {
    /// Returns the least sufficient reservation.
    pub(super) fn peak(&self) -> f64 {
        self.came.iter().copied().fold(0.0, f64::max)
    }
}

/// Checks that a forecaster accepts these settings.
///
/// # Errors
/// When it does not.
pub(super) fn check(windows: Windows, lags: usize, errors: usize) -> Result<()> {
    Forecaster::new(1, windows, Method::Arma { lags, errors }).map_err(refused)?;
    Ok(())
}

/// Returns every whole prediction window after the first observation window. Without a method,
/// foresight is used.
///
/// # Errors
/// When a forecaster refuses the trace.
pub(super) fn along(
    trace: &Trace,
    windows: Windows,
    method: Option<Method>,
) -> Result<Vec<WindowForecast>> {
    let resources = trace.names.len();
    let mut forecaster = Forecaster::new(resources, windows, method.unwrap_or(Method::LastValue))
        .map_err(refused)?;
    let mut all = Vec::new();
    let mut observed = 0;
    let mut begin = windows.observation;
    while begin + windows.prediction <= trace.samples() {
        for at in observed..begin {
            forecaster.observe(&trace.sample(at)).map_err(refused)?;
        }
        observed = begin;
        let came: Vec<Vec<f64>> = trace
            .used
            .iter()
            .map(|used| used[begin..begin + windows.prediction].to_vec())
            .collect();
        let peak = |came: &Vec<f64>| came.iter().copied().fold(0.0, f64::max);
        let forecast = match method {
            Some(_) => forecaster.peaks().expect("an observation window was seen"),
            None => came.iter().map(peak).collect(),
        };
        all.push(WindowForecast { forecast, came });
        begin += windows.prediction;
    }
    Ok(all)
}

fn refused(error: ForecastError) -> anyhow::Error {
    usage(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forecast_ignores_the_future() {
        let windows = Windows { observation: 10, prediction: 4 };
        let mut trace = Trace {
            name: "t".into(),
            names: vec!["m".into()],
            used: vec![(0..23).map(f64::from).collect()],
        };
        let forecasts = along(&trace, windows, Some(Method::LastValue)).unwrap();
        let forecast: Vec<f64> = forecasts.iter().map(|one| one.forecast[0]).collect();
        assert_eq!(forecast, [9.0, 13.0, 17.0]);
        assert_eq!(
            (forecasts[2].of(0).came, forecasts[2].of(0).peak()),
            (&[18.0, 19.0, 20.0, 21.0][..], 21.0)
        );
        let foresight = along(&trace, windows, None).unwrap();
        assert_eq!(foresight[0].forecast, [13.0]);
        // Later samples change no forecast.
        for method in [Method::LastPeak, Method::Ar { lags: 2 }, Method::Var { lags: 2 }] {
            let before = along(&trace, windows, Some(method)).unwrap();
            trace.used[0][14] += 100.0;
            let after = along(&trace, windows, Some(method)).unwrap();
            assert_eq!(before[1].forecast, after[1].forecast, "{method:?}");
            trace.used[0][14] -= 100.0;
        }
    }
}
