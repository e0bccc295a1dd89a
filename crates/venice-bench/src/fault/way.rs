//! The ways to get a page that are compared, by name, and what is told of each.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::touch::CaseReport;

/// How a touched page comes to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Plain memory, all of it resident.
    Resident,
    /// A bare userfaultfd handler with a local copy, and no eviction.
    UffdFloor,
    /// A bare SIGBUS handler in the thread itself with a local copy, and no eviction.
    SigbusFloor,
    /// Venice, from donors over shared memory.
    VeniceShm,
    /// The same, served in the thread itself that faults (`--faults in-thread`).
    VeniceShmInThread,
    /// Venice over shared memory, with read-ahead off: one page for each fault.
    VeniceShmOnePage,
    /// Venice, from donors over udp.
    VeniceUdp,
    /// UMap, from a file in memory.
    Umap,
    /// Kernel swap to donors over shared memory.
    VeniceSwapShm,
    /// Kernel swap to donors over udp.
    VeniceSwapUdp,
    /// Kernel swap to compressed local memory.
    Zram,
    /// Kernel swap to memory behind nbdkit, FUSE and a loop device.
    FuseLoop,
}

impl Way {
    /// Every way, in the order they run.
    pub const ALL: [Self; 12] = [
        Self::Resident,
        Self::UffdFloor,
        Self::SigbusFloor,
        Self::VeniceShm,
        Self::VeniceShmInThread,
        Self::VeniceShmOnePage,
        Self::VeniceUdp,
        Self::Umap,
        Self::VeniceSwapShm,
        Self::VeniceSwapUdp,
        Self::Zram,
        Self::FuseLoop,
    ];

    /// The name in arguments and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::UffdFloor => "uffd-floor",
            Self::SigbusFloor => "sigbus-floor",
            Self::VeniceShm => "venice-shm",
            Self::VeniceShmInThread => "venice-shm-in-thread",
            Self::VeniceShmOnePage => "venice-shm-one-page",
            Self::VeniceUdp => "venice-udp",
            Self::Umap => "umap",
            Self::VeniceSwapShm => "venice-swap-shm",
            Self::VeniceSwapUdp => "venice-swap-udp",
            Self::Zram => "zram",
            Self::FuseLoop => "fuse-loop",
        }
    }
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// One way to get a page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WayReport {
    /// Which way.
    pub way: Way,
    /// How it was set up, where that is a choice of the machine.
    pub detail: Option<String>,
    /// Duration of writing every page for the first time, in seconds; 0 at the floor.
    pub fill_s: f64,
    /// Cost of the clock that was taken off every latency, in nanoseconds.
    pub clock_cost_ns: u64,
    /// Its figures.
    pub cases: Vec<CaseReport>,
}

/// A way that the machine does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedWay {
    /// Which way.
    pub way: Way,
    /// What is missing.
    pub reason: String,
}

/// A way that went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedWay {
    /// Which way.
    pub way: Way,
    /// What happened.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_have_the_names_of_the_report() {
        for way in Way::ALL {
            assert_eq!(serde_json::to_value(way).unwrap(), way.name());
            assert_eq!(Way::from_str(way.name(), false), Ok(way));
        }
    }
}
