//! Requests without an answer, and the channel that receives the answer.

use venice_wire::{Channel, MAX_PAYLOAD_BYTES, Opcode};

use super::Channels;
use crate::{AccessError, Atomic, rdma::Place};

/// The origin of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    CrmaRead { slot: u16, len_bytes: u16 },
    CrmaWrite { slot: u16 },
    CrmaAtomic { slot: u16, atomic: Atomic },
    CrmaPosted { stretch: u32 },
    Unmap,
    RdmaRead { descriptor: u16, place: Place, len_bytes: u16 },
    RdmaWrite { descriptor: u16, place: Place },
}

impl Request {
    pub(super) fn channel(self) -> Channel {
        if self.is_bulk() { Channel::Rdma } else { Channel::Crma }
    }

    pub(super) fn opcode(self) -> Opcode {
        match self {
            Self::CrmaRead { .. } | Self::RdmaRead { .. } => Opcode::Read,
            Self::CrmaWrite { .. } | Self::CrmaPosted { .. } | Self::RdmaWrite { .. } => {
                Opcode::Write
            }
            Self::CrmaAtomic { atomic, .. } => atomic.opcode(),
            Self::Unmap => Opcode::Unmap,
        }
    }

    pub(super) fn is_bulk(self) -> bool {
        matches!(self, Self::RdmaRead { .. } | Self::RdmaWrite { .. })
    }

    /// True if any later answer answers it too.
    pub(super) fn is_write(self) -> bool {
        self.read_len().is_none()
    }

    /// True if the donor has an entry for the grant once the request is carried out.
    pub(super) fn opens_grant(self) -> bool {
        !matches!(self, Self::Unmap)
    }

    /// Returns the bytes a read waits for; `None` for a request without data.
    pub(super) fn read_len(self) -> Option<u16> {
        match self {
            Self::CrmaRead { len_bytes, .. } | Self::RdmaRead { len_bytes, .. } => Some(len_bytes),
            Self::CrmaAtomic { .. } => Some(Atomic::BYTES as u16),
            Self::CrmaWrite { .. }
            | Self::CrmaPosted { .. }
            | Self::Unmap
            | Self::RdmaWrite { .. } => None,
        }
    }

    pub(super) fn succeed(self, data: &[u8], to: &mut Channels) {
        debug_assert!(data.len() <= MAX_PAYLOAD_BYTES);
        match self {
            Self::CrmaRead { slot, .. }
            | Self::CrmaWrite { slot }
            | Self::CrmaAtomic { slot, .. } => to.crma.succeed(slot, data),
            Self::CrmaPosted { stretch } => to.crma.settle(stretch, Ok(())),
            Self::Unmap => {}
            Self::RdmaRead { descriptor, place, .. } | Self::RdmaWrite { descriptor, place } => {
                to.rdma.chunk_succeeded(descriptor, place, data);
            }
        }
    }

    pub(super) fn fail(self, error: AccessError, to: &mut Channels) {
        match self {
            Self::CrmaRead { slot, .. }
            | Self::CrmaWrite { slot }
            | Self::CrmaAtomic { slot, .. } => to.crma.fail(slot, error),
            Self::CrmaPosted { stretch } => to.crma.settle(stretch, Err(error)),
            Self::Unmap => {}
            Self::RdmaRead { descriptor, .. } | Self::RdmaWrite { descriptor, .. } => {
                to.rdma.chunk_failed(descriptor, error);
            }
        }
    }
}
