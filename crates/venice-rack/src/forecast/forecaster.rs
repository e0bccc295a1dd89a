//! The observation window, and the forecast of peaks from it.

use std::collections::VecDeque;

use super::equation::{Equation, Terms};
use super::scaled::Scaled;

/// The largest sample allowed; an exabyte is less.
pub const LARGEST_SAMPLE: f64 = 1e19;
/// Samples needed for each term of an equation: with fewer the fit would memorise them.
const SAMPLES_PER_TERM: usize = 3;
/// Upper bounds of resources, lags and windows, against memory exhaustion by a typing error.
const MOST_RESOURCES: usize = 64;
const MOST_SAMPLES: usize = 100_000;
const MOST_LAGS: usize = 256;

/// Lengths of the windows, in samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Samples looked back: the paper's *w*.
    pub observation: usize,
    /// Samples looked ahead.
    pub prediction: usize,
}

/// A forecast method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Persistence of the last value.
    LastValue,
    /// Persistence of the peak: the next prediction window has the peak of the last.
    LastPeak,
    /// Autoregression of each resource on its own last samples: Eq. 3.
    Ar {
        /// The number of samples.
        lags: usize,
    },
    /// The same with the last errors added.
    Arma {
        /// The number of samples.
        lags: usize,
        /// The number of errors.
        errors: usize,
    },
    /// Autoregression of each resource on the last samples of all resources.
    Var {
        /// The number of samples of each.
        lags: usize,
    },
}

/// An error of a forecaster or a reservation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ForecastError {
    /// A window, a number of lags or a number of resources is out of bounds.
    #[error("{what} is {value}: expected 1 to {most}")]
    OutOfBounds {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: usize,
        /// Its upper bound.
        most: usize,
    },
    /// A sample has another number of resources.
    #[error("a sample of {given} resources, where there are {expected}")]
    Resources {
        /// Resources in the sample.
        given: usize,
        /// Resources expected.
        expected: usize,
    },
    /// A parameter of a reservation policy is out of bounds.
    #[error("{what} is {value}: out of range")]
    Policy {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// A sample is negative or too large.
    #[error("a sample of {value}: expected 0 to {LARGEST_SAMPLE:e}")]
    Sample {
        /// The sample.
        value: f64,
    },
}

/// Forecasts the peaks of one workload's resources.
#[derive(Debug, Clone)]
pub struct Forecaster {
    windows: Windows,
    method: Method,
    /// Samples by resource, oldest first, at most an observation window of each.
    seen: Vec<VecDeque<f64>>,
}

impl Forecaster {
    /// Creates a forecaster without samples for this number of resources.
    ///
    /// # Errors
    /// [`ForecastError::OutOfBounds`] if a length is 0 or too large.
    pub fn new(resources: usize, windows: Windows, method: Method) -> Result<Self, ForecastError> {
        let bound = |what, value: usize, most: usize| {
            let is_in = (1..=most).contains(&value);
            if is_in { Ok(()) } else { Err(ForecastError::OutOfBounds { what, value, most }) }
        };
        bound("the number of resources", resources, MOST_RESOURCES)?;
        bound("the observation window", windows.observation, MOST_SAMPLES)?;
        bound("the prediction window", windows.prediction, MOST_SAMPLES)?;
        match method {
            Method::LastValue | Method::LastPeak => {}
            Method::Ar { lags } | Method::Var { lags } => {
                bound("the number of lags", lags, MOST_LAGS)?
            }
            Method::Arma { lags, errors } => {
                bound("the number of lags", lags, MOST_LAGS)?;
                bound("the number of errors", errors, MOST_LAGS)?;
            }
        }
        Ok(Self { windows, method, seen: vec![VecDeque::new(); resources] })
    }

    /// Takes the present use of each resource, each in any unit.
    ///
    /// # Errors
    /// [`ForecastError`] if the sample has another number of resources, or a negative or too large
    /// value. The sample is dropped then.
    pub fn observe(&mut self, sample: &[f64]) -> Result<(), ForecastError> {
        let (given, expected) = (sample.len(), self.seen.len());
        if given != expected {
            return Err(ForecastError::Resources { given, expected });
        }
        if let Some(value) = sample.iter().find(|value| !(0.0..=LARGEST_SAMPLE).contains(*value)) {
            return Err(ForecastError::Sample { value: *value });
        }
        for (seen, value) in self.seen.iter_mut().zip(sample) {
            if seen.len() == self.windows.observation {
                seen.pop_front();
            }
            seen.push_back(*value);
        }
        Ok(())
    }

