//! Findings: statements of a paper, and the comparison that they mean here.

use serde::{Deserialize, Serialize};

use super::expression::Source;
use super::{Evaluation, Experiment, ExperimentError, Expression, part};

/// A statement of a paper, and the comparison of figures that it means.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// The statement, in the paper's words or shorter.
    pub claim: String,
    /// Section or figure of the paper.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub paper: String,
    /// The comparison ([`Expression`]).
    pub holds: String,
}

/// The result of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The comparison is true.
    Holds,
    /// The comparison is false.
    DoesNotHold,
    /// A point that it needs was not run, or a figure is missing.
    NotRun,
}

impl Verdict {
    /// Returns the verdict as words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::NotRun => "not run",
        }
    }
}

impl Finding {
    pub(super) fn check(&self, of: &Experiment, place: &str) -> Result<(), ExperimentError> {
        let expression = self.expression(place)?;
        for (name, _) in expression.selections().into_iter().flat_map(|(_, places)| places) {
            if !of.sweeps.iter().any(|sweep| sweep.name() == name) {
                return Err(of.no_sweep(place, name));
            }
        }
        Ok(())
    }

    /// Evaluates it over points.
    pub(super) fn judge(&self, points: &dyn Source) -> (Verdict, Evaluation) {
        let none = || Evaluation {
            holds: None,
            comparisons: Vec::new(),
            readings: Vec::new(),
            missing: vec!["the comparison cannot be read".to_owned()],
        };
        let found =
            Expression::parse(&self.holds).map_or_else(|_| none(), |it| it.evaluate(points));
        let verdict = match found.holds {
            Some(true) => Verdict::Holds,
            Some(false) => Verdict::DoesNotHold,
            None => Verdict::NotRun,
        };
        (verdict, found)
    }

    fn expression(&self, place: &str) -> Result<Expression, ExperimentError> {
        Expression::parse(&self.holds).map_err(|error| part(place, format!("holds: {error}")))
    }
}
