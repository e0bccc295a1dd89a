//! What the two ends of an adaptive stream agree on, and what can go wrong.

use crate::{AccessError, CloseReason, FabricError, QPairError};

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
    pub(super) fn window(&self) -> usize {
        usize::from(self.window_segments.clamp(2, 64))
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
