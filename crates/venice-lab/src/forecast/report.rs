//! Report types of `venice bench forecast`.

use serde::{Deserialize, Serialize};

use super::Predictor;

/// The report that `venice bench forecast --json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ForecastReport {
    /// Observation window, in samples.
    pub window: usize,
    /// Prediction window, in samples.
    pub ahead: usize,
    /// Past samples used by the autoregressions.
    pub lags: usize,
    /// Past errors used by ARMA.
    pub errors: usize,
    /// Share of the windows that may be short when methods are compared.
    pub short: f64,
    /// Size of a slab in the reservation test, as a share of the first observation window's peak.
    pub slab: f64,
    /// Past windows that its margin was learnt from.
    pub remembered: usize,
    /// By trace and resource.
    pub series: Vec<SeriesReport>,
}

/// The forecasts of one resource of one trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeriesReport {
    /// The trace.
    pub trace: String,
    /// The resource.
    pub resource: String,
    /// Samples of it.
    pub samples: usize,
    /// Prediction windows evaluated.
    pub windows: usize,
    /// Method by method.
    pub methods: Vec<MethodReport>,
}

/// One method's forecasts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MethodReport {
    /// The method.
    pub predictor: Predictor,
    /// Results of rising margins, from none.
    pub curve: Vec<CurvePoint>,
    /// Result of the least margin by which no more windows are short than allowed; `None` if no
    /// margin suffices.
    pub at_short: Option<CurvePoint>,
    /// Result of slabs reserved in advance with a learnt margin.
    pub ahead: AheadReport,
}

/// Slabs reserved in advance, and released where the forecast was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AheadReport {
    /// Share of the windows in which slabs were reserved late.
    pub late_windows: f64,
    /// Reserved and unused, as a share of the use.
    pub over: f64,
    /// Slabs reserved and released in a window, as a share of those held, on average.
    pub moved: f64,
}

/// Result of a margin.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Margin as a share of the forecast; negative for less.
    pub margin: f64,
    /// Share of the windows with a shortage at some time.
    pub short_windows: f64,
    /// Shortage, as a share of the use.
    pub under: f64,
    /// Reserved and unused, as a share of the use.
    pub over: f64,
}
