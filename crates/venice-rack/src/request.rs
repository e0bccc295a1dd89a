//! Requests for resources: the paper's GetMemory, GetAccelerator and GetIO, several at once.

use crate::placement::Policy;
use crate::queueing::Queueing;
use crate::resource::ResourceKind;
use crate::want::Want;

/// Most wants of a request.
pub const MAX_WANTS: usize = 16;
/// Most pieces of one want that is for devices.
pub const MAX_PIECES: u32 = 64;
/// Most copies of memory in a request. The fragments of coded memory count as copies: the widest
/// coding has 11 (8+3).
pub const MAX_COPIES: u32 = 11;

/// A request of a recipient. All of its wants are granted together, or none. The owner comes from
/// the certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocationRequest {
    /// A random number drawn by the client. The same number gets the same grants again, so that a
    /// request whose answer was lost can be repeated.
    pub client_id: u128,
    /// The recipient's description of itself, in words for users.
    pub recipient: String,
    /// The wants; one of them at most is for memory. Memory is placed near the devices granted
    /// beside it.
    pub wants: Vec<Want>,
    /// Names of the donors to use; empty for any.
    pub donors: Vec<String>,
    /// The node whose relay it sends through, where nodes relay for each other: near donors are
    /// taken first. Empty: all donors are equally near.
    pub home: String,
    /// The placement policy of memory; `None`: the rack's default.
    pub placement: Option<Policy>,
    /// The purpose, in words for users.
    pub purpose: String,
    /// Its queueing options.
    pub queueing: Queueing,
}

impl AllocationRequest {
    /// True if both requests are equal apart from their queueing options.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        *self == Self { queueing: self.queueing, ..other.clone() }
    }

    /// Returns the want for memory, with its index.
    pub fn memory(&self) -> Option<(usize, &Want)> {
        self.wants.iter().enumerate().find(|(_, want)| !want.kind.is_device())
    }

    /// Iterates over the wants for devices, with their indexes.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (usize, &Want)> {
        self.wants.iter().enumerate().filter(|(_, want)| want.kind.is_device())
    }

    /// Returns the amount of a kind that it wants.
    pub(crate) fn amount_of(&self, kind: ResourceKind) -> u64 {
        let wants = self.wants.iter().filter(|want| want.kind == kind);
        wants.map(Want::total).fold(0, u64::saturating_add)
    }

    /// Returns the devices that it wants, of all kinds.
    pub(crate) fn device_count(&self) -> usize {
        self.devices().map(|(_, want)| want.count as usize).sum()
    }

    /// Describes its wants in words.
    pub fn described(&self) -> String {
        let wants: Vec<String> = self.wants.iter().map(Want::described).collect();
        wants.join(" and ")
    }
}