    /// Forecasts the peak of each resource in the prediction window that begins now. A peak is
    /// never below 0, and never beyond the values of the observation window by more than their
    /// span. Returns `None` before the first sample. With too few samples for the method it uses
    /// fewer lags; with hardly any it uses [`Method::LastPeak`].
    #[must_use]
    pub fn peaks(&self) -> Option<Vec<f64>> {
        let samples: Vec<Vec<f64>> =
            self.seen.iter().map(|seen| seen.iter().copied().collect()).collect();
        if samples.first().is_none_or(Vec::is_empty) {
            return None;
        }
        let equations = |scaled: &Scaled| match self.method {
            Method::LastValue | Method::LastPeak => None,
            Method::Ar { lags } => fit_separately(scaled, lags),
            Method::Arma { lags, errors } => fit_with_errors(scaled, lags, errors),
            Method::Var { lags } => fit_jointly(scaled, lags),
        };
        let scaled = Scaled::of(&samples);
        Some(match (self.method, equations(&scaled)) {
            (Method::LastValue, _) => {
                samples.iter().map(|series| series[series.len() - 1]).collect()
            }
            (_, None) => {
                let first = samples[0].len().saturating_sub(self.windows.prediction);
                samples
                    .iter()
                    .map(|series| series[first..].iter().copied().fold(0.0, f64::max))
                    .collect()
            }
            (_, Some(fitted)) => forecast(&scaled, fitted, self.windows.prediction),
        })
    }
}

/// An equation for each resource, with its past errors.
struct Fitted {
    equations: Vec<Equation>,
    errors: Vec<Vec<f64>>,
}

/// Fits Eq. 3 as in the paper.
fn fit_separately(scaled: &Scaled, lags: usize) -> Option<Fitted> {
    let terms = |resource, lags| Terms { resources: vec![resource], lags, errors: 0 };
    let lags = affordable(scaled.len(), lags, |lags| terms(0, lags))?;
    let fit = |of| Equation::fit(&scaled.series, &[], of, terms(of, lags), lags);
    let equations: Vec<Equation> = (0..scaled.series.len()).map(fit).collect();
    Some(Fitted { errors: vec![Vec::new(); equations.len()], equations })
}

fn fit_jointly(scaled: &Scaled, lags: usize) -> Option<Fitted> {
    let all: Vec<usize> = (0..scaled.series.len()).collect();
    let terms = |lags| Terms { resources: all.clone(), lags, errors: 0 };
    let lags = affordable(scaled.len(), lags, terms)?;
    let fit = |of: &usize| Equation::fit(&scaled.series, &[], *of, terms(lags), lags);
    let equations: Vec<Equation> = all.iter().map(fit).collect();
    Some(Fitted { errors: vec![Vec::new(); equations.len()], equations })
}

/// Fits with past errors, after Hannan and Rissanen: a long autoregression estimates the errors,
/// which then count as observed. Its length costs samples, so with few samples errors replace lags.
fn fit_with_errors(scaled: &Scaled, lags: usize, errors: usize) -> Option<Fitted> {
    let alone = |lags| Terms { resources: vec![0], lags, errors: 0 };
    let long = affordable(scaled.len(), lags + errors, alone)?;
    let first = long + errors;
    let terms = |resource| Terms { resources: vec![resource], lags: lags.min(long), errors };
    if scaled.len() < first + SAMPLES_PER_TERM * terms(0).count() {
        return fit_separately(scaled, lags);
    }
    let mut fitted = Fitted { equations: Vec::new(), errors: Vec::new() };
    for of in 0..scaled.series.len() {
        let far = Terms { resources: vec![of], ..alone(long) };
        let seen =
            Equation::fit(&scaled.series, &[], of, far, long).errors(&scaled.series, of, long);
        fitted.equations.push(Equation::fit(&scaled.series, &seen, of, terms(of), first));
        fitted.errors.push(seen);
    }
    Some(fitted)
}

/// Returns the most lags, up to `lags`, that `samples` are enough for.
fn affordable(samples: usize, lags: usize, terms: impl Fn(usize) -> Terms) -> Option<usize> {
    let is_enough = |lags: &usize| samples >= lags + SAMPLES_PER_TERM * terms(*lags).count();
    (1..=lags).rev().find(is_enough)
}

/// Predicts sample by sample into the prediction window, each from those before it; future errors
/// are 0.
fn forecast(scaled: &Scaled, mut fitted: Fitted, prediction: usize) -> Vec<f64> {
    let mut series = scaled.series.clone();
    let bounds: Vec<(f64, f64)> = series.iter().map(|values| bounds(values)).collect();
    let mut peaks = vec![f64::NEG_INFINITY; series.len()];
    for at in scaled.len()..scaled.len() + prediction {
        let predict = |of: usize| {
            let predicted = fitted.equations[of].predict(&series, &fitted.errors[of], at);
            // A prediction that grows without bound is a bad fit.
            predicted.clamp(bounds[of].0, bounds[of].1)
        };
        let predicted: Vec<f64> = (0..series.len()).map(predict).collect();
        for (of, predicted) in predicted.into_iter().enumerate() {
            series[of].push(predicted);
            fitted.errors[of].push(0.0);
            peaks[of] = peaks[of].max(predicted);
        }
    }
    peaks.iter().enumerate().map(|(of, peak)| scaled.back(of, *peak).max(0.0)).collect()
}

