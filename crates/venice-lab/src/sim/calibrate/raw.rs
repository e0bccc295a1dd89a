//! Times as they were measured, by name.

use std::collections::BTreeMap;

use anyhow::Result;
use venice_measure::interrupt;

use super::sample::Cost;

/// Times by the names of what was measured; what failed has its reason.
#[derive(Clone, Debug, Default)]
pub(super) struct Raws(BTreeMap<&'static str, Result<Cost, String>>);

impl Raws {
    /// Notes a time, or why there is none.
    ///
    /// # Errors
    /// An interrupt: no reason to leave something out.
    pub fn note(&mut self, name: &'static str, measured: Result<Cost>) -> Result<()> {
        interrupt::check()?;
        self.0.insert(name, measured.map_err(|error| format!("{error:#}")));
        Ok(())
    }

    /// Notes that some times cannot be measured.
    pub fn leave_out(&mut self, names: &[&'static str], why: &str) {
        self.0.extend(names.iter().map(|name| (*name, Err(why.to_owned()))));
    }

    /// Returns a time.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn get(&self, name: &'static str) -> Result<Cost, String> {
        self.0.get(name).cloned().unwrap_or_else(|| Err(format!("{name} was not measured")))
    }

    /// Returns all of them in the order of their names.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &Result<Cost, String>)> {
        self.0.iter().map(|(name, cost)| (*name, cost))
    }
}
