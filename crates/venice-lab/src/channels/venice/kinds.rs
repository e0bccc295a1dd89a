//! What applications do, by name, and the channels they may do it by.

use serde::{Deserialize, Serialize};
use venice_fabric::adaptive::Pattern;

/// One line: what a processor loads and stores.
pub(super) const LINE_BYTES: usize = 64;
pub(super) const PAGE_BYTES: usize = 4096;
pub(super) const COPY_BYTES: usize = 1 << 20;
pub(super) const COPY_MESSAGE_BYTES: usize = 64 << 10;
pub(super) const PACKET_BYTES: usize = 256;
/// Lines of a copy under way at a time, and packets for which one word comes back.
pub(super) const MANY: usize = 64;
/// Independent look-ups, and bulk transfers, under way at a time.
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

    /// As people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ChannelKind::Crma => "CRMA",
            ChannelKind::Rdma => "RDMA",
            ChannelKind::QPair => "QPair",
        }
    }
}

/// What an application does.
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
    /// 64 B to a thread at the donor, and its answer.
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

    /// As people write it.
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

    /// What an application tells the adaptive library of it.
    pub(super) fn hint(self) -> Pattern {
        match self {
            AppPattern::Database | AppPattern::Graph => Pattern::Random,
            AppPattern::Copy | AppPattern::Packets => Pattern::Sequential,
            AppPattern::Word => Pattern::Message,
        }
    }

    /// Operations that are under way at a time.
    pub(super) fn depth(self) -> usize {
        match self {
            AppPattern::Database | AppPattern::Word => 1,
            AppPattern::Graph => PAGES,
            AppPattern::Copy => 2,
            AppPattern::Packets => 2 * MANY,
        }
    }

    /// Bytes that one operation is about.
    #[must_use]
    pub fn size_bytes(self) -> usize {
        match self {
            AppPattern::Database | AppPattern::Graph | AppPattern::Word => LINE_BYTES,
            AppPattern::Copy => COPY_BYTES,
            AppPattern::Packets => PACKET_BYTES,
        }
    }
}
