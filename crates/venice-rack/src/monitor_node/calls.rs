//! Calls to a Monitor Node and their replies, and its calls to donors.

use crate::caller::{Owner, User};
use crate::monitor::{JoinTokenRecord, Kept};
use crate::queueing::Asked;
use crate::quota::{QuotaFor, QuotaRecord};
use crate::transfer::{ClaimRequest, TransferRequest, TransferStep, Transferred};
use crate::types::{
    AllocationRequest, DonorStatus, Grant, Identity, NodeRegistration, Pong, PrepareRequest,
    RackError, Registered,
};
use venice_wire::{GrantId, GrantKey};

/// A call to a Monitor Node.
#[derive(Debug, Clone)]
pub enum Call {
    /// An agent registers.
    Register(NodeRegistration),
    /// A request for memory or devices.
    Request(Owner, AllocationRequest),
    /// Withdrawal of a request, by its client's number.
    Leave(Owner, u128),
    /// Release of grants.
    Release(Vec<(GrantId, GrantKey)>),
    /// Transfer of grants.
    Transfer(User, TransferRequest),
    /// Claim of transferred grants.
    Claim(Owner, ClaimRequest),
    /// A change whose only result is success.
    Order(Order),
}

/// A change whose only result is success.
#[derive(Debug, Clone)]
pub enum Order {
    /// An agent ends.
    Deregister {
        /// The node's name, from the agent's certificate.
        name: String,
        /// The number and epoch that it was given.
        identity: Identity,
        /// The agent's process.
        instance: u64,
    },
    /// A node is drained.
    Drain {
        /// The node.
        name: String,
        /// True to end its drain.
        undo: bool,
    },
    /// A join token is made.
    NewToken(JoinTokenRecord),
    /// A machine joins by a token.
    Join {
        /// Number and hash of the token.
        token: (u64, [u8; 32]),
        /// The node's name.
        name: String,
        /// Hash of the machine's key.
        key: [u8; 32],
    },
    /// A join token is deleted.
    DeleteToken(u64),
    /// A quota is set.
    SetQuota {
        /// The quota.
        quota: QuotaRecord,
        /// Its caller, for the event.
        by: String,
    },
    /// A quota is removed.
    RemoveQuota {
        /// The users that it is for.
        of: QuotaFor,
        /// Its caller, for the event.
        by: String,
    },
    /// A node is revoked.
    Revoke {
        /// The node.
        name: String,
        /// True to accept a name that the rack does not have.
        is_sure: bool,
    },
}

/// A reply to a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// To [`Call::Register`].
    Registered(Result<Registered, RackError>),
    /// To [`Call::Request`].
    Asked(Result<Asked, RackError>),
    /// To [`Call::Release`]: the grants not released.
    Released(Kept),
    /// To [`Call::Transfer`].
    Transferred(Result<Vec<Transferred>, RackError>),
    /// To [`Call::Claim`].
    Claimed(Result<Vec<Grant>, RackError>),
    /// To [`Call::Leave`] and [`Call::Order`].
    Done(Result<(), RackError>),
}

/// A call to a donor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DonorCall {
    /// Set a share aside.
    Prepare(PrepareRequest),
    /// Lend it.
    Commit {
        /// The grant.
        grant: GrantId,
        /// The epoch in which it was prepared.
        donor_epoch: u64,
    },
    /// Free what was set aside.
    Abort(GrantId),
    /// End grants.
    Release(Vec<GrantId>),
    /// Promise to give a grant to its successor.
    PrepareTransfer(TransferStep),
    /// Give it.
    CommitTransfer(TransferStep),
    /// Forget the promise.
    AbortTransfer {
        /// The grant.
        from: GrantId,
        /// Its successor.
        grant: GrantId,
    },
    /// Answer.
    Ping,
}

/// A donor's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DonorAnswer {
    /// To all calls but a ping.
    Status(DonorStatus),
    /// To a ping.
    Pong(Pong),
}

impl Call {
    /// True if the call is executed only for a caller that waits: one that hung up may have called
    /// another Monitor Node, and a later execution here would be wrong. Withdrawals, releases,
    /// revocations and the end of a node are right for the whole rack, with or without a caller, and
    /// while other changes cannot be made.
    pub fn needs_caller(&self) -> bool {
        match self {
            Self::Register(_) | Self::Request(..) | Self::Transfer(..) | Self::Claim(..) => true,
            Self::Order(order) => !matches!(order, Order::Revoke { .. } | Order::Deregister { .. }),
            Self::Leave(..) | Self::Release(_) => false,
        }
    }

    /// Returns the reply of that error; `None` for a release, which has none.
    pub(super) fn refused(&self, error: RackError) -> Option<Reply> {
        Some(match self {
            Self::Register(_) => Reply::Registered(Err(error)),
            Self::Request(..) => Reply::Asked(Err(error)),
            Self::Transfer(..) => Reply::Transferred(Err(error)),
            Self::Claim(..) => Reply::Claimed(Err(error)),
            Self::Leave(..) | Self::Order(_) => Reply::Done(Err(error)),
            Self::Release(_) => return None,
        })
    }
}
