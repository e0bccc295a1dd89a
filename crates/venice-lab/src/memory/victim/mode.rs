//! The modes by name: the place of the values that are not local.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::proxy::VictimMemory;

/// Place of memcached's values that do not fit its local share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpillMode {
    /// All local, behind the proxy: the baseline of the others.
    Local,
    /// All local; clients talk to memcached itself.
    Bare,
    /// A victim store in the proxy's own memory: the cost of a victim store without the distance.
    VictimLocal,
    /// A victim store in borrowed memory, over shared memory.
    VictimShm,
    /// A victim store in borrowed memory, over udp.
    VictimUdp,
    /// memcached's own memory, paged by Venice from donors over shared memory.
    VeniceShm,
    /// memcached's own memory, paged by Venice from donors over udp.
    VeniceUdp,
    /// No place: memcached evicts them.
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

    /// Returns the name used in arguments and reports.
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

    /// True if a share of the values is local and the rest is not.
    pub(super) fn has_shares(self) -> bool {
        !matches!(self, Self::Local | Self::Bare)
    }

    /// True if every value stays available.
    pub(super) fn keeps_all(self) -> bool {
        self != Self::Smaller
    }

    /// True if the mode only serves comparison.
    pub(super) fn is_peer(self) -> bool {
        matches!(self, Self::Local | Self::Bare | Self::VictimLocal | Self::Smaller)
    }

    /// Returns the memory of the victim store, if there is one.
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
    fn names_match_the_report() {
        for mode in SpillMode::ALL {
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.name());
            assert_eq!(SpillMode::from_str(mode.name(), false), Ok(mode));
        }
    }
}
