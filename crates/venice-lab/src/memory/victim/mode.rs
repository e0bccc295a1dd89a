//! Where what is not local is, by name.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::proxy::VictimMemory;

/// Where memcached's values are that have no room in its local share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpillMode {
    /// All of it is local, behind the proxy: what the others are compared with.
    Local,
    /// All of it is local, and clients talk to memcached itself.
    Bare,
    /// In a victim store in the proxy's own memory: what a victim store costs, without the distance.
    VictimLocal,
    /// In a victim store in borrowed memory, over shared memory.
    VictimShm,
    /// In a victim store in borrowed memory, over udp.
    VictimUdp,
    /// memcached's own memory, paged by Venice from donors over shared memory.
    VeniceShm,
    /// memcached's own memory, paged by Venice from donors over udp.
    VeniceUdp,
    /// Nowhere: memcached throws them out.
    Smaller,
}

impl SpillMode {
    /// Every mode, in the order they run.
    pub const ALL: [Self; 8] = [
        Self::Local,
        Self::Bare,
        Self::VictimLocal,
        Self::VictimShm,
        Self::VictimUdp,
        Self::VeniceShm,
        Self::VeniceUdp,
        Self::Smaller,
    ];

    /// The name in arguments and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Bare => "bare",
            Self::VictimLocal => "victim-local",
            Self::VictimShm => "victim-shm",
            Self::VictimUdp => "victim-udp",
            Self::VeniceShm => "venice-shm",
            Self::VeniceUdp => "venice-udp",
            Self::Smaller => "smaller",
        }
    }

    /// Whether a share of the values is local, and the rest elsewhere.
    pub(super) fn has_shares(self) -> bool {
        !matches!(self, Self::Local | Self::Bare)
    }

    /// Whether every value is to be had.
    pub(super) fn keeps_all(self) -> bool {
        self != Self::Smaller
    }

    /// Whether it is there for comparison only.
    pub(super) fn is_peer(self) -> bool {
        matches!(self, Self::Local | Self::Bare | Self::VictimLocal | Self::Smaller)
    }

    /// The victim store's memory, where there is one.
    pub(super) fn victims(self) -> Option<VictimMemory> {
        match self {
            Self::VictimLocal => Some(VictimMemory::Local),
            Self::VictimShm => Some(VictimMemory::Shm),
            Self::VictimUdp => Some(VictimMemory::Udp),
            _ => None,
        }
    }
}

impl std::fmt::Display for SpillMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_the_names_of_the_report() {
        for mode in SpillMode::ALL {
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.name());
            assert_eq!(SpillMode::from_str(mode.name(), false), Ok(mode));
        }
    }
}
