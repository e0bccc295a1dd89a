//! What the two ends of an adaptive stream agree on, and what can go wrong.

use super::segment::HEADER_BYTES;
use crate::{AccessError, CloseReason, FabricError, MAX_MESSAGE_BYTES, QPairError};

/// The longest segment there may be, in bytes: the sender has up to 16 buffers of its length.
const MAX_SEGMENT_BYTES: u32 = 16 << 20;
/// The longest landing region there may be, in bytes.
const MAX_LANDING_BYTES: u64 = 1 << 30;

/// What both ends of an adaptive stream must set alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// Segments that may be sent and not yet read, 2 to 64: the size of the reorder buffer.
    pub window_segments: u16,
    /// The longest segment that may travel in a QPair message, in bytes. The receiver has so much
    /// buffer for every segment of the window. Messages of 24 bytes more must fit into the QPair.
    pub inline_bytes: u32,
    /// The longest segment, in bytes.
    pub segment_bytes: u32,
    /// The length of the landing region; 0: there is none, and all goes by QPair.
    pub landing_bytes: u64,
}

/// Why an adaptive stream does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Later: when the other end, or the fabric, has got further.
    #[error("the stream cannot go on just now")]
    WouldBlock,
    /// The writer has ended it.
    #[error("the stream was ended")]
    Ended,
    /// Its QPair is closed, and the stream had not ended.
    #[error("the stream's QPair is closed: {0}")]
    Closed(CloseReason),
    /// A QPair call failed.
    #[error("the stream's QPair: {0}")]
    QPair(#[source] QPairError),
    /// A write into the landing region was not taken.
    #[error("the landing region: {0}")]
    NotTaken(#[source] FabricError),
    /// A write into the landing region failed.
    #[error("the landing region: {0}")]
    Failed(#[source] AccessError),
    /// The other end sends what makes no sense, or was set up otherwise.
    #[error("the other end does not keep to the stream's format")]
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
    /// With every value brought into its bounds: 2 to 64 segments, of 1 B to 16 MiB; those inline
    /// of at most a QPair message; a landing region of up to 1 GiB.
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
