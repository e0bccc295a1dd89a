//! The compared ways to get a page, by name, and their reports.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::touch::CaseReport;

const TWO_COPIES: [&str; 2] = ["--copies", "2"];
const CODED: [&str; 2] = ["--coding", "4+2"];
const BEHIND: [&str; 2] = ["--write-behind", "/var/tmp"];

/// Redundancy of far memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Redundancy {
    /// Its arguments of `venice run`.
    pub kept: [&'static str; 2],
    /// Nodes of the rack, all of which hold a part of it.
    pub nodes: u64,
    /// True if one of them is killed before pages are touched.
    pub is_degraded: bool,
}

/// Source of a touched page.
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
    /// The same with threads on any processor.
    VeniceShmUnpinned,
    /// The first, served in the faulting thread itself (`--faults in-thread`).
    VeniceShmInThread,
    /// Venice over shared memory, with read-ahead off: one page for each fault.
    VeniceShmOnePage,
    /// Venice over shared memory by pages of 64 KiB (`--page-size 64k`).
    VeniceShmLarge,
    /// Venice over shared memory by pages of 2 MiB (`--page-size 2m`).
    VeniceShmHuge,
    /// Venice over shared memory, with two replicas.
    VeniceShmTwoCopies,
    /// The same with one donor dead: the other replica is read.
    VeniceShmTwoCopiesDegraded,
    /// Venice over shared memory, coded 4+2.
    VeniceShmCoded,
    /// The same with one donor of six dead: its fragments are computed.
    VeniceShmCodedDegraded,
    /// Venice over shared memory, one replica and write-behind to a disk.
    VeniceShmBehind,
    /// The same with the only donor dead: all pages come from the disk.
    VeniceShmBehindDegraded,
    /// Venice, from donors over udp.
    VeniceUdp,
    /// Venice over udp, with two replicas.
    VeniceUdpTwoCopies,
    /// Venice over udp, coded 4+2.
    VeniceUdpCoded,
    /// The same with one donor of six dead.
    VeniceUdpCodedDegraded,
    /// Venice over udp, one replica and write-behind to a disk.
    VeniceUdpBehind,
    /// Venice over udp by pages of 64 KiB.
    VeniceUdpLarge,
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
    /// The default ways, in the order they run; each way with redundancy takes as long as all
    /// others of its port.
    pub const BY_DEFAULT: [Self; 15] = [
        Self::Resident,
        Self::UffdFloor,
        Self::SigbusFloor,
        Self::VeniceShm,
        Self::VeniceShmUnpinned,
        Self::VeniceShmInThread,
        Self::VeniceShmOnePage,
        Self::VeniceShmLarge,
        Self::VeniceUdp,
        Self::VeniceUdpLarge,
        Self::Umap,
        Self::VeniceSwapShm,
        Self::VeniceSwapUdp,
        Self::Zram,
        Self::FuseLoop,
    ];

    /// Returns the way's redundancy, and whether one of its donors is dead; `None`: a single
    /// replica.
    pub(crate) fn redundancy(self) -> Option<Redundancy> {
        let (kept, nodes, is_degraded) = match self {
            Self::VeniceShmTwoCopies | Self::VeniceUdpTwoCopies => (TWO_COPIES, 4, false),
            Self::VeniceShmTwoCopiesDegraded => (TWO_COPIES, 4, true),
            Self::VeniceShmCoded | Self::VeniceUdpCoded => (CODED, 6, false),
            Self::VeniceShmCodedDegraded | Self::VeniceUdpCodedDegraded => (CODED, 6, true),
            Self::VeniceShmBehind | Self::VeniceUdpBehind => (BEHIND, 2, false),
            Self::VeniceShmBehindDegraded => (BEHIND, 1, true),
            _ => return None,
        };
        Some(Redundancy { kept, nodes, is_degraded })
    }

    /// Returns the name used in arguments and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::UffdFloor => "uffd-floor",
            Self::SigbusFloor => "sigbus-floor",
            Self::VeniceShm => "venice-shm",
            Self::VeniceShmUnpinned => "venice-shm-unpinned",
            Self::VeniceShmInThread => "venice-shm-in-thread",
            Self::VeniceShmOnePage => "venice-shm-one-page",
            Self::VeniceShmLarge => "venice-shm-large",
            Self::VeniceShmHuge => "venice-shm-huge",
            Self::VeniceShmTwoCopies => "venice-shm-two-copies",
            Self::VeniceShmTwoCopiesDegraded => "venice-shm-two-copies-degraded",
            Self::VeniceShmCoded => "venice-shm-coded",
            Self::VeniceShmCodedDegraded => "venice-shm-coded-degraded",
            Self::VeniceShmBehind => "venice-shm-behind",
            Self::VeniceShmBehindDegraded => "venice-shm-behind-degraded",
            Self::VeniceUdp => "venice-udp",
            Self::VeniceUdpTwoCopies => "venice-udp-two-copies",
            Self::VeniceUdpCoded => "venice-udp-coded",
            Self::VeniceUdpCodedDegraded => "venice-udp-coded-degraded",
            Self::VeniceUdpBehind => "venice-udp-behind",
            Self::VeniceUdpLarge => "venice-udp-large",
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
    /// The way.
    pub way: Way,
    /// Set-up, where the machine chooses it.
    pub detail: Option<String>,
    /// Duration of writing every page for the first time, in seconds; 0 at the floor.
    pub fill_s: f64,
    /// Cost of the clock, subtracted from every latency, in nanoseconds.
    pub clock_cost_ns: u64,
    /// Its figures.
    pub cases: Vec<CaseReport>,
}

/// A way that the machine does not support.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedWay {
    /// The way.
    pub way: Way,
    /// Missing requirement.
    pub reason: String,
}

/// A way that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedWay {
    /// The way.
    pub way: Way,
    /// Error.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_the_report() {
        for way in Way::value_variants().iter().copied() {
            assert_eq!(serde_json::to_value(way).unwrap(), way.name());
            assert_eq!(Way::from_str(way.name(), false), Ok(way));
        }
    }
}
