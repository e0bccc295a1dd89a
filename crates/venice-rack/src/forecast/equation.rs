//! Eq. 3: the next sample as a sum of earlier ones.

use super::least_squares;

/// The terms of a prediction: which resources, how many of their earlier samples, and how many
/// earlier errors of the predicted resource itself.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) resources: Vec<usize>,
    pub(super) lags: usize,
    pub(super) errors: usize,
}

/// The equation for the next sample of one resource.
#[derive(Debug, Clone)]
pub(super) struct Equation {
    terms: Terms,
    constant: f64,
    /// By resource, then by lag, the latest first; then the errors, the latest first.
    factors: Vec<f64>,
}

impl Terms {
    /// Returns the number of terms, including the constant.
    pub(super) fn count(&self) -> usize {
        1 + self.resources.len() * self.lags + self.errors
    }

    /// Iterates over the terms of the sample at `at`, without the constant.
    fn at<'a>(
        &'a self,
        series: &'a [Vec<f64>],
        errors: &'a [f64],
        at: usize,
    ) -> impl Iterator<Item = f64> + 'a {
        let past = move |of: &'a [f64], lags| (1..=lags).map(move |lag| of[at - lag]);
        let earlier = self.resources.iter().flat_map(move |r| past(&series[*r], self.lags));
        earlier.chain(past(errors, self.errors))
    }
}

impl Equation {
    /// Fits the equation that best predicts `target` of `series`, from the sample at `first` on.
    /// `errors` are those of another equation, sample by sample; empty where the terms have none.
    pub(super) fn fit(
        series: &[Vec<f64>],
        errors: &[f64],
        target: usize,
        terms: Terms,
        first: usize,
    ) -> Self {
        let rows = first..series[target].len();
        let mut columns = vec![Vec::with_capacity(rows.len()); terms.count()];
        for at in rows.clone() {
            let all = std::iter::once(1.0).chain(terms.at(series, errors, at));
            columns.iter_mut().zip(all).for_each(|(column, value)| column.push(value));
        }
        let mut factors = least_squares::solve(columns, series[target][rows].to_vec());
        let constant = factors.remove(0);
        Self { terms, constant, factors }
    }

    /// Predicts the sample at `at` from those before it.
    pub(super) fn predict(&self, series: &[Vec<f64>], errors: &[f64], at: usize) -> f64 {
        let terms = self.terms.at(series, errors, at);
        self.constant + terms.zip(&self.factors).map(|(value, factor)| value * factor).sum::<f64>()
    }

    /// Returns the errors at each sample from `first` on; 0 before.
    pub(super) fn errors(&self, series: &[Vec<f64>], target: usize, first: usize) -> Vec<f64> {
        let off = |at| series[target][at] - self.predict(series, &[], at);
        let len = series[target].len();
        (0..len).map(|at| if at < first { 0.0 } else { off(at) }).collect()
    }

    #[cfg(test)]
    pub(super) fn factors(&self) -> (f64, &[f64]) {
        (self.constant, &self.factors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a source of reproducible noise, uniform from -1 to 1.
    pub(in super::super) fn noise(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        }
    }

    #[test]
    fn autoregression_factors_are_recovered() {
        let mut next = noise(7);
        let mut series = vec![0.0, 0.0];
        for at in 2..20_000 {
            series.push(2.0 + 0.6 * series[at - 1] - 0.3 * series[at - 2] + next());
        }
        let terms = Terms { resources: vec![0], lags: 2, errors: 0 };
        let equation = Equation::fit(&[series], &[], 0, terms, 2);
        let (constant, factors) = equation.factors();
        assert!((constant - 2.0).abs() < 0.05, "{constant}");
        assert!((factors[0] - 0.6).abs() < 0.02 && (factors[1] + 0.3).abs() < 0.02, "{factors:?}");
    }

    #[test]
    fn cross_resource_factors_are_recovered() {
        let (mut next, mut other) = (noise(3), noise(4));
        let (mut memory, mut io) = (vec![0.0], vec![0.0]);
        for at in 1..20_000 {
            memory.push(0.5 * memory[at - 1] + 0.4 * io[at - 1] + 0.1 * next());
            io.push(0.7 * io[at - 1] + other());
        }
        let terms = Terms { resources: vec![0, 1], lags: 1, errors: 0 };
        let equation = Equation::fit(&[memory, io], &[], 0, terms, 1);
        let (_, factors) = equation.factors();
        assert!((factors[0] - 0.5).abs() < 0.02 && (factors[1] - 0.4).abs() < 0.02, "{factors:?}");
    }

    #[test]
    fn error_factors_are_recovered() {
        let mut next = noise(11);
        let (mut series, mut shock) = (vec![0.0], 0.0);
        for at in 1..50_000 {
            let earlier = std::mem::replace(&mut shock, next());
            series.push(0.5 * series[at - 1] + shock + 0.4 * earlier);
        }
        let series = [series];
        let long = Terms { resources: vec![0], lags: 12, errors: 0 };
        let errors = Equation::fit(&series, &[], 0, long, 12).errors(&series, 0, 12);
        let terms = Terms { resources: vec![0], lags: 1, errors: 1 };
        let equation = Equation::fit(&series, &errors, 0, terms, 13);
        let (_, factors) = equation.factors();
        assert!((factors[0] - 0.5).abs() < 0.03 && (factors[1] - 0.4).abs() < 0.03, "{factors:?}");
    }
}
