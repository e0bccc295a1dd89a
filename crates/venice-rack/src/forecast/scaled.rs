//! Samples brought to a common scale: bytes would outweigh counts.

/// The samples of each resource around 0, in units of their own spread.
#[derive(Debug, Clone)]
pub(super) struct Scaled {
    /// Samples by resource, oldest first.
    pub(super) series: Vec<Vec<f64>>,
    middles: Vec<f64>,
    spreads: Vec<f64>,
}

impl Scaled {
    /// Scales `samples`, given by resource; none may be empty.
    pub(super) fn of(samples: &[Vec<f64>]) -> Self {
        let mut scaled = Self { series: Vec::new(), middles: Vec::new(), spreads: Vec::new() };
        for series in samples {
            let count = series.len() as f64;
            let middle = series.iter().sum::<f64>() / count;
            let square =
                series.iter().map(|value| (value - middle) * (value - middle)).sum::<f64>() / count;
            // The rest of a constant is rounding error, and would be scaled up to look like noise.
            let is_flat = square.sqrt() <= middle.abs() * 1e-12;
            let spread = if is_flat { 0.0 } else { square.sqrt() };
            let value = |value: &f64| if is_flat { 0.0 } else { (value - middle) / spread };
            scaled.series.push(series.iter().map(value).collect());
            scaled.middles.push(middle);
            scaled.spreads.push(spread);
        }
        scaled
    }

    /// Returns a value of a resource in its own unit.
    pub(super) fn back(&self, resource: usize, value: f64) -> f64 {
        self.middles[resource] + self.spreads[resource] * value
    }

    /// Returns the number of samples of each resource.
    pub(super) fn len(&self) -> usize {
        self.series.first().map_or(0, Vec::len)
    }
}
