//! Application patterns by name, and their channels.

use serde::{Deserialize, Serialize};
use venice_fabric::adaptive::Pattern;

/// One cache line.
pub(super) const LINE_BYTES: usize = 64;
pub(super) const PAGE_BYTES: usize = 4096;
pub(super) const COPY_BYTES: usize = 1 << 20;
pub(super) const COPY_MESSAGE_BYTES: usize = 64 << 10;
pub(super) const PACKET_BYTES: usize = 256;
/// Outstanding lines of a copy, and packets for one fence.
pub(super) const MANY: usize = 64;
/// Outstanding independent look-ups, and bulk transfers.
pub(super) const PAGES: usize = 32;

/// A channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChannelKind {
    /// Single accesses.
    Crma,
    /// Bulk transfers.
    Rdma,
    /// Messages.
    #[serde(rename = "qpair")]
    QPair,
}

impl ChannelKind {
    /// All of them.
    pub const ALL: [ChannelKind; 3] = [ChannelKind::Crma, ChannelKind::Rdma, ChannelKind::QPair];

    /// Returns the display name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ChannelKind::Crma => "CRMA",
            ChannelKind::Rdma => "RDMA",
            ChannelKind::QPair => "QPair",
        }
    }
}

/// An application pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AppPattern {
    /// Dependent random reads of 64 B.
    Database,
    /// Independent random reads of 64 B.
    Graph,
    /// Copies of 1 MiB to the donor.
    Copy,
    /// Packets of 256 B to the donor.
    Packets,
    /// A word of 64 B to a thread at the donor, and its answer.
    Word,
}

impl AppPattern {
    /// All of them.
    pub const ALL: [AppPattern; 5] = [
        AppPattern::Database,
        AppPattern::Graph,
        AppPattern::Copy,
        AppPattern::Packets,
        AppPattern::Word,
    ];

    /// Returns the display name.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            AppPattern::Database => "look-ups, dependent",
            AppPattern::Graph => "look-ups, independent",
            AppPattern::Copy => "copies of 1 MiB",
            AppPattern::Packets => "packets of 256 B",
            AppPattern::Word => "a word and its answer",
        }
    }

    /// Returns the hint for the adaptive library.
    pub(super) fn hint(self) -> Pattern {
        match self {
            AppPattern::Database | AppPattern::Graph => Pattern::Random,
            AppPattern::Copy | AppPattern::Packets => Pattern::Sequential,
            AppPattern::Word => Pattern::Message,
        }
    }

    /// Returns the number of outstanding operations.
    pub(super) fn depth(self) -> usize {
        match self {
            AppPattern::Database | AppPattern::Word => 1,
            AppPattern::Graph => PAGES,
            AppPattern::Copy => 2,
            AppPattern::Packets => 2 * MANY,
        }
    }

    /// Returns the bytes of one operation.
    #[must_use]
    pub fn size_bytes(self) -> usize {
        match self {
            AppPattern::Database | AppPattern::Graph | AppPattern::Word => LINE_BYTES,
            AppPattern::Copy => COPY_BYTES,
            AppPattern::Packets => PACKET_BYTES,
        }
    }
}
