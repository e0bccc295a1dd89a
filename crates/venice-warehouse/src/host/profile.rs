//! Costs of the operating system of a real host, in a file: `venice sim calibrate` writes it, and the
//! key `preset` of a kernel takes its path.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use venice_experiment::{ExperimentError, keys};
use venice_simkernel::units::{Hertz, Picos};

use super::kernel::Kernel;
use crate::config::{Preset, is_path};

/// A profile: the measured times, and the kernel that they make.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Profile {
    /// Origin of the profile.
    pub profile: Head,
    /// Measured times by the key of the kernel that has them, for readers: no run uses them.
    pub measured: BTreeMap<String, Measured>,
    /// Costs and settings. What was not measured is that of the preset which it names.
    pub kernel: Preset<Kernel>,
}

/// Origin of a profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Head {
    /// Name of the host.
    pub host: String,
    /// Its processors and memory.
    pub machine: String,
    /// Its kernel.
    pub kernel: String,
    /// Time of the measurement (RFC 3339).
    pub date: String,
    /// Version of Venice that measured.
    pub venice: String,
    /// Clock of a core: the costs are times by it, at one cycle an instruction.
    pub clock: Hertz,
    /// Keys that were not measured, each with the reason.
    pub left_out: Vec<String>,
}

/// A measured time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Measured {
    /// The time.
    pub time: Picos,
    /// Half of the range between the quartiles of all samples.
    pub spread: Picos,
    /// The way it was measured.
    pub how: String,
}

/// An unreadable profile.
#[derive(Debug, thiserror::Error)]
pub enum BadProfile {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}; `venice sim calibrate --output FILE` writes a profile")]
    File {
        /// Path of the file.
        path: String,
        /// The reason.
        error: std::io::Error,
    },
    /// It is no TOML.
    #[error("{path}: {error}")]
    Toml {
        /// Path of the file.
        path: String,
        /// The place and the reason.
        error: String,
    },
    /// A key is unknown, or has an unreadable value.
    #[error("{path}: {error}")]
    Key {
        /// Path of the file.
        path: String,
        /// The error, which names the key.
        error: ExperimentError,
    },
    /// It is built on another file.
    #[error("{path}: kernel.preset: '{base}': must be the name of a preset, not a file")]
    Base {
        /// Path of the file.
        path: String,
        /// The preset that it names.
        base: String,
    },
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// If the file cannot be read, or has a key or a value that no profile has.
    pub fn read(path: &Path) -> Result<Self, BadProfile> {
        let name = || path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| BadProfile::File { path: name(), error })?;
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            BadProfile::Toml { path: name(), error: error.to_string().trim().replace('\n', " ") }
        })?;
        // A file that is built on itself would be read without end.
        if let Some(toml::Value::String(base)) = keys::get(&table, "kernel.preset")
            && is_path(base)
        {
            return Err(BadProfile::Base { path: name(), base: base.clone() });
        }
        keys::read::<Self>(&table)
            .map(|(profile, _)| profile)
            .map_err(|error| BadProfile::Key { path: name(), error })
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    /// If a value has no form in TOML.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let body = toml::to_string(self)?;
        Ok(format!(
            "# Costs of the operating system of a host, as `venice sim calibrate` measured them. Use:\n\
             #   --set server.kernel.preset=FILE.toml --set server.frequency={}\n\
             # Costs under [kernel] are instructions: times under [measured] by the clock.\n\n{body}",
            self.profile.clock
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.toml");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn config_with(path: &Path) -> Result<crate::config::Config, String> {
        let mut table = toml::Table::new();
        let value = path.display().to_string().into();
        keys::set(&mut table, "server.kernel.preset", value).unwrap();
        keys::read(&table).map(|(config, _)| config).map_err(|error| error.to_string())
    }

    #[test]
    fn profile_round_trips() {
        let mut profile = Profile::default();
        profile.profile.clock = Hertz(2_600_000_000);
        profile.profile.left_out.push("interrupt: there is none".into());
        profile.kernel.values.system_call = 77;
        profile.kernel.values.timer_slack = Picos(50 * Picos::MICRO);
        let time = Picos(30 * Picos::NANO);
        let measured = Measured { time, spread: Picos(500), how: "getppid(2)".into() };
        profile.measured.insert("system-call".into(), measured);
        let (_folder, path) = write(&profile.to_toml().unwrap());
        assert_eq!(Profile::read(&path).unwrap(), profile);
        let config = config_with(&path).unwrap();
        assert_eq!(config.server.kernel.values, profile.kernel.values);
        // A run's configuration names the file, and reads as it was written.
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<crate::config::Config>(&text).unwrap(), config);
    }

    #[test]
    fn keys_lie_over_profile() {
        let (_folder, path) = write("[kernel]\npreset = 'linux-3.5.7'\nfutex = 9");
        let mut table = toml::Table::new();
        for (key, value) in [("preset", path.display().to_string().into()), ("accept", 3.into())] {
            keys::set(&mut table, &format!("server.kernel.{key}"), value).unwrap();
        }
        let kernel = keys::read::<crate::config::Config>(&table).unwrap().0.server.kernel.values;
        assert_eq!((kernel.futex, kernel.accept), (9, 3));
        assert_eq!(kernel.wake_up, Kernel::linux_3_5_7().wake_up);
    }

    #[test]
    fn bad_profiles_name_key() {
        for (text, wanted) in [
            ("[kernel]\nfutx = 1", "unknown key kernel.futx: the nearest is kernel.futex"),
            ("[kernel.noise]\ntik = '1Hz'", "unknown key kernel.noise.tik"),
            ("[profile]\nclok = '1GHz'", "unknown key profile.clok"),
            ("[kernel]\nfutex = -1", "kernel.futex: -1: invalid value"),
            ("[kernel]\npreset = './host.toml'", "kernel.preset: './host.toml': must be the name"),
            ("[kernel]\npreset = 'linux-9'", "kernel.preset: \"linux-9\""),
            ("[kernel", "TOML parse error"),
        ] {
            let (_folder, path) = write(text);
            for error in
                [Profile::read(&path).unwrap_err().to_string(), config_with(&path).unwrap_err()]
            {
                assert!(error.contains(wanted) && error.contains("host.toml"), "{error}");
            }
        }
        let error = config_with(Path::new("/nonexistent/host.toml")).unwrap_err();
        assert!(error.contains("server.kernel.preset") && error.contains("calibrate"), "{error}");
    }
}
