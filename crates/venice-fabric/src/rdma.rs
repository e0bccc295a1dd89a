//! The RDMA channel: bulk transfers by descriptor.

use crate::{AccessError, FabricError};

/// A bulk transfer that is over.
#[derive(Debug, PartialEq, Eq)]
pub struct RdmaCompletion {
    /// The token given with the descriptor.
    pub token: u64,
    /// Whether all of it succeeded; otherwise the first error.
    pub result: Result<(), AccessError>,
    /// The buffer given with the descriptor.
    pub buffer: Vec<u8>,
}

/// A bulk transfer that was not taken, and its buffer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("bulk transfer not taken: {error}")]
pub struct RdmaRejected {
    /// Why.
    #[source]
    pub error: FabricError,
    /// The buffer given with the descriptor.
    pub buffer: Vec<u8>,
}
