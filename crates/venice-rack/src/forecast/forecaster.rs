//! The observation window, and the peaks foretold from it.

use std::collections::VecDeque;

use super::equation::{Equation, Terms};
use super::scaled::Scaled;

/// A sample may be as large as this: an exabyte is less.
pub const LARGEST_SAMPLE: f64 = 1e19;
/// An equation is fitted only to so many samples for each of its terms: fewer would be learnt by heart.
const SAMPLES_PER_TERM: usize = 3;
/// Resources, lags and windows are small numbers; these keep a slip of the hand from eating the machine.
const MOST_RESOURCES: usize = 64;
const MOST_SAMPLES: usize = 100_000;
const MOST_LAGS: usize = 256;

/// Lengths of the windows, in samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// How far back it looks: the paper's *w*.
    pub observation: usize,
    /// How far ahead.
    pub prediction: usize,
}

/// How the next samples are told from the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// What is now will be.
    LastValue,
    /// The peak of the last prediction window will be that of the next.
    LastPeak,
    /// Each resource from its own last samples: Eq. 3.
    Ar {
        /// How many.
        lags: usize,
    },
    /// The same, and from the last errors.
    Arma {
        /// How many samples.
        lags: usize,
        /// How many errors.
        errors: usize,
    },
    /// Each resource from the last samples of all of them.
    Var {
        /// How many of each.
        lags: usize,
    },
}

/// What a forecaster refuses.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ForecastError {
    /// A window, a number of lags or of resources out of bounds.
    #[error("{what} is {value}: expected 1 to {most}")]
    OutOfBounds {
        /// Which.
        what: &'static str,
        /// What it is.
        value: usize,
        /// What it may be at most.
        most: usize,
    },
    /// A sample for another number of resources.
    #[error("a sample of {given} resources, where there are {expected}")]
    Resources {
        /// How many it has.
        given: usize,
        /// How many there are.
        expected: usize,
    },
    /// A figure of a reservation's policy out of bounds.
    #[error("{what} is {value}, which makes no sense")]
    Policy {
        /// Which.
        what: &'static str,
        /// What it is.
        value: f64,
    },
    /// Nobody uses so much, or less than nothing.
    #[error("a sample of {value}: expected 0 to {LARGEST_SAMPLE:e}")]
    Sample {
        /// What it is.
        value: f64,
    },
}

/// Foretells the peaks of one workload's resources.
#[derive(Debug, Clone)]
pub struct Forecaster {
    windows: Windows,
    method: Method,
    /// By resource, oldest first, at most an observation window of each.
    seen: Vec<VecDeque<f64>>,
}

impl Forecaster {
    /// A forecaster that has seen nothing, for so many resources.
    ///
    /// # Errors
    /// When a length is 0 or absurd.
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

    /// Takes what is used of each resource now, in any unit of its own.
    ///
    /// # Errors
    /// When it is not of as many resources, or of less than nothing. It is not taken then.
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

    /// The peak of each resource in the prediction window that begins now: never below 0, never beyond
    /// what the observation window has by more than that window's own span. `None` before the first
    /// sample. Until there are enough samples for the method, with fewer lags; with hardly any, by
    /// [`Method::LastPeak`].
    #[must_use]
    pub fn peaks(&self) -> Option<Vec<f64>> {
        let samples: Vec<Vec<f64>> =
            self.seen.iter().map(|seen| seen.iter().copied().collect()).collect();
        if samples.first().is_none_or(Vec::is_empty) {
            return None;
        }
        let equations = |scaled: &Scaled| match self.method {
            Method::LastValue | Method::LastPeak => None,
            Method::Ar { lags } => by_themselves(scaled, lags),
            Method::Arma { lags, errors } => with_errors(scaled, lags, errors),
            Method::Var { lags } => together(scaled, lags),
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
            (_, Some(fitted)) => foretell(&scaled, fitted, self.windows.prediction),
        })
    }
}

/// An equation for each resource, and the errors that it goes by.
struct Fitted {
    equations: Vec<Equation>,
    errors: Vec<Vec<f64>>,
}

/// Eq. 3 as the paper has it.
fn by_themselves(scaled: &Scaled, lags: usize) -> Option<Fitted> {
    let terms = |resource, lags| Terms { resources: vec![resource], lags, errors: 0 };
    let lags = affordable(scaled.len(), lags, |lags| terms(0, lags))?;
    let fit = |of| Equation::fit(&scaled.series, &[], of, terms(of, lags), lags);
    let equations: Vec<Equation> = (0..scaled.series.len()).map(fit).collect();
    Some(Fitted { errors: vec![Vec::new(); equations.len()], equations })
}

fn together(scaled: &Scaled, lags: usize) -> Option<Fitted> {
    let all: Vec<usize> = (0..scaled.series.len()).collect();
    let terms = |lags| Terms { resources: all.clone(), lags, errors: 0 };
    let lags = affordable(scaled.len(), lags, terms)?;
    let fit = |of: &usize| Equation::fit(&scaled.series, &[], *of, terms(lags), lags);
    let equations: Vec<Equation> = all.iter().map(fit).collect();
    Some(Fitted { errors: vec![Vec::new(); equations.len()], equations })
}

