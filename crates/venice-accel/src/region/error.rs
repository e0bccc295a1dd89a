//! Errors of a recipient's region.

use venice_fabric::{AccessError, FabricError};
use venice_ports::PortError;
use venice_ports::channels::ChannelError;

/// Failure to open or to access a region. Offsets and lengths are in bytes.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// No endpoint of the service is reachable from here.
    #[error("region: no endpoint is reachable from this machine; offered: {offered}")]
    NoEndpoint {
        /// Endpoints that the grant names.
        offered: String,
    },
    /// The host is absent, or does not admit this recipient.
    #[error("region: cannot be reached at {address}: {source}")]
    Open {
        /// Socket or address.
        address: String,
        /// Cause.
        source: ChannelError,
    },
    /// The host does not answer.
    #[error("region: no answer from {address}: its host is absent, or has another key")]
    Silent {
        /// Address.
        address: String,
    },
    /// The length to open is zero.
    #[error("region: length of 0 bytes: expected at least 1")]
    Empty,
    /// The range leaves the region.
    #[error("region: {len_bytes} bytes at {offset} leave its {size_bytes} bytes")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Length.
        len_bytes: u64,
        /// Size of the region.
        size_bytes: u64,
    },
    /// The offset of a word is no multiple of eight.
    #[error("region: word at {0}: expected a multiple of 8")]
    Unaligned(u64),
    /// The host is gone. What was written may have reached it or not.
    #[error("region: its host at {address} is gone: the memory is lost")]
    Lost {
        /// Socket or address.
        address: String,
    },
    /// The access failed.
    #[error("region at {address}: {source}")]
    Access {
        /// Socket or address.
        address: String,
        /// Cause.
        source: ChannelError,
    },
}

impl RegionError {
    /// Returns the error of an access to the host at `address`.
    pub(super) fn of_access(address: &str, source: ChannelError) -> Self {
        let address = address.to_owned();
        match source {
            ChannelError::NotTaken(FabricError::PeerDown(_))
            | ChannelError::Failed(AccessError::PeerDown(_))
            | ChannelError::Port(PortError::Closed) => Self::Lost { address },
            source @ (ChannelError::NotTaken(_)
            | ChannelError::Failed(_)
            | ChannelError::Port(_)) => Self::Access { address, source },
        }
    }

    /// True if the host is gone.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }
}
