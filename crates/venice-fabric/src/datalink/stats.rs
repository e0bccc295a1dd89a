//! What a link and its ends have seen: numbers for the Topology Status Table and for people.

use venice_wire::WireError;

/// What a link has seen since it was made.
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
    /// Sequenced frames that came before their turn and waited.
    pub early: u64,
    /// Times this side asked for a replay.
    pub naks_sent: u64,
    /// Times the other side did.
    pub naks_received: u64,
    /// Times the acknowledgement did not come in time.
    pub replay_timeouts: u64,
    /// Frames dropped because the other side had no credit for them: it breaks the protocol.
    pub overruns: u64,
    /// Keep-alives sent.
    pub pings: u64,
    /// Keep-alives of which no answer came before the next one was due.
    pub pings_lost: u64,
    /// Round trip of the last keep-alive answered, in nanoseconds.
    pub keepalive_ns: Option<u64>,
    /// The shortest round trip of any keep-alive, in nanoseconds: the link without queues.
    pub keepalive_min_ns: Option<u64>,
    /// Smoothed round trip of all frames in nanoseconds; `None` before the first sample.
    pub round_trip_ns: Option<u64>,
    /// How far round trips stray from it, in nanoseconds.
    pub round_trip_deviation_ns: u64,
}

/// Datagrams an end dropped unread, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropStats {
    /// No frame of this version.
    pub malformed: u64,
    /// A checksum that does not fit: damage on the way.
    pub bad_checksum: u64,
    /// No checksum, on a port that asks for one.
    pub unchecked: u64,
    /// For another node.
    pub not_for_here: u64,
    /// Of a link that is not known (any more).
    pub unknown_link: u64,
}

impl LinkStats {
    /// The share of what was sent that seems not to have arrived: replays and unanswered
    /// keep-alives. 0 to 1; an estimate from the sender's side, for a frame replayed too early
    /// counts as lost.
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
    /// All of them.
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
