//! The modes of the demo: sources of redis's memory by name, and the budget.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Source of redis's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Local memory, all of it.
    Local,
    /// A share local, the rest from donors over shared memory.
    VeniceShm,
    /// A share local, the rest from donors over udp.
    VeniceUdp,
    /// A share local, the rest on the kernel's swap on a local disk.
    SwapDisk,
}

impl Mode {
    /// Every mode, in the order they run.
    pub const ALL: [Self; 4] = [Self::Local, Self::VeniceShm, Self::VeniceUdp, Self::SwapDisk];

    /// Returns the name used in arguments and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::VeniceShm => "venice-shm",
            Self::VeniceUdp => "venice-udp",
            Self::SwapDisk => "swap-disk",
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Local and remote memory of the modes that have less than they need, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    pub local_bytes: u64,
    pub remote_bytes: u64,
}

impl Budget {
    /// Budget of the mode that needs none.
    pub const NONE: Self = Self { local_bytes: u64::MAX, remote_bytes: 0 };

    const PAGE_BYTES: u64 = 4096;
    const SLAB_BYTES: u64 = 16 << 20;

    /// Sets the budget: `share` of what redis holds stays local; the remote memory takes all of it
    /// with a reserve, because a loading redis grows its tables by copying them.
    pub fn of(held_bytes: u64, share: f64) -> Self {
        let local_bytes = (held_bytes as f64 * share) as u64 / Self::PAGE_BYTES * Self::PAGE_BYTES;
        let roomy_bytes = held_bytes + held_bytes / 4 + 4 * Self::SLAB_BYTES;
        Self {
            local_bytes: local_bytes.max(Self::PAGE_BYTES),
            remote_bytes: roomy_bytes.next_multiple_of(Self::SLAB_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_follows_held_bytes() {
        let budget = Budget::of(1_400 << 20, 0.25);
        assert_eq!(budget.local_bytes, 350 << 20);
        assert!(budget.remote_bytes >= 1_750 << 20);
        assert_eq!(budget.remote_bytes % Budget::SLAB_BYTES, 0);
        assert_eq!(Budget::of(100, 0.1).local_bytes, 4096);
    }

    #[test]
    fn names_match_the_report() {
        for mode in Mode::ALL {
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.name());
            assert_eq!(Mode::from_str(mode.name(), false), Ok(mode));
        }
    }
}
