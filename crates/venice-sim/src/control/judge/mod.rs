//! What must hold, judged by what goes over the wire, what donors do, and what recipients go by. The
//! judge knows the faults and nothing of how anybody decides.
//!
//! | checker | holds that |
//! |---|---|
//! | owners | no slab and no device has two owners, as recipients and donors go by |
//! | truth | what a recipient is told it was granted its donor lends, whole, under that key |
//! | record | nothing is told that the store does not have |
//! | single | a request has one set of grants, however often and wherever it is made |
//! | kept | nothing ends at its donor while its recipient may go by it, unless that was announced |
//! | numbers | a grant's number is given once |
//! | turned-away | nothing is asked of a node that is known to be drained or dead |
//! | lives | a donor does nothing that an earlier process of it was asked |
//! | line | nobody is passed in line by more than it asks for itself |
//! | served | two leases after the last fault everybody is served for whom there is room |
//! | agreement | in peace recipients, donors, all tables and the store agree, and nothing is left over |
//! | soundness | nobody's own assertions fail |

mod findings;
mod line;
mod owners;
mod peace;
mod told;

use std::collections::{BTreeMap, BTreeSet};

use venice_rack::types::Grant;
use venice_wire::{GrantId, GrantKey};

pub(super) use self::findings::Findings;
pub use self::findings::{Checker, Verdict, Violation};
use self::line::Line;
use super::agent::Agent;
use super::desk::Fact;
use super::monitor::Monitor;
use super::recipient::Recipient;
use super::scenario::Scenario;
use super::store::SharedStore;

/// What is looked at.
pub(super) struct Scene<'a> {
    pub(super) now_ns: u64,
    pub(super) agents: &'a [Agent],
    pub(super) monitors: &'a [Monitor],
    pub(super) recipients: &'a [Recipient],
    pub(super) store: &'a SharedStore,
    /// Recipients that do nothing at present, and go by nothing.
    pub(super) frozen: &'a BTreeSet<u16>,
}

pub(super) struct Judge {
    pub(super) findings: Findings,
    lease_ns: u64,
    is_alone: bool,
    /// What recipients go by.
    held: BTreeMap<GrantId, Holding>,
    /// What donors' present processes have set aside or lent, and which slabs that is.
    lent: BTreeMap<(u16, GrantId), Vec<u32>>,
    /// What donors' present processes have taken back, as they had announced.
    taken_back: BTreeSet<(u16, GrantId)>,
    /// What recipients went by, and do no more.
    left: BTreeSet<GrantId>,
    /// What was told last of each request.
    told: BTreeMap<u128, Told>,
    /// Numbers that were given, with their keys.
    numbers: BTreeMap<GrantId, GrantKey>,
    line: Line,
    pub(super) counts: Counts,
}

/// How much there was to judge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Grants of memory that recipients took.
    pub memory: u64,
    /// Devices that they took.
    pub devices: u64,
    /// Grants that donors ended while recipients went by them, as they had announced.
    pub ended_early: u64,
    /// The longest that a request which does not wait in line was without any answer, in
    /// nanoseconds.
    pub longest_answer_ns: u64,
    /// How often somebody went past somebody who waits in line.
    pub passes: u64,
}

struct Holding {
    recipient: u16,
    client_id: u128,
    grant: Grant,
}

struct Told {
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
            told: BTreeMap::new(),
            numbers: BTreeMap::new(),
            line: Line::default(),
            counts: Counts::default(),
        }
    }

    /// Something happened just now.
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
            }
            Fact::Takes { recipient, client_id, grants, wanted_bytes, asked_ns } => {
                self.check_truth(scene, &grants, (wanted_bytes, asked_ns));
                self.takes(scene, recipient, client_id, grants);
            }
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
