//! Experiments as data, and their layers.

use serde::{Deserialize, Serialize};
use strsim::osa_distance;
use toml::{Table, Value};

use crate::{BadConfig, Coordinate, Figure, Filter, Finding, Point, Sweep, World, keys, sweep};

/// Points of an experiment: each has a configuration of its own in memory.
const MOST_POINTS: usize = 5_000;

/// An experiment that cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExperimentError {
    /// The text is no experiment; with line and column if they are known.
    #[error("{0}")]
    Text(String),
    /// No experiment has that name.
    #[error("no experiment '{name}'{}", nearest.iter().map(|name| format!(": did you mean {name}?")).collect::<String>())]
    Unknown {
        /// The name.
        name: String,
        /// The most similar one.
        nearest: Option<String>,
    },
    /// The configuration has no such key.
    #[error("unknown key {key}{}", hint(nearest))]
    UnknownKey {
        /// The key.
        key: String,
        /// The most similar keys, the best first.
        nearest: Vec<String>,
    },
    /// A key has a value that cannot be used.
    #[error("{key}: {why}")]
    Key {
        /// The key.
        key: String,
        /// The reason.
        why: String,
    },
    /// The configuration as a whole cannot be used.
    #[error("configuration: {0}")]
    Config(String),
    /// A point cannot be run.
    #[error("{error} (at {place})")]
    At {
        /// Its place: `servers=8 client=epoll`.
        place: String,
        /// The reason.
        error: Box<ExperimentError>,
    },
    /// A sweep, figure or finding refers to what is not there, or to too much.
    #[error("{part}: {why}")]
    Part {
        /// The part of the file: `finding 2`.
        part: String,
        /// The reason.
        why: String,
    },
}

impl From<BadConfig> for ExperimentError {
    fn from(BadConfig { key, why }: BadConfig) -> Self {
        Self::Key { key, why }
    }
}

fn hint(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        [one] => format!(": the nearest is {one}"),
        several => format!(": the nearest are {}", several.join(", ")),
    }
}

/// An experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: String,
    /// The name of the world that runs it.
    pub world: String,
    /// One line about it.
    pub title: String,
    /// Section and figure of the paper; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub paper: String,
    /// Paragraphs about it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The experiment that it changes; used by files of users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Keys of the world's configuration that it sets.
    pub config: Table,
    /// Changes of the small variant.
    #[serde(skip_serializing_if = "Quick::is_empty")]
    pub quick: Quick,
    /// Keys that differ between its points.
    #[serde(rename = "sweep", skip_serializing_if = "Vec::is_empty")]
    pub sweeps: Vec<Sweep>,
    /// Its figures.
    #[serde(rename = "figure", skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
    /// Statements of the paper, with what must hold.
    #[serde(rename = "finding", skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
}

/// Changes of the small variant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quick {
    /// Keys of the configuration.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub config: Table,
    /// Values of sweeps, or labels of their variants, by the sweep's name.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub sweep: Table,
}

impl Quick {
    fn is_empty(&self) -> bool {
        self.config.is_empty() && self.sweep.is_empty()
    }
}

impl Experiment {
    /// Reads an experiment that stands alone.
    ///
    /// # Errors
    /// If the text is no experiment; the message has the line.
    pub fn from_toml(text: &str) -> Result<Self, ExperimentError> {
        let experiment = Self::part_from_toml(text)?;
        experiment.check()?;
        Ok(experiment)
    }

