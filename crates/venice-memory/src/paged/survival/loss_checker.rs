//! The independent checker of losses. It derives the losses that are allowed from the faults alone,
//! never from the state of the code under test.

use std::collections::BTreeSet;

use venice_wire::GrantId;

use super::super::run_block::SILENT_LEASES;
use super::scenario::FaultKind;
use super::{LEASE_NS, SILENCE_NS};

/// A donor absent for less must not be dropped.
const DROP_AFTER_NS: u64 = SILENCE_NS / 2;
/// A donor that is cut off for less must not lose data that it alone has: its lease is renewed every
/// quarter of a lease.
const LOSE_AFTER_NS: u64 = LEASE_NS * 2 / 3;
/// A donor that stalls for less must not lose data that it alone has.
const LOSE_STALLED_AFTER_NS: u64 = LEASE_NS * (SILENT_LEASES as u64 - 1);
/// Time after its return in which a donor may still be dropped for its absence.
const HEALED_AFTER_NS: u64 = 4_000_000_000;

/// A replica that was once complete.
#[derive(Clone, Copy, Debug)]
struct Complete {
    replica: usize,
    slab: usize,
    fragment: usize,
    donor: usize,
    grant: GrantId,
    /// Its contents are gone for good.
    is_lost: bool,
    /// Its donor was absent since, long enough to be dropped.
    is_doubtful: bool,
    /// Its donor was absent long enough to count as lost, whatever other donors have.
    is_overdue: bool,
    /// Its donor was absent lately, for any time.
    was_absent: bool,
}

/// The checker's state.
#[derive(Debug)]
pub struct LossChecker {
    /// Fragments needed to restore a page.
    needed: usize,
    complete: Vec<Complete>,
    /// The number of absences, by donor.
    absences: Vec<u32>,
}

impl LossChecker {
    pub fn new(needed: usize) -> LossChecker {
        LossChecker { needed, complete: Vec::new(), absences: vec![0; 64] }
    }

    /// Records a replica as complete.
    pub fn add_complete(
        &mut self,
        replica: usize,
        part: (usize, usize),
        donor: usize,
        grant: GrantId,
        is_away: bool,
    ) {
        let (slab, fragment) = part;
        self.complete.push(Complete {
            replica,
            slab,
            fragment,
            donor,
            grant,
            is_lost: false,
            is_doubtful: is_away,
            is_overdue: is_away,
            was_absent: is_away,
        });
    }

    fn lose(&mut self, which: impl Fn(&Complete) -> bool) {
        self.complete
            .iter_mut()
            .filter(|record| which(record))
            .for_each(|record| record.is_lost = true);
    }

    /// Records the death of a donor.
    pub fn lose_node(&mut self, donor: usize) {
        self.lose(|record| record.donor == donor);
    }

    /// Records the end of a grant at its donor.
    pub fn lose_grant(&mut self, grant: GrantId) {
        self.lose(|record| record.grant == grant);
    }

    /// Records a fault of a donor that may be an absence.
    pub fn record_fault(&mut self, donor: usize, kind: FaultKind, lasts_ns: u64) {
        let lose_after_ns = match kind {
            FaultKind::Stalls => LOSE_STALLED_AFTER_NS,
            FaultKind::CutOff => LOSE_AFTER_NS,
            FaultKind::Dies | FaultKind::Reclaims => return,
        };
        self.absences[donor] += 1;
        for record in self.complete.iter_mut().filter(|record| record.donor == donor) {
            // Two absences in a row may last as long as both.
            record.is_overdue |= lasts_ns > lose_after_ns || record.was_absent;
            record.is_doubtful |= lasts_ns >= DROP_AFTER_NS || record.was_absent;
            record.was_absent = true;
        }
    }

    /// The absence to check, and the time until the check, after a donor's fault has ended.
    pub fn is_healing(&self, donor: usize, kind: FaultKind) -> Option<(u32, u64)> {
        let was_away = matches!(kind, FaultKind::Stalls | FaultKind::CutOff);
        was_away.then_some((self.absences[donor], HEALED_AFTER_NS))
    }

    /// Records that a donor has been back long enough: its replicas that are still read are
    /// reliable again.
    pub fn heal(&mut self, donor: usize, absence: u32, is_read: impl Fn(usize) -> bool) {
        if self.absences[donor] == absence {
            for record in self.complete.iter_mut().filter(|record| record.donor == donor) {
                let is_read = is_read(record.replica);
                record.is_doubtful &= !is_read;
                record.is_overdue &= !is_read;
                record.was_absent = false;
            }
        }
    }

    /// Records the release of a reclaimed replica. An error: too few other replicas have its
    /// contents.
    pub fn release(&mut self, replica: usize, copies: usize) -> Result<(), String> {
        let at = self.complete.iter().position(|record| record.replica == replica);
        let Some(at) = at else { return Ok(()) };
        let Complete { slab, fragment, .. } = self.complete[at];
        self.complete[at].is_lost = true;
        let others = self.complete.iter().filter(|other| {
            other.replica != replica && (other.slab, other.fragment) == (slab, fragment)
        });
        match others.count() >= copies {
            true => Ok(()),
            false => Err(format!("released the last replica of slab {slab}")),
        }
    }

    /// Checks that a loss of the slab is allowed. An error: enough donors have it that were never
    /// absent.
    pub fn may_be_lost(&self, slab: usize) -> Result<(), String> {
        let there = self
            .complete
            .iter()
            .filter(|record| record.slab == slab && !record.is_lost && !record.is_doubtful);
        let fragments: BTreeSet<_> = there.clone().map(|record| record.fragment).collect();
        // An absent donor is dropped only if other donors have all its contents. One loss must be
        // certain.
        let of_slab = |record: &&Complete| record.slab == slab;
        let is_one_gone =
            self.complete.iter().filter(of_slab).any(|one| one.is_lost || one.is_overdue);
        if !is_one_gone {
            return Err(format!("slab {slab} reported lost, but no donor was absent for long"));
        }
        if fragments.len() < self.needed {
            return Ok(());
        }
        let donors: Vec<_> = there.map(|record| record.donor).collect();
        Err(format!("slab {slab} reported lost, but donors {donors:?} have it"))
    }
}
