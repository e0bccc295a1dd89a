//! Minimisation of a failing scenario: it gets smaller as long as it fails in the same way.

/// A scenario that can be made smaller.
pub trait Scenario: Clone {
    /// The report of a failed run.
    type Report;
    /// The way it failed. Only a smaller scenario with an equal one is taken.
    type Failure: PartialEq;

    /// Returns slightly smaller scenarios, the largest steps first. Each must be able to run.
    fn smaller(&self) -> Vec<Self>;

    /// Returns the way that a run failed; `None`: it did not fail.
    fn failure(report: &Self::Report) -> Option<Self::Failure>;
}

/// Minimises a failing scenario. `run` runs one, and returns `None` if it cannot. Stops after `tries`
/// runs; returns the smallest scenario that failed, and its report. `None` if the scenario does not
/// fail.
pub fn minimise<S: Scenario>(
    scenario: &S,
    tries: u32,
    mut run: impl FnMut(&S) -> Option<S::Report>,
) -> Option<(S, S::Report)> {
    let mut left = tries;
    let mut fails = |scenario: &S| {
        left = left.checked_sub(1)?;
        let report = run(scenario)?;
        S::failure(&report).map(|failure| (report, failure))
    };
    let (report, first) = fails(scenario)?;
    let mut best = (scenario.clone(), report);
    loop {
        let smaller = best.0.smaller().into_iter().find_map(|candidate| {
            let (report, failure) = fails(&candidate)?;
            (failure == first).then_some((candidate, report))
        });
        match smaller {
            Some(smaller) => best = smaller,
            None => return Some(best),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails with its remainder by 3 from 10 on.
    #[derive(Clone, Debug, PartialEq)]
    struct Number(u32);

    impl Scenario for Number {
        type Report = u32;
        type Failure = u32;

        fn smaller(&self) -> Vec<Self> {
            [self.0 / 2, self.0.saturating_sub(1), self.0.saturating_sub(3)].map(Number).to_vec()
        }

        fn failure(report: &u32) -> Option<u32> {
            (*report >= 10).then_some(report % 3)
        }
    }

    #[test]
    fn same_failure_gets_smaller() {
        let run = |number: &Number| Some(number.0);
        assert_eq!(minimise(&Number(100), 100, run), Some((Number(10), 10)));
        assert_eq!(minimise(&Number(101), 100, run), Some((Number(11), 11)));
        assert_eq!(minimise(&Number(9), 100, run), None);
        assert_eq!(minimise(&Number(100), 1, run), Some((Number(100), 100)), "no tries are left");
    }
}
