//! The settings of the two ends of a QPair.

/// The kind of traffic of a QPair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QPairKind {
    /// Messages, which arrive whole.
    #[default]
    Messages,
    /// Bytes without boundaries.
    Stream,
}

/// The way in which the reader returns credits to the sender (Venice paper, 5.1.3 and Fig. 9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CreditMode {
    /// A CRMA write into the sender's credit region. A newer count overwrites an older one that
    /// was not sent yet; it waits behind no data and takes no place in the queue.
    #[default]
    CrmaWrite,
    /// A frame in the QPair's own queue, behind the data that waits there: the traditional way,
    /// kept to measure the gain.
    InBand,
}

/// The settings of one end. All buffers are allocated when the QPair is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndConfig {
    /// Bytes queued here and not yet sent, 4 KiB to 16 MiB, rounded up to a power of two.
    pub send_bytes: u32,
    /// Bytes received and not yet read, 4 KiB to 16 MiB, rounded up to a power of two: the credit
    /// with which the other end starts. A message takes its length and 4 bytes more.
    pub recv_bytes: u32,
    /// Messages the other end may have sent that are not yet read; at least 1.
    pub recv_messages: u32,
    /// A credit is sent after this many bytes were read since the last one; 0: a quarter of
    /// [`EndConfig::recv_bytes`]. Never more than half.
    pub credit_every_bytes: u32,
    /// A credit is sent after this many messages were read since the last one; 0: a quarter of
    /// [`EndConfig::recv_messages`]. Never more than half.
    pub credit_every_messages: u32,
    /// True if small messages that wait together share a frame.
    pub batching: bool,
}

/// The settings requested by the connecting end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QPairConfig {
    /// Messages or bytes, in both directions.
    pub kind: QPairKind,
    /// The way of credits, in both directions.
    pub credit: CreditMode,
    /// The settings of this end.
    pub end: EndConfig,
}

/// The longest message a QPair carries, if the buffers of both ends are larger.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Overhead of a message in a buffer, in bytes: its length field.
pub(super) const MESSAGE_HEADER_BYTES: usize = 4;

const MIN_BUFFER_BYTES: u32 = 4 << 10;
pub(super) const MAX_BUFFER_BYTES: u32 = 16 << 20;
pub(super) const MAX_QUEUED_MESSAGES: u32 = 1 << 24;

impl Default for EndConfig {
    fn default() -> Self {
        Self {
            send_bytes: 256 << 10,
            recv_bytes: 256 << 10,
            recv_messages: 16 << 10,
            credit_every_bytes: 0,
            credit_every_messages: 0,
            batching: true,
        }
    }
}

impl EndConfig {
    /// Returns the settings with every value clamped to its bounds, and the quarters computed.
    pub(super) fn in_bounds(self) -> Self {
        let bytes =
            |bytes: u32| bytes.clamp(MIN_BUFFER_BYTES, MAX_BUFFER_BYTES).next_power_of_two();
        let every = |wanted: u32, all: u32| {
            if wanted == 0 { (all / 4).max(1) } else { wanted.min((all / 2).max(1)) }
        };
        let (send_bytes, recv_bytes) = (bytes(self.send_bytes), bytes(self.recv_bytes));
        let recv_messages = self.recv_messages.clamp(1, MAX_QUEUED_MESSAGES);
        Self {
            send_bytes,
            recv_bytes,
            recv_messages,
            credit_every_bytes: every(self.credit_every_bytes, recv_bytes),
            credit_every_messages: every(self.credit_every_messages, recv_messages),
            batching: self.batching,
        }
    }
}

impl QPairConfig {
    /// Returns the settings for messages with the default buffers.
    pub fn messages() -> Self {
        Self::default()
    }

    /// Returns the settings for a byte stream with the default buffers.
    pub fn stream() -> Self {
        Self { kind: QPairKind::Stream, ..Self::default() }
    }
}
