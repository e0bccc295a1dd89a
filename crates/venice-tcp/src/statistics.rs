//! Counters of a connection.

use serde::{Deserialize, Serialize};

/// Counters of a connection since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Segments with payload or FIN that were sent, retransmissions included.
    pub segments: u32,
    /// Bytes of payload that the peer acknowledged.
    pub bytes_acked: u64,
    /// Segments that were retransmitted, SYN included.
    pub retransmits: u32,
    /// Retransmission time-outs, those of a SYN included.
    pub timeouts: u32,
    /// Recoveries that began without a time-out.
    pub fast_retransmits: u32,
    /// Duplicate acknowledgments that came.
    pub duplicate_acks: u32,
    /// Tail loss probes that were sent.
    pub tail_probes: u32,
    /// Window reductions on an echo of congestion marks.
    pub ecn_reductions: u32,
}
