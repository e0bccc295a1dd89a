//! Results of a run of an experiment.

use serde::{Deserialize, Serialize};
use toml::Table;

use super::expression::Source;
use super::sweep::joined;
use super::{Coordinate, Evaluation, Experiment, ExperimentError, Point, Verdict, keys};
use crate::outcome::Outcome;

/// Results of a run, in the form of `results.json`. Fields are only added; a change of one has a new
/// [`Results::FORMAT`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Number of this form.
    pub format: u32,
    /// The experiment's name.
    pub name: String,
    /// The experiment as it was run, all layers on each other, as TOML.
    pub experiment: String,
    /// True if it is the small variant.
    pub quick: bool,
    /// Version of Venice.
    pub version: String,
    /// The seed of all random numbers; 0 if the configuration has none.
    pub seed: u64,
    /// The command that repeats the run.
    pub command: String,
    /// The machine that ran it.
    pub host: Host,
    /// Start of the run, in seconds since 1970.
    pub started_unix_s: u64,
    /// True if it was interrupted; points that were not run say so.
    pub interrupted: bool,
    /// The whole configuration, without what is swept.
    pub config: Table,
    /// A result for each point, in the experiment's order.
    pub points: Vec<PointResult>,
    /// The findings, judged on these points.
    pub findings: Vec<JudgedFinding>,
}

/// The machine of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Processor, kernel and the like, in one line.
    pub machine: String,
    /// Threads of one point.
    pub threads: usize,
    /// Ranks of one point, with a thread each; `None`: it was one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<usize>,
}

/// The result of a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointResult {
    /// Its place on each sweep.
    pub coordinates: Vec<Coordinate>,
    /// Its state at the end of the run.
    pub state: State,
    /// Seconds that it took on the machine.
    pub wall_s: f64,
    /// Its results; `None` if it was not run.
    pub outcome: Option<Outcome>,
}

/// The end of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// To its end.
    Done,
    /// To an interrupt: the outcome is of the time until then.
    Interrupted,
    /// Not begun.
    NotRun,
}

impl State {
    /// Returns the state as words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Interrupted => "interrupted",
            Self::NotRun => "not run",
        }
    }
}

/// A finding with its verdict and numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JudgedFinding {
    /// The statement.
    pub claim: String,
    /// Section or figure of the paper.
    pub paper: String,
    /// The comparison.
    pub expression: String,
    /// The verdict.
    pub verdict: Verdict,
    /// Both sides of each comparison, and the figures in them.
    pub numbers: Evaluation,
}

impl Results {
    /// The form that this version writes.
    pub const FORMAT: u32 = 1;

    /// Makes the results of an experiment of which nothing has run; host, command and start are the
    /// caller's.
    pub fn not_run(experiment: &Experiment, config: Table, points: &[Point]) -> Self {
        let not_run = |point: &Point| PointResult {
            coordinates: point.coordinates.clone(),
            state: State::NotRun,
            wall_s: 0.0,
            outcome: None,
        };
        Self {
            format: Self::FORMAT,
            name: experiment.name.clone(),
            experiment: experiment.to_toml(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seed: keys::get(&config, "seed").and_then(toml::Value::as_integer).unwrap_or(0) as u64,
            points: points.iter().map(not_run).collect(),
            config,
            ..Self::default()
        }
    }

    /// Returns the experiment that was run.
    ///
    /// # Errors
    /// If its text was changed to what is none.
    pub fn experiment(&self) -> Result<Experiment, ExperimentError> {
        Experiment::from_toml(&self.experiment)
    }

    /// Judges the findings on the points so far.
    pub fn judge(&mut self, experiment: &Experiment) {
        let judged = experiment.findings.iter().map(|finding| {
            let (verdict, numbers) = finding.judge(&Finished(&self.points));
            JudgedFinding {
                claim: finding.claim.clone(),
                paper: finding.paper.clone(),
                expression: finding.holds.clone(),
                verdict,
                numbers,
            }
        });
        self.findings = judged.collect();
    }

    /// Returns the names of the figures that points have, in the order of the first that has them.
    pub fn figure_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for outcome in self.points.iter().filter_map(|point| point.outcome.as_ref()) {
            let new = outcome.names().into_iter().filter(|name| !names.contains(name));
            let new: Vec<String> = new.collect();
            names.extend(new);
        }
        names
    }
}

impl PointResult {
    /// Returns its coordinates as text: `servers=8 client=epoll`.
    pub fn place(&self) -> String {
        joined(&self.coordinates, " ")
    }
}

/// Points as findings see them: an interrupted one has no figures.
struct Finished<'a>(&'a [PointResult]);

impl Source for Finished<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn coordinates(&self, point: usize) -> &[Coordinate] {
        &self.0[point].coordinates
    }

    fn value(&self, point: usize, figure: &str) -> Option<(f64, &str)> {
        let point = &self.0[point];
        let outcome = point.outcome.as_ref().filter(|_| point.state == State::Done);
        outcome.and_then(|outcome| outcome.value(figure))
    }
}
