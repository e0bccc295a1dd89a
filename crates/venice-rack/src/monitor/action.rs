//! What the driver does for the Monitor Node, and what comes back.

use super::admission::JoinTokenRecord;
use crate::queueing::Standing;
use crate::quota::{Limits, QuotaFor, QuotaRecord};
use crate::rat::GrantRecord;
use crate::revocation::Revocation;
use crate::rrt::NodeRecord;
use crate::types::{Grant, Identity, PrepareRequest, RackError, Refusal, Registered};
use serde::{Deserialize, Serialize};
use venice_wire::{GrantId, NodeId};

/// The driver's own number for a call that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub u64);

/// What is to be done. Calls go to `addr`, the address of `donor`'s gRPC service.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Make the changes durable, all or none, before beginning any later action.
    Store(Vec<Change>),
    /// Call, then [`super::MonitorCore::handle_prepared`].
    SendPrepare {
        /// Whom to call.
        donor: Identity,
        /// Where.
        addr: String,
        /// What to say.
        request: PrepareRequest,
    },
    /// Call, then [`super::MonitorCore::handle_committed`].
    SendCommit {
        /// Whom to call.
        donor: Identity,
        /// Where.
        addr: String,
        /// Which grant.
        grant: GrantId,
    },
    /// Call, then [`super::MonitorCore::handle_aborted`].
    SendAbort {
        /// Whom to call.
        donor: Identity,
        /// Where.
        addr: String,
        /// Which grant.
        grant: GrantId,
    },
    /// Call, then [`super::MonitorCore::handle_released`].
    SendRelease {
        /// Whom to call.
        donor: Identity,
        /// Where.
        addr: String,
        /// Which grants.
        grants: Vec<GrantId>,
    },
    /// Call, then [`super::MonitorCore::handle_pinged`].
    SendPing {
        /// Whom to call.
        donor: Identity,
        /// Where.
        addr: String,
    },
    /// Answer everybody who waits for this request.
    ReplyRequest {
        /// The client's number for it.
        client_id: u128,
        /// The answer.
        result: Result<Vec<Grant>, RackError>,
    },
    /// Tell everybody who waits for this request how it stands: it is still in line.
    ReplyStanding {
        /// The client's number for it.
        client_id: u128,
        /// How it stands.
        standing: Standing,
    },
    /// Answer a release.
    ReplyRelease {
        /// Which call.
        token: Token,
        /// What was not given back.
        kept: Kept,
    },
    /// Answer a call that has no answer but that it is done, and durable.
    ReplyDone {
        /// Which call.
        token: Token,
        /// The answer.
        result: Result<(), RackError>,
    },
    /// Answer a registration.
    ReplyRegister {
        /// Which call.
        token: Token,
        /// The answer.
        result: Result<Registered, RackError>,
    },
    /// Nothing to do; something for the log.
    Note(Event),
}

/// Grants that a release has left as they were.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kept {
    /// They have another key: the caller's mistake, or worse.
    pub forged: Vec<GrantId>,
    /// They were learnt from their donors, which alone know their keys.
    pub keyless: Vec<GrantId>,
}

/// What people want to read in a log.
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
    /// A node's agent was ended in an orderly way.
    NodeStopped {
        /// Its name.
        name: String,
    },
    /// A node is to be empty, or no longer.
    NodeDrains {
        /// Its name.
        name: String,
        /// To be empty?
        drains: bool,
    },
    /// A machine may be this node.
    NodeAdmitted {
        /// Its name.
        name: String,
    },
    /// A node was turned out.
    NodeRevoked {
        /// Its name.
        name: String,
    },
    /// A quota is new, or another than it was.
    QuotaSet {
        /// Whose.
        of: QuotaFor,
        /// All that it says now.
        limits: Limits,
    },
    /// A quota was taken away.
    QuotaRemoved {
        /// Whose.
        of: QuotaFor,
    },
    /// A donor lends a grant that was not in the table.
    GrantAdopted {
        /// The donor's name.
        donor: String,
        /// The grant.
        id: GrantId,
    },
    /// A donor reports a grant that cannot be: beyond what it lends, or with names that no request
    /// may have.
    GrantNotAdopted {
        /// The donor's name.
        donor: String,
        /// The grant, as it says.
        id: GrantId,
        /// How much of it, as it says.
        slabs: u32,
    },
}

/// A durable change.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A node is new, or has a new epoch or new addresses.
    PutNode(NodeRecord),
    /// That node has a name never heard of before: of several Monitor Nodes with one store, no two
    /// let in such a node without knowing of each other.
    PutNewcomer(NodeId),
    /// A grant is new or has another state.
    PutGrant(GrantRecord),
    /// A grant is over.
    DeleteGrant(GrantId),
    /// Grant numbers below this one may have been given.
    PutGrantLimit(u64),
    /// Donors are about to lend for this request: of several Monitor Nodes with one store, no two
    /// have that done for one user without knowing of each other.
    PutLastRequest {
        /// Whose it is.
        user: String,
        /// The client's number for it.
        client_id: u128,
    },
    /// Donors are about to lend for this request, which was promised bandwidth: of several Monitor Nodes
    /// with one store, no two promise any without knowing of each other.
    PutLastPromise {
        /// The client's number for it.
        client_id: u128,
    },
    /// A join token is new, or used.
    PutToken(JoinTokenRecord),
    /// A join token is too old.
    DeleteToken(u64),
    /// A node was turned out.
    PutRevocation(Revocation),
    /// Nobody holds a certificate any more that the revocation of this node voids.
    DeleteRevocation(String),
    /// Certificates are good for so many milliseconds, longer than any before.
    PutCertificateLife(u64),
    /// A quota is new, or another than it was.
    PutQuota(QuotaRecord),
    /// A quota was taken away.
    DeleteQuota(QuotaFor),
}

/// What [`super::MonitorCore::recover`] starts from: the last `Put` of everything not deleted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// A node.
    Node(NodeRecord),
    /// The node that was new last.
    Newcomer(NodeId),
    /// A grant.
    Grant(GrantRecord),
    /// Grant numbers below this one may have been given.
    GrantLimit(u64),
    /// The last request of a user that donors were to lend for.
    LastRequest {
        /// Whose it is.
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
    /// A node that was turned out.
    Revocation(Revocation),
    /// The longest that certificates were ever good for, in milliseconds.
    CertificateLife(u64),
    /// A quota.
    Quota(QuotaRecord),
}

/// Why a call to a donor did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// The donor refuses.
    Refused(Refusal),
    /// No answer came: the call may have had its effect or not.
    NoAnswer,
    /// The connection was refused: there is no such process any more.
    Gone,
}
