//! Events of a rack, for users: a line of `venice events` each.

use crate::caller::{Caller, User};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Most bytes of an event's detail.
pub const MAX_DETAIL_BYTES: usize = 400;

/// Defines the kinds of events, with their names.
macro_rules! event_kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal),* $(,)?) => {
        /// The kind of an event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EventKind {
            $($(#[$doc])* $kind,)*
        }

        impl EventKind {
            /// All kinds.
            pub const ALL: [Self; [$(Self::$kind),*].len()] = [$(Self::$kind),*];

            /// Returns the name shown to users.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

event_kinds! {
    /// The Monitor Node began to serve, and this list of events with it.
    MonitorStarted "monitor-started",
    /// A node joined, under a new epoch.
    NodeJoined "node-joined",
    /// A node that was down reports again.
    NodeBack "node-back",
    /// A node missed its heartbeats.
    NodeDown "node-down",
    /// A node reports, and calls to it fail.
    NodeUnreachable "node-unreachable",
    /// A node that could not be reached answers.
    NodeReached "node-reached",
    /// A node's agent was stopped in an orderly way.
    NodeStopped "node-stopped",
    /// The drain of a node began: its grants end in their own time.
    NodeDraining "node-draining",
    /// The drain of a node ended.
    NodeUndrained "node-undrained",
    /// A machine was enrolled as this node.
    NodeEnrolled "node-enrolled",
    /// A node was revoked.
    NodeRevoked "node-revoked",
    /// A grant began.
    Granted "granted",
    /// A request waits for room, or for a device.
    Queued "queued",
    /// The caller withdrew a request, or has gone.
    Withdrawn "withdrawn",
    /// A request was refused.
    Refused "refused",
    /// A grant was given back by its recipient.
    Released "released",
    /// A grant ended at its donor: its lease expired, or it was reclaimed.
    Ended "ended",
    /// A grant was lost with its donor.
    Lost "lost",
    /// A grant is preempted: its donor gives notice.
    Preempted "preempted",
    /// A grant was transferred to another owner.
    Transferred "transferred",
    /// A donor lends a grant that was not in the table.
    Adopted "adopted",
    /// A donor reports an impossible grant.
    NotAdopted "not-adopted",
    /// A quota was set.
    QuotaSet "quota-set",
    /// A quota was removed.
    QuotaRemoved "quota-removed",
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for an unknown name of a kind.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown kind of event {name:?}: expected one of {}", names())]
pub struct UnknownEvent {
    name: String,
}

fn names() -> String {
    EventKind::ALL.map(EventKind::name).join(", ")
}

impl FromStr for EventKind {
    type Err = UnknownEvent;

    fn from_str(name: &str) -> Result<Self, UnknownEvent> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownEvent { name: name.to_owned() })
    }
}

/// A line of `venice events`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct EventRow {
    /// Its number since the Monitor Node began to serve, from 1.
    pub number: u64,
    /// Its time, in milliseconds since 1970.
    pub time_ms: u64,
    /// Its kind ([`EventKind::name`]).
    pub kind: String,
    /// The node: of a grant the donor; empty: it concerns none.
    pub node: String,
    /// The grant's number.
    pub grant: Option<u64>,
    /// The user: of a grant or a request the owner's, else the one it concerns; empty: unknown, or
    /// it concerns none.
    pub owner_user: String,
    /// The node that vouches for the owner.
    pub owner_node: String,
    /// The name of the resource's kind; empty: none.
    pub resource: String,
    /// The device's name at its donor; empty for memory.
    pub address: String,
    /// The size in bytes, of all wants of a request.
    pub bytes: Option<u64>,
    /// The recipient's own description of itself.
    pub recipient: String,
    /// The purpose of the grant or the request.
    pub purpose: String,
    /// The other user, `USER@NODE`: the owner of the request that a grant is preempted for, the
    /// former owner of a transferred grant, or the caller that set or removed a quota.
    pub by: String,
    /// The reason in a word; empty: there is none. Refusals: see
    /// [`RackError::reason`](crate::types::RackError::reason).
    pub reason: String,
    /// More, in words.
    pub detail: String,
}

impl EventRow {
    /// Creates a row of this kind, without any other value.
    pub fn of(kind: EventKind) -> Self {
        Self { kind: kind.name().to_owned(), ..Self::default() }
    }

    /// Sets the detail, cut at [`MAX_DETAIL_BYTES`].
    pub fn with_detail(mut self, detail: impl fmt::Display) -> Self {
        self.detail = detail.to_string();
        if self.detail.len() > MAX_DETAIL_BYTES {
            let end = (0..=MAX_DETAIL_BYTES).rev().find(|at| self.detail.is_char_boundary(*at));
            self.detail.truncate(end.unwrap_or(0));
            self.detail.push('…');
        }
        self
    }

    /// True if the caller may see it: agents and administrators see all events, users those of
    /// nodes, and of their own grants, requests and quotas. Equal user names mean one user.
    pub fn is_visible_to(&self, caller: &Caller) -> bool {
        let Caller::User(User { name, is_admin: false, .. }) = caller else { return true };
        let is_of_nobody = self.owner_user.is_empty() && self.grant.is_none();
        let is_cause = self.by.rsplit_once('@').is_some_and(|(user, _)| user == name);
        is_of_nobody || self.owner_user == *name || is_cause
    }
}

/// The events that a reader wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventFilter {
    /// The node, of the event or of its owner; empty: all.
    pub node: String,
    /// The user; empty: all.
    pub user: String,
    /// The kinds; empty: all.
    pub kinds: Vec<String>,
    /// The earliest time, in milliseconds since 1970.
    pub since_ms: u64,
}

