//! Transfers: grants that change hands while they are in use.
//!
//! The successor of a grant is a grant of its own, over the same share at the same donor: it has
//! another number, another key, and the next ownership epoch. So whatever bears the number of the
//! predecessor is refused for good.

use crate::caller::Owner;
use venice_wire::{GrantId, GrantKey};

/// Most grants of one transfer.
pub const MAX_TRANSFER_GRANTS: usize = 128;
/// Longest time that a new owner has before its first renewal, in milliseconds.
pub const MAX_CLAIM_MS: u64 = 600_000;
/// The ownership epoch of a grant that nobody had before.
pub const FIRST_OWNERSHIP: u64 = 1;

/// A request to transfer grants, all of them or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferRequest {
    /// The client's number for it, drawn at random. A repeated request is not a second one, and the
    /// new owner may claim by it.
    pub client_id: u128,
    /// The grants; 1 to [`MAX_TRANSFER_GRANTS`], all of one owner.
    pub grants: Vec<GrantId>,
    /// The new owner.
    pub to: Owner,
    /// Milliseconds from the commit that the new owner has at least before its first renewal, up to
    /// [`MAX_CLAIM_MS`]; less than a lease counts as a lease.
    pub claim_ms: u64,
}

/// The answer to a transfer, for one grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transferred {
    /// The grant.
    pub from: GrantId,
    /// Its successor, of the new owner.
    pub to: GrantId,
    /// The progress.
    pub state: TransferState,
}

/// The progress of a transferred grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferState {
    /// Its donor answers the new owner alone.
    Done,
    /// It is the new owner's; its donor has not confirmed that yet.
    Pending,
    /// It is lost with its donor, or has ended since.
    Gone,
}

impl TransferState {
    /// Returns the name shown to users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "transferred",
            Self::Pending => "pending",
            Self::Gone => "lost",
        }
    }
}

/// A new owner's request for the grants that were transferred to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The program's description of itself. Repeated with the same one, the claim returns the same
    /// grants.
    pub recipient: String,
    /// The transfer, by [`TransferRequest::client_id`]; `None`: all transfers to this owner.
    pub transfer: Option<u128>,
}

/// Both steps of a transfer, Monitor Node to donor: prepare, then commit. The commit has all of it
/// again, so that it needs no memory of the prepare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferStep {
    /// The grant.
    pub from: GrantId,
    /// The number of its successor.
    pub grant: GrantId,
    /// The key of its successor.
    pub key: GrantKey,
    /// The epoch of the donor addressed.
    pub donor_epoch: u64,
    /// The ownership epoch of its successor: more than the grant's.
    pub ownership: u64,
    /// Milliseconds from the commit before the first renewal; less than a lease counts as a lease.
    pub claim_ms: u64,
    /// The new owner.
    pub owner: Owner,
}