/// Returns the least and greatest value, each extended by their span.
fn bounds(values: &[f64]) -> (f64, f64) {
    let (low, high) =
        values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(*value), high.max(*value))
        });
    (low - (high - low), high + (high - low))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const METHODS: [Method; 5] = [
        Method::LastValue,
        Method::LastPeak,
        Method::Ar { lags: 4 },
        Method::Arma { lags: 4, errors: 2 },
        Method::Var { lags: 4 },
    ];

    fn peaks(method: Method, samples: &[[f64; 2]]) -> Option<Vec<f64>> {
        let windows = Windows { observation: 64, prediction: 8 };
        let mut forecaster = Forecaster::new(2, windows, method).unwrap();
        samples.iter().for_each(|sample| forecaster.observe(sample).unwrap());
        forecaster.peaks()
    }

    #[test]
    fn no_forecast_without_samples() {
        for method in METHODS {
            assert_eq!(peaks(method, &[]), None, "{method:?}");
        }
    }

    #[test]
    fn constant_is_kept_by_every_method() {
        for method in METHODS {
            for count in [1, 2, 5, 64, 100] {
                let predicted = peaks(method, &vec![[7.0, 0.0]; count]).unwrap();
                assert!(
                    (predicted[0] - 7.0).abs() < 1e-9 && predicted[1] == 0.0,
                    "{method:?} {count} {predicted:?}"
                );
            }
        }
    }

    #[test]
    fn wave_crest_is_forecast() {
        // The window ends in the trough; the crest is half a period, six samples, away.
        let wave = |at: i32| 10.0 + (f64::from(at) * std::f64::consts::PI / 6.0).cos();
        let samples: Vec<[f64; 2]> = (0..55).map(|at| [wave(at), 2.0 * wave(at)]).collect();
        for method in &METHODS[2..] {
            let predicted = peaks(*method, &samples).unwrap();
            assert!(
                (predicted[0] - 11.0).abs() < 0.01 && (predicted[1] - 22.0).abs() < 0.02,
                "{method:?} {predicted:?}"
            );
        }
        assert!(peaks(Method::LastValue, &samples).unwrap()[0] < 9.01);
    }

    #[test]
    fn collinear_resources_are_harmless() {
        let samples: Vec<[f64; 2]> =
            (0..64).map(|at| f64::from(at * at % 17)).map(|value| [value, 3.0 * value]).collect();
        let predicted = peaks(Method::Var { lags: 4 }, &samples).unwrap();
        assert!(
            (predicted[1] - 3.0 * predicted[0]).abs() < 1e-6 && predicted[0] <= 32.0,
            "{predicted:?}"
        );
    }

    #[test]
    fn old_samples_are_forgotten() {
        let mut samples = vec![[1e6, 5.0]; 40];
        samples.extend(vec![[1.0, 5.0]; 64]);
        for method in METHODS {
            assert!((peaks(method, &samples).unwrap()[0] - 1.0).abs() < 1e-9, "{method:?}");
        }
    }

    #[test]
    fn invalid_input_is_refused() {
        let windows = Windows { observation: 8, prediction: 2 };
        let new =
            |resources, windows, method| Forecaster::new(resources, windows, method).unwrap_err();
        new(0, windows, Method::LastPeak);
        new(65, windows, Method::LastPeak);
        new(1, Windows { observation: 0, ..windows }, Method::LastPeak);
        new(1, Windows { prediction: 0, ..windows }, Method::LastPeak);
        new(1, windows, Method::Ar { lags: 0 });
        new(1, windows, Method::Arma { lags: 1, errors: 1000 });
        let mut one = Forecaster::new(1, windows, Method::LastPeak).unwrap();
        for sample in [&[f64::NAN][..], &[-1.0], &[f64::INFINITY], &[1e300], &[1.0, 2.0], &[]] {
            one.observe(sample).unwrap_err();
        }
        assert_eq!(one.peaks(), None);
    }

    proptest! {
        #[test]
        fn peaks_are_finite_and_bounded(
            samples in prop::collection::vec(prop::array::uniform2(
                prop_oneof![Just(0.0), 0.0..10.0, 0.0..LARGEST_SAMPLE, Just(LARGEST_SAMPLE), 0.0..1e-300]
            ), 1..80),
        ) {
            for method in METHODS {
                let predicted = peaks(method, &samples).unwrap();
                for (of, peak) in predicted.iter().enumerate() {
                    let high = samples.iter().map(|sample| sample[of]).fold(0.0, f64::max);
                    prop_assert!((0.0..=high * 2.0 * (1.0 + 1e-9)).contains(peak), "{method:?} {predicted:?}");
                }
                prop_assert_eq!(peaks(method, &samples).unwrap(), predicted);
            }
        }
    }
}
