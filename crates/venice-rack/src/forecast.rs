//! How much a workload will need: the composable-rack paper's Eq. 3.
//!
//! A [`Forecaster`] holds the observation window of one workload: what it used of each resource, sample
//! by sample, all resources side by side. From that it foretells the *peak* of each in the prediction
//! window that begins now, which is what has to be reserved. The [`Method`] is the paper's
//! autoregression of each resource by itself, one with past errors (ARMA), one of all resources together
//! (VAR: memory that rises after I/O did), or plain persistence, which everything else has to beat.
//!
//! A [`Reservation`] makes slabs of it: they are reserved ahead, with a margin learnt from past errors, and
//! released where the forecast was wrong.
//!
//! [`Workloads`] does both for all workloads of a rack, as the Monitor Node drives it.
//!
//! The same samples give the same forecast, to the last bit: additions, multiplications, divisions and
//! square roots in a fixed order.
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
pub use workloads::{Amounts, LookAhead, Outlook, RESOURCES, Score, Workload, Workloads};
