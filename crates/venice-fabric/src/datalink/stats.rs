//! Counters of a link and its ends, for the Topology Status Table and for reports.

use venice_wire::WireError;

/// The counters of a link since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Sequenced frames sent for the first time.
    pub sent: u64,
    /// Sequenced frames sent again.
    pub replayed: u64,
    /// Sequenced frames delivered.
    pub received: u64,
    /// Sequenced frames received a second time.
    pub duplicates: u64,
    /// Sequenced frames received early and parked.
    pub early: u64,
    /// Replays requested by this side.
    pub naks_sent: u64,
    /// Replays requested by the other side.
    pub naks_received: u64,
    /// Acknowledgements that did not come in time.
    pub replay_timeouts: u64,
    /// Frames dropped because the other side had no credit for them: it breaks the protocol.
    pub overruns: u64,
    /// Keep-alives sent.
    pub pings: u64,
    /// Keep-alives not answered before the next one was due.
    pub pings_lost: u64,
    /// Round trip of the last keep-alive answered, in nanoseconds.
    pub keepalive_ns: Option<u64>,
    /// The shortest round trip of any keep-alive, in nanoseconds: the link without queues.
    pub keepalive_min_ns: Option<u64>,
    /// Smoothed round trip of all frames in nanoseconds; `None` before the first sample.
    pub round_trip_ns: Option<u64>,
    /// Smoothed deviation of round trips, in nanoseconds.
    pub round_trip_deviation_ns: u64,
}

/// Datagrams an end dropped unread, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropStats {
    /// Not a frame of this version.
    pub malformed: u64,
    /// The checksum does not match: damage in transit.
    pub bad_checksum: u64,
    /// No checksum, on a port that requires one.
    pub unchecked: u64,
    /// The frame is for another node.
    pub not_for_here: u64,
    /// The link is unknown or forgotten.
    pub unknown_link: u64,
}

impl LinkStats {
    /// Returns the estimated share of sent frames that did not arrive: replays and unanswered
    /// keep-alives. 0 to 1. It is the sender's estimate, because a frame replayed too early counts
    /// as lost.
    pub fn loss_ratio(&self) -> f64 {
        let lost = self.replayed + self.pings_lost;
        let sent = self.sent + self.replayed + self.pings;
        lost as f64 / sent.max(1) as f64
    }

    pub(super) fn note_keepalive(&mut self, round_trip_ns: u64) {
        self.keepalive_ns = Some(round_trip_ns);
        let shortest_ns = self.keepalive_min_ns.unwrap_or(u64::MAX);
        self.keepalive_min_ns = Some(shortest_ns.min(round_trip_ns));
    }
}

impl DropStats {
    /// Returns the sum of all reasons.
    pub fn total(&self) -> u64 {
        self.malformed + self.bad_checksum + self.unchecked + self.not_for_here + self.unknown_link
    }

    pub(crate) fn note(&mut self, error: WireError) {
        match error {
            WireError::BadChecksum => self.bad_checksum += 1,
            WireError::Unchecked => self.unchecked += 1,
            _ => self.malformed += 1,
        }
    }
}
