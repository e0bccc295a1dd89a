//! Tables that begin with the values of a preset: `kernel = { preset = "linux-3.5.7", futex = 900 }`. A
//! preset is a name, or the path of a file where a table has files.

use std::path::Path;

use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use venice_experiment::keys;

/// A preset: its name, and what makes its values.
pub type Named<T> = (&'static str, fn() -> T);

/// A table of values with presets by name. The first one is the default.
pub trait Presets: Serialize + DeserializeOwned + 'static {
    /// Names, and what makes their values.
    const PRESETS: &'static [Named<Self>];
    /// The command that writes files of such tables, if there is one.
    const WRITTEN_BY: Option<&'static str> = None;

    /// Reads the values of a file.
    ///
    /// # Errors
    /// If it has none; the message names the file.
    fn read(path: &Path) -> Result<Self, String> {
        Err(format!("{}: not a file with such a table", path.display()))
    }
}

/// True if the text of a preset is the path of a file.
pub fn is_path(preset: &str) -> bool {
    preset.contains('/') || preset.ends_with(".toml")
}

/// A table of values that began as a preset.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset<T> {
    /// The preset's name, or the path of its file.
    pub name: String,
    /// The values.
    pub values: T,
}

impl<T: Presets> Preset<T> {
    /// Returns a preset by its name or path.
    fn find(text: &str) -> Result<Self, String> {
        if let Some(found) = Self::named(text) {
            return Ok(found);
        }
        if T::WRITTEN_BY.is_some() && is_path(text) {
            return T::read(Path::new(text)).map(|values| Self { name: text.to_owned(), values });
        }
        let known: Vec<&str> = T::PRESETS.iter().map(|(name, _)| *name).collect();
        let mut bound = format!("must be one of {}", known.join(", "));
        if let Some(command) = T::WRITTEN_BY {
            bound += &format!(", or a file of `{command}` (FILE.toml)");
        }
        Err(format!("preset = '{text}': {bound}"))
    }

    /// Returns a preset by its name.
    pub fn named(name: &str) -> Option<Self> {
        let (name, make) = T::PRESETS.iter().find(|(known, _)| *known == name)?;
        Some(Self { name: (*name).into(), values: make() })
    }
}

impl<T: Presets> Default for Preset<T> {
    fn default() -> Self {
        Self::named(T::PRESETS[0].0).expect("it is the first")
    }
}

impl<T: Presets> Serialize for Preset<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut table = toml::Table::try_from(&self.values).map_err(S::Error::custom)?;
        table.insert("preset".into(), self.name.clone().into());
        table.serialize(serializer)
    }
}

impl<'de, T: Presets> Deserialize<'de> for Preset<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut changes = toml::Table::deserialize(deserializer)?;
        let name = match changes.remove("preset") {
            None => T::PRESETS[0].0.to_owned(),
            Some(toml::Value::String(name)) => name,
            Some(other) => {
                return Err(D::Error::custom(format!("preset = {other}: expected a name")));
            }
        };
        let preset = Self::find(&name).map_err(D::Error::custom)?;
        let mut table = toml::Table::try_from(&preset.values).map_err(D::Error::custom)?;
        keys::merge(&mut table, changes);
        let values = table.try_into().map_err(D::Error::custom)?;
        Ok(Self { name, values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::kernel::Kernel;
    use crate::traffic::Distribution;

    #[test]
    fn other_kind_replaces_that_of_preset() {
        let read = |text: &str| toml::from_str::<Preset<Kernel>>(text).unwrap().values.noise.gap;
        let constant = read("noise.gap = { kind = 'constant', value = 0.0 }");
        assert_eq!(constant, Distribution::Constant { value: 0.0 });
        let same = read("noise.gap = { kind = 'exponential', mean = 7.0 }");
        assert_eq!(same, Distribution::Exponential { mean: 7.0 });
        assert_eq!(read("noise.gap.mean = 8.0"), Distribution::Exponential { mean: 8.0 });
    }
    #[test]
    fn keys_set_another_kind() {
        let mut table = toml::Table::new();
        for (key, value) in [("kind", "constant".into()), ("value", toml::Value::Float(0.0))] {
            keys::set(&mut table, &format!("server.kernel.noise.gap.{key}"), value).unwrap();
        }
        let (config, _) = keys::read::<crate::config::Config>(&table).unwrap();
        let gap = config.server.kernel.values.noise.gap;
        assert_eq!(gap, Distribution::Constant { value: 0.0 });
    }
}
