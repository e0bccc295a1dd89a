//! The actions of the Monitor Node, and their results.

use super::admission::JoinTokenRecord;
use crate::caller::Owner;
use crate::queueing::Standing;
use crate::quota::{Limits, QuotaFor, QuotaRecord};
use crate::rat::GrantRecord;
use crate::revocation::Revocation;
use crate::rrt::NodeRecord;
use crate::types::{
    Grant, Identity, PrepareRequest, RackError, Refusal, Registered, Share, TransferStep,
    Transferred,
};
use serde::{Deserialize, Serialize};
use venice_wire::{GrantId, NodeId};

/// The driver's own number for a call that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub u64);

/// An action for the driver. Calls go to `addr`, the address of `donor`'s gRPC service.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Make the changes durable, all or none, before beginning any later action.
    Store(Vec<Change>),
    /// Call, then [`super::MonitorCore::handle_prepared`].
    SendPrepare {
        /// The donor to call.
        donor: Identity,
        /// Its address.
        addr: String,
        /// The message.
        request: PrepareRequest,
    },
    /// Call, then [`super::MonitorCore::handle_committed`].
    SendCommit {
        /// The donor to call.
        donor: Identity,
        /// Its address.
        addr: String,
        /// The grant.
        grant: GrantId,
    },
    /// Call, then [`super::MonitorCore::handle_aborted`].
    SendAbort {
        /// The donor to call.
        donor: Identity,
        /// Its address.
        addr: String,
        /// The grant.
        grant: GrantId,
    },
    /// Call, then [`super::MonitorCore::handle_released`].
    SendRelease {
        /// The donor to call.
        donor: Identity,
        /// Its address.
        addr: String,
        /// The grants.
        grants: Vec<GrantId>,
    },
    /// Call, then [`super::MonitorCore::handle_transfer_prepared`].
    SendPrepareTransfer {
        /// The donor to call.
        donor: Identity,
        /// Its address.
        addr: String,
        /// The message.
        step: TransferStep,
    },
    /// Call, then [`super::MonitorCore::handle_transfer_committed`].
    SendCommitTransfer {
        /// The donor to call.
        donor: Identity,
        /// Its address.
        addr: String,
        /// The message.
        step: TransferStep,
    },
    /// Call, then [`super::MonitorCore::handle_transfer_aborted`].
    SendAbortTransfer {
        /// The donor to call.
        donor: Identity,
        /// Its address.
        addr: String,
        /// The grant.
        from: GrantId,
        /// The number of its successor.
        grant: GrantId,
    },
    /// Call, then [`super::MonitorCore::handle_pinged`].
    SendPing {
        /// The donor to call.
        donor: Identity,
        /// Its address.
        addr: String,
    },
    /// Answer everyone who waits for this request.
    ReplyRequest {
        /// The client's number for it.
        client_id: u128,
        /// The answer.
        result: Result<Vec<Grant>, RackError>,
    },
    /// Report the state of a queued request to everyone who waits for it.
    ReplyStanding {
        /// The client's number for it.
        client_id: u128,
        /// Its state.
        standing: Standing,
    },
    /// Answer a release.
    ReplyRelease {
        /// The call.
        token: Token,
        /// The grants not released.
        kept: Kept,
    },
    /// Answer a transfer.
    ReplyTransfer {
        /// The call.
        token: Token,
        /// The answer: each grant, by number.
        result: Result<Vec<Transferred>, RackError>,
    },
    /// Answer a claim.
    ReplyClaim {
        /// The call.
        token: Token,
        /// The answer.
        result: Result<Vec<Grant>, RackError>,
    },
    /// Answer a call whose only answer is that it is done, and durable.
    ReplyDone {
        /// The call.
        token: Token,
        /// The answer.
        result: Result<(), RackError>,
    },
    /// Answer a registration.
    ReplyRegister {
        /// The call.
        token: Token,
        /// The answer.
        result: Result<Registered, RackError>,
    },
    /// Write to the log; nothing else to do.
    Note(Event),
}

/// Grants that a release has left unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kept {
    /// Grants with another key: an error of the caller, or a forgery.
    pub forged: Vec<GrantId>,
    /// Grants adopted from their donors, which alone have their keys.
    pub keyless: Vec<GrantId>,
}

