//! Sweeps: what varies between the points of an experiment.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::{ExperimentError, is_name_letter, keys, part};

/// One thing that varies: a key over values, or variants that each set several keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sweep {
    /// The key that takes the values; without it, there are variants.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Its name in figures and findings; without it, the last part of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// Values of the key.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    values: Vec<Value>,
    /// Variants: keys with values, and a `label`.
    #[serde(rename = "set", skip_serializing_if = "Vec::is_empty")]
    variants: Vec<Table>,
}

/// The place of a point on one sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Coordinate {
    /// The sweep's name.
    pub name: String,
    /// The value, or the variant's label.
    pub value: Value,
}

impl Coordinate {
    /// True if `text` is its value: numbers are compared as numbers.
    pub fn is(&self, text: &str) -> bool {
        let number = match &self.value {
            Value::Integer(value) => Some(*value as f64),
            Value::Float(value) => Some(*value),
            _ => None,
        };
        match (number, text.parse::<f64>()) {
            (Some(number), Ok(wanted)) => number == wanted,
            _ => keys::text_of(&self.value) == text,
        }
    }

    /// Returns the value as text.
    pub fn text(&self) -> String {
        keys::text_of(&self.value)
    }
}

/// Formats a place as text: `servers=8`.
impl std::fmt::Display for Coordinate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.name, self.text())
    }
}

/// Returns the places of a point as text, with a separator between.
pub(super) fn joined(coordinates: &[Coordinate], separator: &str) -> String {
    coordinates.iter().map(Coordinate::to_string).collect::<Vec<_>>().join(separator)
}

/// One point of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Its place on each sweep.
    pub coordinates: Vec<Coordinate>,
    /// Its configuration, with every key.
    pub config: Table,
}

/// The name of a variant in its table.
const LABEL: &str = "label";

impl Sweep {
    /// Sweeps `key` over values.
    pub fn of(key: &str, values: Vec<Value>) -> Self {
        Self { key: Some(key.to_owned()), values, ..Self::default() }
    }

    /// Returns its name in figures and findings.
    pub fn name(&self) -> &str {
        let last = self.key.as_deref().map(|key| key.rsplit('.').next().unwrap_or(key));
        self.label.as_deref().or(last).unwrap_or_default()
    }

    /// Returns the key that takes its values; `None` if it has variants.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Returns its values as text, or its variants' labels.
    pub fn texts(&self) -> Vec<String> {
        (0..self.len()).map(|at| self.coordinate(at).text()).collect()
    }

    /// Returns the number of its values or variants.
    pub fn len(&self) -> usize {
        if self.key.is_some() { self.values.len() } else { self.variants.len() }
    }

    /// True if it has no value, which no checked sweep has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if `key` is its name or its key.
    pub(super) fn sets(&self, key: &str) -> bool {
        self.name() == key || self.key.as_deref() == Some(key)
    }

    /// True if it changes the value of `key`.
    pub fn changes(&self, key: &str) -> bool {
        self.key.as_deref() == Some(key) || self.varies(key)
    }

    /// True if its variants set `key`.
    pub(super) fn varies(&self, key: &str) -> bool {
        self.variants.iter().any(|variant| keys::leaves(variant).iter().any(|(set, _)| set == key))
    }

    /// Returns the place at its `at`-th value.
    pub(super) fn coordinate(&self, at: usize) -> Coordinate {
        let value = match self.key {
            Some(_) => self.values.get(at).cloned(),
            None => self.variants.get(at).and_then(|variant| variant.get(LABEL)).cloned(),
        };
        Coordinate { name: self.name().to_owned(), value: value.unwrap_or_else(|| "".into()) }
    }

    /// Sets its `at`-th value in a configuration.
    pub(super) fn apply(&self, at: usize, config: &mut Table) -> Result<(), ExperimentError> {
        if let Some(key) = &self.key {
            return keys::set(config, key, self.values[at].clone());
        }
        // Choices come first: they drop the keys of other choices.
        let mut keys_set: Vec<(String, &Value)> = keys::leaves(&self.variants[at]);
        keys_set.sort_by_key(|(key, _)| !(key == "kind" || key.ends_with(".kind")));
        let settings = keys_set.into_iter().filter(|(key, _)| key != LABEL);
        settings.into_iter().try_for_each(|(key, value)| keys::set(config, &key, value.clone()))
    }

