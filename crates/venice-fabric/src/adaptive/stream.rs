//! The settings common to both ends of an adaptive stream, and its errors.

use super::segment::HEADER_BYTES;
use crate::{AccessError, CloseReason, FabricError, MAX_MESSAGE_BYTES, QPairError};

/// The longest permitted segment, in bytes: the sender has up to 16 buffers of its length.
const MAX_SEGMENT_BYTES: u32 = 16 << 20;
/// The longest permitted landing region, in bytes.
const MAX_LANDING_BYTES: u64 = 1 << 30;

/// The settings that must be equal at both ends of an adaptive stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// Segments that may be sent and not yet read, 2 to 64: the size of the reorder buffer.
    pub window_segments: u16,
    /// The longest segment that may travel in a QPair message, in bytes. The receiver has a buffer
    /// of this length for every segment of the window. The QPair must carry messages 24 bytes
    /// longer.
    pub inline_bytes: u32,
    /// The longest segment, in bytes.
    pub segment_bytes: u32,
    /// The length of the landing region in bytes; 0: no landing region, all segments go by QPair.
    pub landing_bytes: u64,
}

/// The reason an adaptive stream does not continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Try again when the other end, or the fabric, has progressed.
    #[error("the stream would block: retry after the next event")]
    WouldBlock,
    /// The writer has ended the stream.
    #[error("the stream has ended")]
    Ended,
    /// The QPair is closed, and the stream had not ended.
    #[error("the stream's QPair is closed: {0}")]
    Closed(CloseReason),
    /// A QPair call failed.
    #[error("QPair of the stream failed: {0}")]
    QPair(#[source] QPairError),
    /// The fabric did not accept a write into the landing region.
    #[error("write to the landing region not accepted: {0}")]
    NotTaken(#[source] FabricError),
    /// A write into the landing region failed.
    #[error("write to the landing region failed: {0}")]
    Failed(#[source] AccessError),
    /// The other end sent an invalid message, or has other settings.
    #[error("protocol error of the other end of the stream")]
    Protocol,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            window_segments: 64,
            inline_bytes: 8 << 10,
            segment_bytes: 64 << 10,
            landing_bytes: 4 << 20,
        }
    }
}

impl StreamConfig {
    /// Returns the settings with every value clamped to its bounds: 2 to 64 segments, of 1 B to 16
    /// MiB; inline segments of at most a QPair message; a landing region of up to 1 GiB.
    #[must_use]
    pub fn in_bounds(self) -> Self {
        Self {
            window_segments: self.window_segments.clamp(2, 64),
            inline_bytes: self.inline_bytes.min((MAX_MESSAGE_BYTES - HEADER_BYTES) as u32),
            segment_bytes: self.segment_bytes.clamp(1, MAX_SEGMENT_BYTES),
            landing_bytes: self.landing_bytes.min(MAX_LANDING_BYTES),
        }
    }

    pub(super) fn window(&self) -> usize {
        usize::from(self.in_bounds().window_segments)
    }
}

impl From<QPairError> for StreamError {
    fn from(error: QPairError) -> Self {
        match error {
            QPairError::WouldBlock => Self::WouldBlock,
            QPairError::Closed(reason) => Self::Closed(reason),
            error => Self::QPair(error),
        }
    }
}
