//! The events of the Monitor Node, and their rows.

use super::MonitorCore;
use super::pending::CheckedRequest;
use crate::caller::Owner;
use crate::event::{EventKind, EventRow};
use crate::label::to_label;
use crate::quota::{Limits, QuotaFor};
use crate::rat::{GrantRecord, GrantState};
use crate::types::{AllocationRequest, Identity, RackError, Share};
use std::fmt;
use venice_wire::GrantId;

/// Facts of a grant, in an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantFacts {
    /// Its number.
    pub id: GrantId,
    /// Its owner, if known.
    pub owner: Option<Owner>,
    /// The donor's name.
    pub donor: String,
    /// The granted share.
    pub share: Share,
    /// The recipient's own description of itself.
    pub recipient: String,
    /// Its purpose.
    pub purpose: String,
}

/// Facts of a request, in an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFacts {
    /// Its owner.
    pub owner: Owner,
    /// The memory it wants, in bytes, all copies together; 0: none.
    pub bytes: u64,
    /// All that it wants, in words.
    pub wants: String,
    /// The recipient's own description of itself.
    pub recipient: String,
    /// Its purpose.
    pub purpose: String,
}

impl RequestFacts {
    /// Returns the facts of a request of `owner`. Its texts are made labels: it may be refused for
    /// them.
    pub fn of(owner: &Owner, request: &AllocationRequest) -> Self {
        let memory = request.memory().map_or(0, |(_, want)| want.total());
        Self {
            owner: Owner {
                node: to_label(&owner.node),
                user: to_label(&owner.user),
                is_bound: owner.is_bound,
            },
            bytes: memory,
            wants: request.described(),
            recipient: to_label(&request.recipient),
            purpose: to_label(&request.purpose),
        }
    }
}

/// An event, for the log and for users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A node joined, under a new epoch.
    NodeJoined {
        /// Its name.
        name: String,
        /// Its number and epoch.
        identity: Identity,
    },
    /// A node that was down reports again. Its grants of the same epoch are in force.
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
    /// A grant began.
    GrantBegan(GrantFacts),
    /// A request waits.
    RequestQueued {
        /// The request.
        request: RequestFacts,
        /// The reason: `room`, `device`, `quota` or `donors`.
        needs: &'static str,
    },
    /// The caller withdrew a request, or has gone without that.
    RequestWithdrawn(RequestFacts),
    /// A request was refused, at once or after its wait.
    RequestRefused {
        /// The request.
        request: RequestFacts,
        /// The reason.
        error: RackError,
    },
    /// The recipient gave a grant back.
    GrantReleased(GrantFacts),
    /// A donor lends a grant no more that its recipient has not given back: its lease expired, or the
    /// donor reclaimed it.
    GrantEnded(GrantFacts),
    /// A grant was lost with its donor.
    GrantLost(GrantFacts),
    /// A grant is preempted: its donor gives notice.
    GrantPreempted {
        /// The grant.
        grant: GrantFacts,
        /// Owner of the request it is preempted for.
        by: Owner,
    },
    /// A donor lends a grant that was not in the table.
    GrantAdopted(GrantFacts),
    /// A grant was transferred.
    GrantTransferred {
        /// The grant.
        from: GrantId,
        /// Its successor.
        to: GrantFacts,
        /// The former owner, if known.
        former: Option<Owner>,
    },
    /// A grant ended at its donor before the transfer to a new owner was executed there.
    GrantLostInTransfer {
        /// The grant.
        from: GrantId,
        /// Its successor.
        to: GrantFacts,
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
    /// A quota was set.
    QuotaSet {
        /// The users it applies to.
        of: QuotaFor,
        /// All its limits now.
        limits: Limits,
        /// The caller.
        by: String,
    },
    /// A quota was removed.
    QuotaRemoved {
        /// The users it applied to.
        of: QuotaFor,
        /// The caller.
        by: String,
    },
}

