//! Checkers of the control plane. Their input is the messages, the donors' actions and the grants
//! in use by recipients. They have the faults, and do not depend on the code under test.
//!
//! | checker | promise |
//! |---|---|
//! | owners | no slab and no device has two owners, by the view of recipients and donors |
//! | truth | a grant in an answer is lent by its donor, whole, under that key |
//! | record | every grant in an answer is in the store |
//! | single | a request has one set of grants, however often and wherever it is made |
//! | transfers | a donor answers one owner of a grant at a time, and the one it was told to; an owner that is
//! told that nothing was transferred has lost nothing, and one that is told otherwise has given it all |
//! | kept | no grant ends at its donor while its recipient may use it, unless that was announced |
//! | numbers | a grant's number is assigned once |
//! | turned-away | no prepare goes to a node that is known to be drained or dead |
//! | lives | a donor executes no order to an earlier process |
//! | line | no queued request is passed by more than it wants itself |
//! | served | two leases after the last fault every request that fits is served |
//! | agreement | in quiescence recipients, donors, all tables and the store agree, and nothing is left over |
//! | soundness | no assertion of the code under test fails |

mod answers;
mod findings;
mod line;
mod owners;
mod peace;
mod transfers;

use std::collections::{BTreeMap, BTreeSet};

use venice_rack::types::Grant;
use venice_wire::{GrantId, GrantKey};

pub(super) use self::findings::Findings;
pub use self::findings::{Checker, Verdict, Violation};
use self::line::Line;
use self::transfers::Transfers;
use super::agent::Agent;
use super::desk::Fact;
use super::monitor::Monitor;
use super::recipient::Recipient;
use super::scenario::Scenario;
use super::store::SharedStore;

/// The state to check.
pub(super) struct Scene<'a> {
    pub(super) now_ns: u64,
    pub(super) agents: &'a [Agent],
    pub(super) monitors: &'a [Monitor],
    pub(super) recipients: &'a [Recipient],
    pub(super) store: &'a SharedStore,
    /// Recipients that are frozen, and use no grants.
    pub(super) frozen: &'a BTreeSet<u16>,
}

pub(super) struct Judge {
    pub(super) findings: Findings,
    lease_ns: u64,
    is_alone: bool,
    /// Grants in use by recipients.
    held: BTreeMap<GrantId, Holding>,
    /// Slabs set aside or lent by the donors' present processes.
    lent: BTreeMap<(u16, GrantId), Vec<u32>>,
    /// Grants that the donors' present processes took back with announcement.
    taken_back: BTreeSet<(u16, GrantId)>,
    /// Grants that recipients used before.
    left: BTreeSet<GrantId>,
    /// Last answer to each request.
    answered: BTreeMap<u128, Answer>,
    /// Assigned numbers, with their keys.
    numbers: BTreeMap<GrantId, GrantKey>,
    line: Line,
    transfers: Transfers,
    pub(super) counts: Counts,
}

/// Number of events checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Grants of memory that recipients took.
    pub memory: u64,
    /// Devices that they took.
    pub devices: u64,
    /// Grants that donors ended with announcement while recipients used them.
    pub ended_early: u64,
    /// Longest time without an answer of a request outside the queue, in nanoseconds.
    pub longest_answer_ns: u64,
    /// Number of times a request passed a queued one.
    pub passes: u64,
    /// Grants that donors gave to a new owner.
    pub transferred: u64,
    /// Transferred grants that their new owners used.
    pub claimed: u64,
    /// Time of the first transfer at a donor, in nanoseconds; 0: none.
    pub first_transfer_ns: u64,
}

struct Holding {
    recipient: u16,
    client_id: u128,
    grant: Grant,
}

struct Answer {
    at_ns: u64,
    grants: Vec<(u16, GrantId)>,
}

impl Judge {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Self {
            findings: Findings::default(),
            lease_ns: scenario.lease.0,
            is_alone: scenario.monitors == 1,
            held: BTreeMap::new(),
            lent: BTreeMap::new(),
            taken_back: BTreeSet::new(),
            left: BTreeSet::new(),
            answered: BTreeMap::new(),
            numbers: BTreeMap::new(),
            line: Line::default(),
            transfers: Transfers::default(),
            counts: Counts::default(),
        }
    }

    /// Evaluates an event.
    pub(super) fn hear(&mut self, scene: &Scene<'_>, fact: Fact) {
        match fact {
            Fact::Prepares { monitor, donor, request, knows } => {
                self.prepares(scene, (monitor, donor), &request, knows);
            }
            Fact::Begins => self.line = Line::default(),
            Fact::Wants { recipient, priority } => self.line.wants(recipient, priority),
            Fact::Line(rows) => self.shows_line(scene.now_ns, rows),
            Fact::Tells { client_id, grants } => self.tells(scene, client_id, &grants),
            Fact::SetsAside { donor, grant, slabs, epoch } => {
                self.check_life(scene, donor, grant, epoch);
                self.lent.insert((donor, grant), slabs);
            }
            Fact::Lends { donor, grant, epoch } => self.check_life(scene, donor, grant, epoch),
            Fact::Ends { donor, grant, reason } => self.ends(scene, donor, grant, reason),
            Fact::Dies { donor } => {
                self.lent.retain(|(of, _), _| *of != donor);
                self.taken_back.retain(|(of, _)| *of != donor);
                self.transfers.dies(donor);
            }
            Fact::Takes { recipient, client_id, grants, wants, asked_ns } => {
                self.check_truth(scene, &grants, (&wants, asked_ns));
                self.takes(scene, recipient, client_id, grants);
            }
            Fact::Offers { step } => self.offers(scene, &step),
            Fact::Switches { donor, step } => self.switches(scene, donor, &step),
            Fact::Serves { donor, grant } => self.serves(scene, donor, grant),
            Fact::HandsOver { recipient, client_id, grants } => {
                self.transfers.asks(recipient, client_id, grants);
            }
            Fact::HandedOver { client_id, rows } => self.handed_over(scene, client_id, &rows),
            Fact::KeptAll { client_id, grants, why } => {
                self.kept_all(scene, client_id, &grants, &why);
            }
            Fact::Claims { grants } => self.counts.claimed += grants,
            Fact::Leaves { grant } => {
                self.held.remove(&grant);
                self.left.insert(grant);
            }
            Fact::Answered { after_ns } => {
                let longest = &mut self.counts.longest_answer_ns;
                *longest = (*longest).max(after_ns);
            }
        }
    }
}
