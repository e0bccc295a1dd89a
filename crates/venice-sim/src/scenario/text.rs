//! Text form of scenarios: a TOML file, and faults on a command line.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::BadScenario;
use venice_simkernel::units::Nanos;

/// Parses a scenario from TOML.
pub(crate) fn from_toml<S: DeserializeOwned>(
    text: &str,
    check: impl FnOnce(&S) -> Result<(), BadScenario>,
) -> Result<S, BadScenario> {
    let scenario: S = toml::from_str(text).map_err(|error| BadScenario(error.to_string()))?;
    check(&scenario)?;
    Ok(scenario)
}

/// Formats one as TOML.
pub(crate) fn to_toml(scenario: &impl Serialize) -> String {
    toml::to_string(scenario).expect("a scenario has only plain data")
}

/// Splits `PLACE@FROM+FOR` into its place and times.
pub(crate) fn place_and_times(text: &str) -> Option<(&str, Nanos, Nanos)> {
    let (place, times) = text.split_once('@')?;
    let (at, lasts) = times.split_once('+')?;
    Some((place, at.parse().ok()?, lasts.parse().ok()?))
}

/// Builds the error of an unreadable fault.
pub(crate) fn no_fault(text: &str, example: &str) -> BadScenario {
    BadScenario(format!("'{text}' is no fault: write {example}"))
}
