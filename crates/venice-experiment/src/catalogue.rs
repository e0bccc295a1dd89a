//! Experiments by name.

use crate::{Experiment, ExperimentError, nearest};

/// Experiments by name, with their texts.
#[derive(Clone, Debug, Default)]
pub struct Catalogue(Vec<(&'static str, &'static str)>);

impl Catalogue {
    /// Makes a catalogue of names and texts.
    pub fn new(experiments: impl IntoIterator<Item = (&'static str, &'static str)>) -> Self {
        Self(experiments.into_iter().collect())
    }

    /// Returns the names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(name, _)| *name)
    }

    /// Returns the experiment of a name.
    ///
    /// # Errors
    /// If there is none.
    pub fn get(&self, name: &str) -> Result<Experiment, ExperimentError> {
        match self.0.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Experiment::from_toml(text),
            None => Err(ExperimentError::Unknown {
                name: name.to_owned(),
                nearest: nearest(name, self.names()).into_iter().next(),
            }),
        }
    }

    /// Reads an experiment that stands alone, or changes the one here that is its
    /// [`Experiment::base`].
    ///
    /// # Errors
    /// If the text is no experiment, or its base is unknown.
    pub fn read(&self, text: &str) -> Result<Experiment, ExperimentError> {
        let over = Experiment::part_from_toml(text)?;
        let Some(base) = &over.base else { return Experiment::from_toml(text) };
        let mut experiment = self.get(base).map_err(|error| ExperimentError::Key {
            key: "base".to_owned(),
            why: error.to_string(),
        })?;
        experiment.lay(over)?;
        Ok(experiment)
    }
}
