//! The modes: sources of an application's memory by name, and the budget of a run.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Source of an application's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Local memory for everything: the baseline of the others.
    Local,
    /// Paged by Venice, from donors over shared memory.
    VeniceShm,
    /// Paged by Venice, from donors over udp.
    VeniceUdp,
    /// Venice's window: the donors' memory is mapped, over shared memory.
    VeniceWindow,
    /// Kernel swap to Venice's donors over shared memory.
    VeniceSwapShm,
    /// Kernel swap to Venice's donors over udp.
    VeniceSwapUdp,
    /// Kernel swap to a file on a local disk.
    SwapDisk,
    /// Kernel swap to compressed local memory.
    Zram,
    /// Kernel swap to a RAM disk of this machine.
    RamDisk,
    /// Kernel swap to memory behind nbdkit, FUSE and a loop device.
    FuseLoop,
}

impl Mode {
    /// Every mode, in the order they run.
    pub const ALL: [Self; 10] = [
        Self::Local,
        Self::VeniceShm,
        Self::VeniceUdp,
        Self::VeniceWindow,
        Self::VeniceSwapShm,
        Self::VeniceSwapUdp,
        Self::SwapDisk,
        Self::Zram,
        Self::RamDisk,
        Self::FuseLoop,
    ];

    /// The modes that `venice bench memory` runs by default.
    pub const USUAL: [Self; 8] = [
        Self::Local,
        Self::VeniceShm,
        Self::VeniceUdp,
        Self::VeniceWindow,
        Self::VeniceSwapShm,
        Self::VeniceSwapUdp,
        Self::SwapDisk,
        Self::Zram,
    ];

    /// Returns the name used in arguments and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::VeniceShm => "venice-shm",
            Self::VeniceUdp => "venice-udp",
            Self::VeniceWindow => "venice-window",
            Self::VeniceSwapShm => "venice-swap-shm",
            Self::VeniceSwapUdp => "venice-swap-udp",
            Self::SwapDisk => "swap-disk",
            Self::Zram => "zram",
            Self::RamDisk => "ram-disk",
            Self::FuseLoop => "fuse-loop",
        }
    }

    /// True if the kernel swaps what does not fit.
    pub(crate) fn swaps(self) -> bool {
        match self {
            Self::Local | Self::VeniceShm | Self::VeniceUdp | Self::VeniceWindow => false,
            Self::VeniceSwapShm
            | Self::VeniceSwapUdp
            | Self::SwapDisk
            | Self::Zram
            | Self::RamDisk
            | Self::FuseLoop => true,
        }
    }

    /// True if the mode only serves comparison.
    pub(crate) fn is_peer(self) -> bool {
        matches!(self, Self::Local | Self::SwapDisk | Self::Zram | Self::RamDisk | Self::FuseLoop)
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Local and remote memory of one run, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    pub(crate) local_bytes: u64,
    pub(crate) remote_bytes: u64,
}

impl Budget {
    /// Below it the kernel, where it swaps, kills the program.
    const LEAST_LOCAL_BYTES: u64 = 8 << 20;
    const PAGE_BYTES: u64 = 4096;
    const SLAB_BYTES: u64 = 16 << 20;

    /// Sets the budget of a run: `share` of what an application holds while measured stays local;
    /// the remote memory holds its peak with some reserve.
    pub(crate) fn of(held_bytes: u64, peak_bytes: u64, share: f64) -> Self {
        let local_bytes = (held_bytes as f64 * share) as u64 / Self::PAGE_BYTES * Self::PAGE_BYTES;
        let most_bytes = held_bytes.max(peak_bytes);
        let roomy_bytes = most_bytes + most_bytes / 4 + 2 * Self::SLAB_BYTES;
        Self {
            local_bytes: local_bytes.max(Self::LEAST_LOCAL_BYTES),
            remote_bytes: roomy_bytes.next_multiple_of(Self::SLAB_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_follows_held_bytes() {
        let budget = Budget::of(100 << 20, 160 << 20, 0.25);
        assert_eq!(budget.local_bytes, 25 << 20);
        assert!(budget.remote_bytes >= 200 << 20);
        assert_eq!(budget.remote_bytes % Budget::SLAB_BYTES, 0);
        assert_eq!(Budget::of(1 << 20, 0, 0.5).local_bytes, 8 << 20);
    }

    #[test]
    fn names_match_the_report() {
        for mode in Mode::ALL {
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.name());
            assert_eq!(Mode::from_str(mode.name(), false), Ok(mode));
        }
    }
}
