//! What the forecasts came to, for programs.

use serde::{Deserialize, Serialize};

use super::Teller;

/// The report that `venice bench forecast --json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ForecastReport {
    /// Observation window, in samples.
    pub window: usize,
    /// Prediction window, in samples.
    pub ahead: usize,
    /// Past samples that the autoregressions went by.
    pub lags: usize,
    /// Past errors that ARMA went by.
    pub errors: usize,
    /// Share of the windows that may be short where methods are compared by that.
    pub short: f64,
    /// What one slab held where slabs were reserved ahead, of the first observation window's peak.
    pub slab: f64,
    /// Past windows that the margin was learnt from there.
    pub remembered: usize,
    /// By trace and resource.
    pub series: Vec<SeriesReport>,
}

/// The forecasts of one resource of one trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeriesReport {
    /// Which trace.
    pub trace: String,
    /// Which resource.
    pub resource: String,
    /// Samples of it.
    pub samples: usize,
    /// Prediction windows that were judged.
    pub windows: usize,
    /// Method by method.
    pub methods: Vec<MethodReport>,
}

/// One method's forecasts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MethodReport {
    /// Who foretold.
    pub teller: Teller,
    /// What comes of margins, from none up.
    pub curve: Vec<CurvePoint>,
    /// What comes of the least margin by which no more windows are short than may be; `None` where no
    /// margin is enough.
    pub at_short: Option<CurvePoint>,
    /// What comes of slabs that are reserved ahead with a margin learnt on the way.
    pub ahead: AheadReport,
}

/// Slabs reserved ahead, and released where the forecast was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AheadReport {
    /// Windows in which slabs were reserved late, of all.
    pub late_windows: f64,
    /// What was reserved and not used, of what was used.
    pub over: f64,
    /// Slabs reserved and released in a window, of those held, on average.
    pub moved: f64,
}

/// What comes of reserving more than was foretold.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// How much more, of the forecast; below 0 less.
    pub margin: f64,
    /// Windows in which it was too little at some time, of all.
    pub short_windows: f64,
    /// What was lacking, of what was used.
    pub under: f64,
    /// What was reserved and not used, of what was used.
    pub over: f64,
}
