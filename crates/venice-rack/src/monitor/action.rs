//! The actions of the Monitor Node, and their results.

use super::admission::JoinTokenRecord;
use super::event::Event;
use crate::monitor_node::{DonorCall, Reply};
use crate::queueing::Standing;
use crate::quota::{QuotaFor, QuotaRecord};
use crate::rat::GrantRecord;
use crate::revocation::Revocation;
use crate::rrt::NodeRecord;
use crate::types::{Grant, Identity, RackError, Refusal};
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
    /// Call, then [`super::MonitorCore::handle_returned`].
    Call {
        /// The donor to call.
        donor: Identity,
        /// Its address.
        addr: String,
        /// The call.
        call: DonorCall,
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
    /// Answer another call.
    Reply(Token, Reply),
    /// Write to the log and to the list of events; nothing else to do.
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