    /// Reads an experiment that may change another, which is its [`Experiment::base`].
    ///
    /// # Errors
    /// If the text is no experiment; the message has the line.
    pub fn part_from_toml(text: &str) -> Result<Self, ExperimentError> {
        toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
            let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            ExperimentError::Text(format!("{place}{}", error.message().replace('\n', " ")))
        })
    }

    /// Returns it as TOML, which [`Experiment::from_toml`] reads.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("tables with keys of text")
    }

    /// Lays a user's experiment on this one: texts and keys replace, a sweep replaces that of its
    /// name, figures replace all figures, findings all findings.
    ///
    /// # Errors
    /// If the result is inconsistent.
    pub fn lay(&mut self, over: Self) -> Result<(), ExperimentError> {
        if !over.world.is_empty() && over.world != self.world {
            return Err(part("world", format!("that of {} is {}", self.name, self.world)));
        }
        let Self { name, title, paper, description, config, quick, .. } = over;
        let texts = [
            (&mut self.name, name),
            (&mut self.title, title),
            (&mut self.paper, paper),
            (&mut self.description, description),
        ];
        texts.into_iter().filter(|(_, new)| !new.is_empty()).for_each(|(old, new)| *old = new);
        keys::merge(&mut self.config, config);
        keys::merge(&mut self.quick.config, quick.config);
        keys::merge(&mut self.quick.sweep, quick.sweep);
        for sweep in over.sweeps {
            match self.sweeps.iter_mut().find(|old| old.name() == sweep.name()) {
                Some(old) => *old = sweep,
                None => self.add_sweep(sweep),
            }
        }
        if !over.figures.is_empty() {
            self.figures = over.figures;
        }
        if !over.findings.is_empty() {
            self.findings = over.findings;
        }
        self.check()
    }

    /// Applies the changes of the small variant.
    ///
    /// # Errors
    /// If they refer to a sweep or a variant that is not there.
    pub fn make_quick(&mut self) -> Result<(), ExperimentError> {
        let Quick { config, sweep } = std::mem::take(&mut self.quick);
        keys::merge(&mut self.config, config);
        for (name, values) in sweep {
            let Value::Array(values) = values else {
                return Err(part("quick.sweep", format!("{name}: write an array of values")));
            };
            self.sweep_named(&name).ok_or_else(|| self.no_sweep("quick.sweep", &name))?;
            let sweep = self.sweeps.iter_mut().find(|sweep| sweep.name() == name);
            sweep.map_or(Ok(()), |sweep| sweep.limit(values))?;
        }
        self.check()
    }

    /// Sets a key of the configuration. A key that is swept takes this value alone; a sweep's name
    /// stands for its key.
    ///
    /// # Errors
    /// If the key is no path, or variants of a sweep set it.
    pub fn set(&mut self, key: &str, value: Value) -> Result<(), ExperimentError> {
        if let Some(at) = self.sweeps.iter().position(|sweep| sweep.sets(key)) {
            return self.sweeps[at].limit(vec![value]);
        }
        if let Some(sweep) = self.sweeps.iter().find(|sweep| sweep.varies(key)) {
            let why =
                format!("the variants of {0} set it: choose with --points {0}=NAME", sweep.name());
            return Err(ExperimentError::Key { key: key.to_owned(), why });
        }
        keys::set(&mut self.config, key, value)
    }

    /// Sweeps a key over values, or a sweep that is there over others. Figures have a curve for each value
    /// of a new one; findings that leave it open are not judged.
    ///
    /// # Errors
    /// If the key is no path, or there are no values.
    pub fn sweep(&mut self, key: &str, values: Vec<Value>) -> Result<(), ExperimentError> {
        if let Some(sweep) = self.sweeps.iter_mut().find(|sweep| sweep.sets(key)) {
            sweep.limit(values)?;
        } else {
            self.add_sweep(Sweep::of(key, values));
        }
        self.check()
    }

    fn add_sweep(&mut self, sweep: Sweep) {
        for figure in &mut self.figures {
            figure.series.push(sweep.name().to_owned());
        }
        self.sweeps.push(sweep);
    }

    /// Checks the parts against each other; the configuration is checked by [`Experiment::points`].
    fn check(&self) -> Result<(), ExperimentError> {
        self.check_number()?;
        if self.name.is_empty() || !self.name.chars().all(is_name_letter) {
            let why = format!("'{}': write letters, digits, - and _", self.name);
            return Err(part("name", why));
        }
        for (at, sweep) in self.sweeps.iter().enumerate() {
            sweep.check(&format!("sweep {}", at + 1))?;
            if self.sweeps[..at].iter().any(|other| other.name() == sweep.name()) {
                let why = format!("a second sweep named {}: give it another label", sweep.name());
                return Err(part(format!("sweep {}", at + 1), why));
            }
            let twice = |other: &&Sweep| sweep.key().is_some_and(|key| other.varies(key));
            if let (Some(key), Some(other)) = (sweep.key(), self.sweeps.iter().find(twice)) {
                let why = format!("{key} is set by the variants of {} too", other.name());
                return Err(part(format!("sweep {}", at + 1), why));
            }
        }
        for (at, figure) in self.figures.iter().enumerate() {
            figure.check(self, &format!("figure {}", at + 1))?;
            if self.figures[..at].iter().any(|other| other.name == figure.name) {
                return Err(part(
                    format!("figure {}", at + 1),
                    "a second figure of its name".into(),
                ));
            }
        }
        for (at, finding) in self.findings.iter().enumerate() {
            finding.check(self, &format!("finding {}", at + 1))?;
        }
        Ok(())
    }

    /// Checks that the points are not too many to plan.
    fn check_number(&self) -> Result<(), ExperimentError> {
        let count = |all: usize, sweep: &Sweep| all.checked_mul(sweep.len());
        let all = self.sweeps.iter().try_fold(1, count);
        match self.sweeps.iter().max_by_key(|sweep| sweep.len()) {
            Some(longest) if all.is_none_or(|all| all > MOST_POINTS) => {
                let lengths: Vec<_> = self.sweeps.iter().map(|one| one.len().to_string()).collect();
                let place = format!("sweep {}", longest.name());
                let lengths = lengths.join(" x ");
                Err(part(
                    place,
                    format!("{lengths} points: an experiment has {MOST_POINTS} at most"),
                ))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns all points: each combination of the sweeps' values, in the file's order, the last sweep
    /// fastest; every configuration is complete, and those of the points that `chosen` takes are
    /// checked by the world.
    ///
    /// # Errors
    /// If a configuration has an unknown key, or the world cannot run it.
    pub fn points<W: World>(&self, chosen: &Filter) -> Result<Vec<Point>, ExperimentError> {
        let places = sweep::product(&self.sweeps);
        places.into_iter().map(|places| self.point::<W>(&places, chosen)).collect()
    }

    fn point<W: World>(&self, places: &[usize], chosen: &Filter) -> Result<Point, ExperimentError> {
        let placed = || self.sweeps.iter().zip(places);
        let coordinates: Vec<Coordinate> =
            placed().map(|(sweep, at)| sweep.coordinate(*at)).collect();
        let mut table = self.config.clone();
        placed().try_for_each(|(sweep, at)| sweep.apply(*at, &mut table))?;
        let (config, all) = keys::read::<W::Config>(&table)?;
        if chosen.takes(&coordinates) {
            W::check(&config).map_err(|bad| at(&coordinates, bad.into()))?;
        }
        Ok(Point { coordinates, config: all })
    }

    /// Returns the configuration without its sweeps, with every key.
    ///
    /// # Errors
    /// If it has an unknown key.
    pub fn whole_config<W: World>(&self) -> Result<Table, ExperimentError> {
        keys::read::<W::Config>(&self.config).map(|(_, all)| all)
    }

    /// Returns the sweep of a name, or that sets a key.
    pub fn sweep_named(&self, name: &str) -> Option<&Sweep> {
        self.sweeps.iter().find(|sweep| sweep.sets(name))
    }

    pub(crate) fn no_sweep(&self, part: &str, name: &str) -> ExperimentError {
        let names: Vec<&str> = self.sweeps.iter().map(Sweep::name).collect();
        let why = match names[..] {
            [] => format!("{name} is not swept: nothing is"),
            _ => format!("{name} is not swept: write one of {}", names.join(", ")),
        };
        ExperimentError::Part { part: part.to_owned(), why }
    }
}

/// Adds the place of a point to an error, if it has one.
fn at(coordinates: &[Coordinate], error: ExperimentError) -> ExperimentError {
    if coordinates.is_empty() {
        return error;
    }
    ExperimentError::At { place: sweep::joined(coordinates, " "), error: Box::new(error) }
}

pub(crate) fn part(part: impl Into<String>, why: String) -> ExperimentError {
    ExperimentError::Part { part: part.into(), why }
}

pub(crate) fn is_name_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '-' || letter == '_'
}

/// Returns up to three names that resemble `name`, the best first.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<String> {
    let last = |path: &'a str| path.rsplit('.').next().unwrap_or(path);
    let own_last = name.rsplit('.').next().unwrap_or(name);
    let distance = |other: &'a str| {
        // A right name in the wrong table resembles it too.
        let misplaced = osa_distance(own_last, last(other)) * 2 + usize::from(own_last != name);
        osa_distance(name, other).min(misplaced)
    };
    let limit = name.len().div_ceil(3).max(2);
    let mut found: Vec<(usize, &str)> = known.map(|other| (distance(other), other)).collect();
    found.retain(|(distance, _)| *distance <= limit);
    found.sort();
    let best = found.first().map_or(0, |(distance, _)| *distance);
    let near = found.into_iter().filter(|(distance, _)| *distance <= best + 1);
    near.take(3).map(|(_, name)| name.to_owned()).collect()
}
