//! The result of one run of an application.

/// One run of an application in one mode.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    /// Duration of filling the memory, in seconds.
    pub(super) load_s: f64,
    /// Resident anonymous memory while it was measured, in bytes.
    pub(super) resident_bytes: u64,
    /// Peak of resident bytes; at most that if no sampler ran.
    pub(super) peak_bytes: u64,
    /// Values checked.
    pub(super) checked: u64,
    /// Values that differ from the stored ones.
    pub(super) wrong: u64,
    /// Digests of result and memory, compared with those of other modes.
    pub(super) digests: Vec<u64>,
    /// Measured parts.
    pub(super) cases: Vec<Timing>,
}

impl Sample {
    /// Counts the digests that differ from those of the run on local memory as wrong.
    pub(super) fn compare_with(&mut self, local: &Sample) {
        let pairs = self.digests.iter().zip(&local.digests);
        self.checked += local.digests.len() as u64;
        self.wrong += pairs.filter(|(here, there)| here != there).count() as u64;
        self.wrong += self.digests.len().abs_diff(local.digests.len()) as u64;
    }
}

/// One measured part of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Timing {
    /// Its name in tables: the application's with the case's parameters.
    pub(super) case: String,
    pub(super) operations: u64,
    pub(super) seconds: f64,
    /// 99th percentile of single requests, if there are any.
    pub(super) p99_us: Option<f64>,
    /// True if a time limit ended it early.
    pub(super) cut_short: bool,
}

impl Timing {
    /// Returns the seconds for one operation.
    pub(super) fn pace_s(&self) -> f64 {
        self.seconds / self.operations.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_or_missing_digests_are_wrong() {
        let sample = |digests: &[u64]| Sample { digests: digests.into(), ..Sample::default() };
        let local = sample(&[1, 2, 3]);
        for (digests, wrong) in [(&[1, 2, 3][..], 0), (&[1, 5, 3], 1), (&[1, 2], 1), (&[], 3)] {
            let mut far = sample(digests);
            far.compare_with(&local);
            assert_eq!((far.checked, far.wrong), (3, wrong), "{digests:?}");
        }
    }
}
