//! One link: reliable, ordered delivery of frames between two nodes.

/// What a link has seen since it came up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Sequenced frames sent for the first time.
    pub sent: u64,
    /// Sequenced frames sent again.
    pub replayed: u64,
    /// Sequenced frames delivered.
    pub received: u64,
    /// Sequenced frames that came a second time.
    pub duplicates: u64,
    /// Smoothed round trip in nanoseconds; `None` before the first sample.
    pub round_trip_ns: Option<u64>,
}
