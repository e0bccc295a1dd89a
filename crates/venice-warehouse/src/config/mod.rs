//! Everything that can be set, as data.

mod preset;

use serde::{Deserialize, Serialize};
use venice_simkernel::units::Picos;

pub use self::preset::{Named, Preset, Presets, is_path};
use crate::application::Application;
use crate::host::config::{BadValue, Server};
use crate::topology::TopologyConfig;

/// The configuration of a world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Config {
    /// The seed of all random numbers.
    pub seed: u64,
    /// The run ends after this time at the latest; 0: when nothing happens any more.
    pub end: Picos,
    /// Requests are followed stage by stage, so that the results explain the slow ones.
    pub explain: bool,
    /// Depths of the switches' queues are measured in intervals of this length, which doubles so that
    /// there are at most 256; 0: they are not.
    pub heatmap: Picos,
    /// The network.
    pub topology: TopologyConfig,
    /// The servers.
    pub server: Server,
    /// TCP of the servers.
    pub tcp: Preset<venice_tcp::Config>,
    /// The programs of the servers.
    pub application: Application,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 0,
            end: Picos(0),
            explain: true,
            heatmap: Picos(0),
            topology: TopologyConfig::default(),
            server: Server::default(),
            tcp: Preset::default(),
            application: Application::default(),
        }
    }
}

impl Presets for venice_tcp::Config {
    const PRESETS: &'static [Named<Self>] = &[
        ("linux-2.6.39", Self::linux_2_6_39),
        ("linux-3.5.7", Self::linux_3_5),
        ("linux-today", Self::linux_today),
    ];
}

impl Config {
    /// Checks all bounds, but those between topology and application.
    ///
    /// # Errors
    /// The first value that is out of its bounds.
    pub fn check(&self) -> Result<(), BadValue> {
        self.server.check().map_err(|bad| bad.within("server"))?;
        let tcp = self.tcp.values.check().map_err(|bad| BadValue {
            key: bad.key.to_owned(),
            value: bad.value.to_string(),
            bound: bad.bound.to_owned(),
        });
        tcp.map_err(|bad| bad.within("tcp"))?;
        self.application.build().check().map_err(|bad| bad.within("application"))
    }
}