/// An event for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A node joined, under a new epoch.
    NodeJoined {
        /// Its name.
        name: String,
        /// Its number and epoch.
        identity: Identity,
    },
    /// A node that was down reports again.
    NodeBack {
        /// Its name.
        name: String,
    },
    /// A node missed its heartbeats or refused a connection.
    NodeDown {
        /// Its name.
        name: String,
    },
    /// A node reports, and calls to it fail.
    NodeUnreachable {
        /// Its name.
        name: String,
        /// The `host:port` that was called.
        addr: String,
    },
    /// A node that could not be reached answers.
    NodeReached {
        /// Its name.
        name: String,
    },
    /// A grant is preempted: its donor gives notice.
    GrantPreempted {
        /// The grant's number.
        id: GrantId,
        /// Its owner, if known.
        owner: Option<Owner>,
        /// The granted share.
        share: Share,
        /// Owner of the request it is preempted for.
        by: Owner,
    },
    /// A node's agent was stopped in an orderly way.
    NodeStopped {
        /// Its name.
        name: String,
    },
    /// The drain of a node began or ended.
    NodeDrains {
        /// Its name.
        name: String,
        /// True if it began.
        drains: bool,
    },
    /// A machine was enrolled as this node.
    NodeAdmitted {
        /// Its name.
        name: String,
    },
    /// A node was revoked.
    NodeRevoked {
        /// Its name.
        name: String,
    },
    /// A quota was set.
    QuotaSet {
        /// The users it applies to.
        of: QuotaFor,
        /// All its limits now.
        limits: Limits,
    },
    /// A quota was removed.
    QuotaRemoved {
        /// The users it applied to.
        of: QuotaFor,
    },
    /// A donor lends a grant that was not in the table.
    GrantAdopted {
        /// The donor's name.
        donor: String,
        /// The grant.
        id: GrantId,
    },
    /// A grant was transferred.
    GrantTransferred {
        /// The grant.
        from: GrantId,
        /// Its successor.
        to: GrantId,
        /// The new owner.
        owner: String,
    },
    /// A grant ended at its donor before the transfer to a new owner was executed there.
    GrantLostInTransfer {
        /// The grant.
        from: GrantId,
        /// Its successor.
        to: GrantId,
    },
    /// A donor reports an impossible grant: beyond what it lends, or with names no request may
    /// have.
    GrantNotAdopted {
        /// The donor's name.
        donor: String,
        /// The grant's number, as reported.
        id: GrantId,
        /// Its share, as reported.
        share: Share,
    },
}

/// A durable change.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A node is new, or has a new epoch or new addresses.
    PutNode(NodeRecord),
    /// The node of the `PutNode` beside this has a new name. The record makes two Monitor Nodes
    /// with one store conflict when they admit such nodes at the same time.
    PutNewcomer(NodeId),
    /// A grant is new or has another state.
    PutGrant(GrantRecord),
    /// A grant is over.
    DeleteGrant(GrantId),
    /// A grant is over here: its successor is put beside this. Unlike the end of a grant, it holds
    /// only as long as the record is as last seen.
    TransferGrant(GrantId),
    /// Grant numbers below this one may have been used.
    PutGrantLimit(u64),
    /// Donors are about to lend for this request, or grants of this transfer are claimed. The record
    /// makes two Monitor Nodes with one store conflict when both charge one user.
    PutLastRequest {
        /// The owner's user name.
        user: String,
        /// The client's number for it.
        client_id: u128,
    },
    /// Donors are about to lend for this request, with bandwidth promised. The record makes two
    /// Monitor Nodes with one store conflict when both promise bandwidth.
    PutLastPromise {
        /// The client's number for it.
        client_id: u128,
    },
    /// A join token is new, or used.
    PutToken(JoinTokenRecord),
    /// A join token is too old.
    DeleteToken(u64),
    /// A node was revoked.
    PutRevocation(Revocation),
    /// All certificates voided by the revocation of this node have expired.
    DeleteRevocation(String),
    /// The lifetime of certificates in milliseconds is longer than ever before.
    PutCertificateLife(u64),
    /// A quota was set.
    PutQuota(QuotaRecord),
    /// A quota was removed.
    DeleteQuota(QuotaFor),
}

/// A stored record: the last `Put` of everything not deleted, from which
/// [`super::MonitorCore::recover`] starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// A node.
    Node(NodeRecord),
    /// The node that was new last.
    Newcomer(NodeId),
    /// A grant.
    Grant(GrantRecord),
    /// Grant numbers below this one may have been used.
    GrantLimit(u64),
    /// The last request of a user that donors were to lend for.
    LastRequest {
        /// The owner's user name.
        user: String,
        /// The client's number for it.
        client_id: u128,
    },
    /// The last request that was promised bandwidth.
    LastPromise {
        /// The client's number for it.
        client_id: u128,
    },
    /// A join token.
    Token(JoinTokenRecord),
    /// A revoked node.
    Revocation(Revocation),
    /// The longest lifetime of certificates ever, in milliseconds.
    CertificateLife(u64),
    /// A quota.
    Quota(QuotaRecord),
}

/// The reason why a call to a donor failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// The donor refuses.
    Refused(Refusal),
    /// No answer came: the call may have taken effect or not.
    NoAnswer,
    /// The connection was refused: the process is gone.
    Gone,
}