impl EventFilter {
    /// True if the row is wanted.
    pub fn matches(&self, row: &EventRow) -> bool {
        let Self { node, user, kinds, since_ms } = self;
        (node.is_empty() || row.node == *node || row.owner_node == *node)
            && (user.is_empty() || row.owner_user == *user)
            && (kinds.is_empty() || kinds.contains(&row.kind))
            && row.time_ms >= *since_ms
    }
}

/// A reader's request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventRequest {
    /// The events wanted.
    pub filter: EventFilter,
    /// Position to go on from; `None`: the oldest event kept.
    pub after: Option<EventPosition>,
    /// True to begin with the next event, whatever `after` is.
    pub only_new: bool,
    /// True to wait for further events; else the answer ends with the newest.
    pub follow: bool,
}

/// A position in the events of a Monitor Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventPosition {
    /// The list: another one begins with each start of the Monitor Node, and numbers with it.
    pub list: u64,
    /// The number of the last event read; 0: none.
    pub number: u64,
}

/// Events in their order, and the reader's position after them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventBatch {
    /// The events.
    pub rows: Vec<EventRow>,
    /// The position after them.
    pub position: EventPosition,
    /// Events, wanted or not, that were no longer kept when the reader came to them.
    pub missed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, is_admin: bool) -> Caller {
        Caller::User(User { node: "n".into(), uid: 1, name: name.into(), is_admin })
    }

    #[test]
    fn users_see_their_own_events() {
        let node = EventRow::of(EventKind::NodeDown);
        let ada = || "ada".to_owned();
        let grant =
            EventRow { grant: Some(1), owner_user: ada(), ..EventRow::of(EventKind::Granted) };
        let adopted = EventRow { grant: Some(2), ..EventRow::of(EventKind::Adopted) };
        let by = "bob@n2".to_owned();
        let taken = EventRow { by, kind: "preempted".into(), ..grant.clone() };
        let seen = |caller: &Caller| {
            [&node, &grant, &adopted, &taken].map(|row| row.is_visible_to(caller))
        };
        assert_eq!(seen(&user("ada", false)), [true, true, false, true]);
        assert_eq!(seen(&user("bob", false)), [true, false, false, true]);
        assert_eq!(seen(&user("eve", false)), [true, false, false, false]);
        assert_eq!(seen(&user("eve", true)), [true; 4]);
        assert_eq!(seen(&Caller::Node("n3".into())), [true; 4]);
    }

    #[test]
    fn filter_joins_all_conditions() {
        let row = EventRow {
            time_ms: 10,
            node: "n1".into(),
            owner_user: "ada".into(),
            owner_node: "n2".into(),
            ..EventRow::of(EventKind::Granted)
        };
        let all = EventFilter::default();
        assert!(all.matches(&row));
        assert!(EventFilter { node: "n2".into(), user: "ada".into(), ..all.clone() }.matches(&row));
        assert!(!EventFilter { node: "n3".into(), ..all.clone() }.matches(&row));
        assert!(!EventFilter { since_ms: 11, ..all.clone() }.matches(&row));
        let kinds = vec!["lost".to_owned(), "granted".to_owned()];
        assert!(EventFilter { kinds, ..all.clone() }.matches(&row));
        assert!(!EventFilter { kinds: vec!["lost".into()], ..all }.matches(&row));
    }

    #[test]
    fn long_details_are_cut() {
        let row = EventRow::default().with_detail("ä".repeat(MAX_DETAIL_BYTES));
        assert!(row.detail.len() <= MAX_DETAIL_BYTES + '…'.len_utf8() && row.detail.ends_with('…'));
    }

    #[test]
    fn kinds_read_as_written() {
        for kind in EventKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        let error = "grant".parse::<EventKind>().unwrap_err().to_string();
        assert!(error.contains("granted, queued"), "{error}");
    }
}