impl Event {
    /// Returns the row for users, without number and time.
    pub fn row(&self) -> EventRow {
        match self {
            Self::NodeJoined { name, identity } => node(EventKind::NodeJoined, name)
                .with_detail(format_args!("epoch {}", identity.epoch)),
            Self::NodeBack { name } => node(EventKind::NodeBack, name),
            Self::NodeDown { name } => node(EventKind::NodeDown, name),
            Self::NodeUnreachable { name, addr } => {
                node(EventKind::NodeUnreachable, name).with_detail(format_args!("at {addr}"))
            }
            Self::NodeReached { name } => node(EventKind::NodeReached, name),
            Self::NodeStopped { name } => node(EventKind::NodeStopped, name),
            Self::NodeDrains { name, drains: true } => node(EventKind::NodeDraining, name),
            Self::NodeDrains { name, drains: false } => node(EventKind::NodeUndrained, name),
            Self::NodeAdmitted { name } => node(EventKind::NodeEnrolled, name),
            Self::NodeRevoked { name } => node(EventKind::NodeRevoked, name),
            Self::GrantBegan(grant) => grant.row(EventKind::Granted),
            Self::RequestQueued { request, needs } => {
                let row = request.row(EventKind::Queued).with_detail(&request.wants);
                EventRow { reason: (*needs).to_owned(), ..row }
            }
            Self::RequestWithdrawn(request) => {
                request.row(EventKind::Withdrawn).with_detail(&request.wants)
            }
            Self::RequestRefused { request, error } => {
                let row = request.row(EventKind::Refused).with_detail(error);
                EventRow { reason: error.reason().to_owned(), ..row }
            }
            Self::GrantReleased(grant) => grant.row(EventKind::Released),
            Self::GrantEnded(grant) => {
                let why = "its lease expired, or its donor reclaimed it";
                grant.row(EventKind::Ended).with_detail(why)
            }
            Self::GrantLost(grant) => grant.row(EventKind::Lost),
            Self::GrantPreempted { grant, by } => {
                EventRow { by: by.to_string(), ..grant.row(EventKind::Preempted) }
            }
            Self::GrantAdopted(grant) => grant.row(EventKind::Adopted),
            Self::GrantTransferred { from, to, former } => {
                let detail = format!("grant {} became {}", from.0, to.id.0);
                let by = former.as_ref().map(Owner::to_string).unwrap_or_default();
                EventRow { by, ..to.row(EventKind::Transferred).with_detail(detail) }
            }
            Self::GrantLostInTransfer { from, to } => {
                let detail = format!("grant {} had ended before it became {}", from.0, to.id.0);
                to.row(EventKind::Lost).with_detail(detail)
            }
            Self::GrantNotAdopted { donor, id, share } => EventRow {
                grant: Some(id.0),
                ..of_share(node(EventKind::NotAdopted, donor), share)
            },
            Self::QuotaSet { of, limits, by } => of_quota(EventKind::QuotaSet, of, limits, by),
            Self::QuotaRemoved { of, by } => of_quota(EventKind::QuotaRemoved, of, "", by),
        }
    }

    /// True if it says what a record of the store holds, and is noted behind that record.
    pub(super) fn follows_record(&self) -> bool {
        matches!(self, Self::GrantBegan(_) | Self::GrantReleased(_) | Self::GrantEnded(_))
    }
}

fn node(kind: EventKind, name: &str) -> EventRow {
    EventRow { node: name.to_owned(), ..EventRow::of(kind) }
}

fn of_share(row: EventRow, share: &Share) -> EventRow {
    EventRow {
        resource: share.kind.name().to_owned(),
        address: to_label(&share.address),
        bytes: Some(share.bytes),
        ..row
    }
}

fn of_quota(kind: EventKind, of: &QuotaFor, limits: impl fmt::Display, by: &str) -> EventRow {
    let row = EventRow { by: by.to_owned(), ..EventRow::of(kind).with_detail(limits) };
    match of {
        QuotaFor::User(user) => EventRow { owner_user: user.clone(), ..row },
        QuotaFor::Others => EventRow { reason: "default".to_owned(), ..row },
    }
}

impl GrantFacts {
    fn row(&self, kind: EventKind) -> EventRow {
        let Self { id, owner, donor, share, recipient, purpose } = self;
        let owner = owner.as_ref();
        EventRow {
            grant: Some(id.0),
            owner_user: owner.map(|owner| owner.user.clone()).unwrap_or_default(),
            owner_node: owner.map(|owner| owner.node.clone()).unwrap_or_default(),
            recipient: recipient.clone(),
            purpose: purpose.clone(),
            ..of_share(node(kind, donor), share)
        }
    }
}

impl RequestFacts {
    fn row(&self, kind: EventKind) -> EventRow {
        let Self { owner, bytes, recipient, purpose, .. } = self;
        EventRow {
            owner_user: owner.user.clone(),
            owner_node: owner.node.clone(),
            bytes: (*bytes > 0).then_some(*bytes),
            recipient: recipient.clone(),
            purpose: purpose.clone(),
            ..EventRow::of(kind)
        }
    }
}

impl MonitorCore {
    /// Returns what events say of a grant.
    pub(super) fn facts_of(&self, grant: &GrantRecord) -> GrantFacts {
        GrantFacts {
            id: grant.id,
            owner: grant.owner.clone(),
            donor: self.name_of(grant.donor),
            share: grant.share.clone(),
            recipient: grant.recipient.clone(),
            purpose: grant.purpose.clone(),
        }
    }

    /// Notes that a request waits.
    pub(super) fn note_queued(&mut self, checked: &CheckedRequest, needs: &'static str) {
        let request = RequestFacts::of(&checked.owner, &checked.request);
        self.note(Event::RequestQueued { request, needs });
    }

    /// Notes that nobody waits for a request any more.
    pub(super) fn note_withdrawn(&mut self, checked: &CheckedRequest) {
        let request = RequestFacts::of(&checked.owner, &checked.request);
        self.note(Event::RequestWithdrawn(request));
    }

    /// Notes that the grants of a donor's epoch are lost with it.
    pub(super) fn note_lost_grants(&mut self, donor: Identity) {
        let is_lent = |grant: &&GrantRecord| {
            grant.donor_epoch == donor.epoch
                && matches!(grant.state, GrantState::Committed | GrantState::Transferring)
        };
        let lost = self.rat.of_donor(donor.node).filter(is_lent);
        let lost: Vec<_> = lost.map(|grant| Event::GrantLost(self.facts_of(grant))).collect();
        lost.into_iter().for_each(|event| self.note(event));
    }
}
