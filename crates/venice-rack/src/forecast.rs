//! Forecasts of a workload's need: the composable-rack paper's Eq. 3.
//!
//! A [`Forecaster`] holds the observation window of one workload: its use of each resource, sample
//! by sample, all resources side by side. It forecasts the *peak* of each resource in the
//! prediction window that begins now: the amount to reserve. The [`Method`] is the paper's
//! autoregression of each resource by itself, one with past errors (ARMA), one of all resources
//! together (VAR: memory that rises after I/O did), or plain persistence, the baseline that the
//! others have to beat.
//!
//! A [`Reservation`] turns forecasts into slabs: it reserves them in advance, with a margin learnt
//! from past errors, and releases them where the forecast was too high.
//!
//! [`Workloads`] does both for all workloads of a rack; the Monitor Node drives it.
//!
//! The same samples give the same forecast, to the last bit: additions, multiplications, divisions
//! and square roots in a fixed order.
//!
//! ```
//! use venice_rack::forecast::{Forecaster, Method, Windows};
//!
//! let windows = Windows { observation: 48, prediction: 6 };
//! let mut memory_and_io = Forecaster::new(2, windows, Method::Var { lags: 2 })?;
//! for step in 0..48 {
//!     memory_and_io.observe(&[100.0 + f64::from(step), 5.0])?;
//! }
//! let peaks = memory_and_io.peaks().expect("there are samples");
//! assert!((peaks[0] - 153.0).abs() < 1.0 && (peaks[1] - 5.0).abs() < 1e-6);
//! # Ok::<(), venice_rack::forecast::ForecastError>(())
//! ```

mod equation;
mod forecaster;
mod least_squares;
mod reservation;
mod scaled;
mod workloads;

pub use forecaster::{ForecastError, Forecaster, LARGEST_SAMPLE, Method, Windows};
pub use reservation::{Change, Policy, Reservation};
pub(crate) use workloads::shared_out;
pub use workloads::{
    Amounts, FORECAST_KINDS, ForecastSettings, Score, Workload, WorkloadForecast, Workloads,
};
