//! Counters of QPairs.

/// The counters of one end of a QPair, or of all ends of an engine together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QPairStats {
    /// Messages queued.
    pub messages_sent: u64,
    /// Messages read.
    pub messages_received: u64,
    /// Frames of data sent; a replay by the link is not counted again.
    pub segments_sent: u64,
    /// Bytes in them, message lengths included.
    pub segment_bytes_sent: u64,
    /// Frames of data received.
    pub segments_received: u64,
    /// Bytes in them.
    pub segment_bytes_received: u64,
    /// Credits sent as overwriteable CRMA writes.
    pub credit_writes_sent: u64,
    /// Credits that overwrote one not sent yet, and so saved a frame.
    pub credit_writes_overwritten: u64,
    /// Credits received as CRMA writes, old and late ones included.
    pub credit_writes_received: u64,
    /// Credits sent as frames of the QPair.
    pub credit_frames_sent: u64,
    /// Credits received as frames of the QPair.
    pub credit_frames_received: u64,
    /// Bytes of all frames sent for credit alone, headers included.
    pub credit_bytes_sent: u64,
    /// Times the sender had data and no credit.
    pub stalls: u64,
    /// Probes sent for a lost credit.
    pub probes_sent: u64,
}

/// The fill levels of one end of a QPair, in bytes, message lengths included. When nothing is in
/// flight, the bytes outstanding at one end equal those unread or uncredited at the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QPairLevels {
    /// Queued here, not yet sent.
    pub queued_bytes: u64,
    /// Sent, and not known to be read.
    pub outstanding_bytes: u64,
    /// Bytes that may be sent: the other end has reserved room for them.
    pub credit_bytes: u64,
    /// Received, not yet read.
    pub unread_bytes: u64,
    /// Read, and not yet credited.
    pub uncredited_bytes: u64,
}

impl QPairStats {
    /// Adds the counters of `other`.
    pub(super) fn add(&mut self, other: &Self) {
        self.messages_sent += other.messages_sent;
        self.messages_received += other.messages_received;
        self.segments_sent += other.segments_sent;
        self.segment_bytes_sent += other.segment_bytes_sent;
        self.segments_received += other.segments_received;
        self.segment_bytes_received += other.segment_bytes_received;
        self.credit_writes_sent += other.credit_writes_sent;
        self.credit_writes_overwritten += other.credit_writes_overwritten;
        self.credit_writes_received += other.credit_writes_received;
        self.credit_frames_sent += other.credit_frames_sent;
        self.credit_frames_received += other.credit_frames_received;
        self.credit_bytes_sent += other.credit_bytes_sent;
        self.stalls += other.stalls;
        self.probes_sent += other.probes_sent;
    }
}