/// By Hannan and Rissanen: a long autoregression tells the errors, which are then as good as seen. Its
/// length comes out of the same samples, so that errors take the place of lags where these are few.
fn with_errors(scaled: &Scaled, lags: usize, errors: usize) -> Option<Fitted> {
    let alone = |lags| Terms { resources: vec![0], lags, errors: 0 };
    let long = affordable(scaled.len(), lags + errors, alone)?;
    let first = long + errors;
    let terms = |resource| Terms { resources: vec![resource], lags: lags.min(long), errors };
    if scaled.len() < first + SAMPLES_PER_TERM * terms(0).count() {
        return by_themselves(scaled, lags);
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

/// As many lags as `samples` are enough for, up to `lags`.
fn affordable(samples: usize, lags: usize, terms: impl Fn(usize) -> Terms) -> Option<usize> {
    let is_enough = |lags: &usize| samples >= lags + SAMPLES_PER_TERM * terms(*lags).count();
    (1..=lags).rev().find(is_enough)
}

/// Sample by sample into the prediction window, each from those before it; errors to come are 0.
fn foretell(scaled: &Scaled, mut fitted: Fitted, prediction: usize) -> Vec<f64> {
    let mut series = scaled.series.clone();
    let bounds: Vec<(f64, f64)> = series.iter().map(|values| bounds(values)).collect();
    let mut peaks = vec![f64::NEG_INFINITY; series.len()];
    for at in scaled.len()..scaled.len() + prediction {
        let tell = |of: usize| {
            let told = fitted.equations[of].tell(&series, &fitted.errors[of], at);
            // What grows without end is a bad fit, not a forecast.
            told.clamp(bounds[of].0, bounds[of].1)
        };
        let told: Vec<f64> = (0..series.len()).map(tell).collect();
        for (of, told) in told.into_iter().enumerate() {
            series[of].push(told);
            fitted.errors[of].push(0.0);
            peaks[of] = peaks[of].max(told);
        }
    }
    peaks.iter().enumerate().map(|(of, peak)| scaled.back(of, *peak).max(0.0)).collect()
}

/// As far below the least and above the greatest as these are apart.
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
    fn nothing_is_foretold_of_nothing() {
        for method in METHODS {
            assert_eq!(peaks(method, &[]), None, "{method:?}");
        }
    }

    #[test]
    fn a_constant_stays_whatever_the_method() {
        for method in METHODS {
            for count in [1, 2, 5, 64, 100] {
                let told = peaks(method, &vec![[7.0, 0.0]; count]).unwrap();
                assert!(
                    (told[0] - 7.0).abs() < 1e-9 && told[1] == 0.0,
                    "{method:?} {count} {told:?}"
                );
            }
        }
    }

    #[test]
    fn a_wave_is_foretold_where_persistence_misses_its_crest() {
        // The window ends in the trough; the crest is half a period, six samples, away.
        let wave = |at: i32| 10.0 + (f64::from(at) * std::f64::consts::PI / 6.0).cos();
        let samples: Vec<[f64; 2]> = (0..55).map(|at| [wave(at), 2.0 * wave(at)]).collect();
        for method in &METHODS[2..] {
            let told = peaks(*method, &samples).unwrap();
            assert!(
                (told[0] - 11.0).abs() < 0.01 && (told[1] - 22.0).abs() < 0.02,
                "{method:?} {told:?}"
            );
        }
        assert!(peaks(Method::LastValue, &samples).unwrap()[0] < 9.01);
    }

    #[test]
    fn resources_that_say_the_same_do_no_harm_together() {
        let samples: Vec<[f64; 2]> =
            (0..64).map(|at| f64::from(at * at % 17)).map(|value| [value, 3.0 * value]).collect();
        let told = peaks(Method::Var { lags: 4 }, &samples).unwrap();
        assert!((told[1] - 3.0 * told[0]).abs() < 1e-6 && told[0] <= 32.0, "{told:?}");
    }

    #[test]
    fn the_observation_window_forgets() {
        let mut samples = vec![[1e6, 5.0]; 40];
        samples.extend(vec![[1.0, 5.0]; 64]);
        for method in METHODS {
            assert!((peaks(method, &samples).unwrap()[0] - 1.0).abs() < 1e-9, "{method:?}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
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
        fn peaks_are_finite_and_within_reach(
            samples in prop::collection::vec(prop::array::uniform2(
                prop_oneof![Just(0.0), 0.0..10.0, 0.0..LARGEST_SAMPLE, Just(LARGEST_SAMPLE), 0.0..1e-300]
            ), 1..80),
        ) {
            for method in METHODS {
                let told = peaks(method, &samples).unwrap();
                for (of, peak) in told.iter().enumerate() {
                    let high = samples.iter().map(|sample| sample[of]).fold(0.0, f64::max);
                    prop_assert!((0.0..=high * 2.0 * (1.0 + 1e-9)).contains(peak), "{method:?} {told:?}");
                }
                prop_assert_eq!(peaks(method, &samples).unwrap(), told);
            }
        }
    }
}