    /// Replaces its values; of variants it keeps those with these labels.
    pub(super) fn limit(&mut self, values: Vec<Value>) -> Result<(), ExperimentError> {
        let name = self.name().to_owned();
        if values.is_empty() {
            return Err(part(format!("sweep {name}"), "it has no values".into()));
        }
        if self.key.is_some() {
            self.values = values;
            return Ok(());
        }
        let labels = self.texts();
        let mut kept = Vec::new();
        for value in values {
            let wanted = keys::text_of(&value);
            let at = labels.iter().position(|label| *label == wanted).ok_or_else(|| {
                let why = format!("no variant '{wanted}': write one of {}", labels.join(", "));
                part(format!("sweep {name}"), why)
            })?;
            kept.push(self.variants[at].clone());
        }
        self.variants = kept;
        Ok(())
    }

    pub(super) fn check(&self, place: &str) -> Result<(), ExperimentError> {
        let wrong = |why: &str| Err(part(place, why.to_owned()));
        match (&self.key, &self.label) {
            (Some(_), _) if !self.variants.is_empty() => {
                return wrong("it has a key and variants: write values, or leave out the key");
            }
            (None, _) if !self.values.is_empty() => return wrong("values need a key"),
            (None, None) => return wrong("variants need a label for the whole sweep"),
            (Some(_) | None, _) => {}
        }
        if !self.name().chars().all(is_name_letter) || self.name().is_empty() {
            return wrong("its label may have letters, digits, - and _");
        }
        if self.is_empty() {
            return wrong("it has no values");
        }
        let texts = self.texts();
        if let Some(at) = texts.iter().position(String::is_empty) {
            return wrong(&format!("variant {} needs a label", at + 1));
        }
        let mut seen = HashSet::new();
        match texts.iter().find(|text| !seen.insert(*text)) {
            Some(twice) => wrong(&format!("the value {twice} is there twice")),
            None => Ok(()),
        }
    }
}

/// Returns all combinations of values, as places on the sweeps, the last fastest.
pub(super) fn product(sweeps: &[Sweep]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for sweep in sweeps {
        let longer =
            |places: Vec<usize>| (0..sweep.len()).map(move |at| [&places[..], &[at]].concat());
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

/// A choice of points: `servers=8|16,client=epoll`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    wanted: Vec<(String, Vec<String>)>,
}

impl Filter {
    /// Reads a choice among points with these sweeps.
    ///
    /// # Errors
    /// If it names a sweep or a value that is not there.
    pub fn parse(text: &str, sweeps: &[Sweep]) -> Result<Self, ExperimentError> {
        let mut wanted = Vec::new();
        for one in text.split(',').filter(|one| !one.trim().is_empty()) {
            let wrong = |why: String| part(format!("points {}", one.trim()), why);
            let (name, values) = one.split_once('=').ok_or_else(|| {
                wrong("write NAME=VALUE, or NAME=VALUE|VALUE, with commas between".into())
            })?;
            let names: Vec<&str> = sweeps.iter().map(Sweep::name).collect();
            let sweep = sweeps.iter().find(|sweep| sweep.sets(name.trim()));
            let sweep = sweep.ok_or_else(|| {
                wrong(format!("{} is not swept: swept are {}", name.trim(), names.join(", ")))
            })?;
            let values: Vec<String> = values.split('|').map(|one| one.trim().to_owned()).collect();
            let places = || (0..sweep.len()).map(|at| sweep.coordinate(at));
            let missing = values.iter().find(|value| !places().any(|place| place.is(value)));
            if let Some(value) = missing {
                let there = sweep.texts().join(", ");
                return Err(wrong(format!("no value {value}: {} is {there}", sweep.name())));
            }
            wanted.push((sweep.name().to_owned(), values));
        }
        Ok(Self { wanted })
    }

    /// True if it chooses the point at these places.
    pub fn takes(&self, coordinates: &[Coordinate]) -> bool {
        self.wanted.iter().all(|(name, values)| {
            let place = coordinates.iter().find(|place| place.name == *name);
            place.is_some_and(|place| values.iter().any(|value| place.is(value)))
        })
    }
}
