//! The independent checker of losses. It derives the losses that are allowed from the faults alone,
//! never from the state of the code under test.

use std::collections::BTreeSet;

use venice_wire::GrantId;

use super::story::FaultKind;
use super::{LEASE_NS, SILENCE_NS};

/// A donor absent for less must not be dropped.
const GRACE_NS: u64 = SILENCE_NS / 2;
/// A donor absent for less must not lose data that it alone has: its lease is renewed every quarter
/// of a lease.
const PATIENCE_NS: u64 = LEASE_NS * 2 / 3;
/// Time after its return in which a donor may still be dropped for its absence.
const HEALED_AFTER_NS: u64 = 4_000_000_000;

/// A replica that was once complete.
#[derive(Clone, Copy, Debug)]
struct Whole {
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
    is_wounded: bool,
}

/// The checker's state.
#[derive(Debug)]
pub struct Ledger {
    /// Fragments needed to restore a page.
    needed: usize,
    wholes: Vec<Whole>,
    /// The number of absences, by donor.
    wounds: Vec<u32>,
}

impl Ledger {
    pub fn new(needed: usize) -> Ledger {
        Ledger { needed, wholes: Vec::new(), wounds: vec![0; 64] }
    }

    /// Records a replica as complete.
    pub fn is_whole(
        &mut self,
        replica: usize,
        part: (usize, usize),
        donor: usize,
        grant: GrantId,
        is_away: bool,
    ) {
        let (slab, fragment) = part;
        self.wholes.push(Whole {
            replica,
            slab,
            fragment,
            donor,
            grant,
            is_lost: false,
            is_doubtful: is_away,
            is_overdue: is_away,
            is_wounded: is_away,
        });
    }

    fn lose(&mut self, which: impl Fn(&Whole) -> bool) {
        self.wholes.iter_mut().filter(|whole| which(whole)).for_each(|whole| whole.is_lost = true);
    }

    /// Records the death of a donor.
    pub fn lose_node(&mut self, donor: usize) {
        self.lose(|whole| whole.donor == donor);
    }

    /// Records the end of a grant at its donor.
    pub fn lose_grant(&mut self, grant: GrantId) {
        self.lose(|whole| whole.grant == grant);
    }

    /// Records an absence of a donor.
    pub fn wound(&mut self, donor: usize, lasts_ns: u64) {
        self.wounds[donor] += 1;
        for whole in self.wholes.iter_mut().filter(|whole| whole.donor == donor) {
            // Two absences in a row may last as long as both.
            whole.is_overdue |= lasts_ns > PATIENCE_NS || whole.is_wounded;
            whole.is_doubtful |= lasts_ns >= GRACE_NS || whole.is_wounded;
            whole.is_wounded = true;
        }
    }

    /// The absence to check, and the time until the check, after a donor's fault has ended.
    pub fn is_healing(&self, donor: usize, kind: FaultKind) -> Option<(u32, u64)> {
        let was_away = matches!(kind, FaultKind::Stalls | FaultKind::IsCutOff);
        was_away.then_some((self.wounds[donor], HEALED_AFTER_NS))
    }

    /// Records that a donor has been back long enough: its replicas that are still read are
    /// reliable again.
    pub fn heal(&mut self, donor: usize, wound: u32, is_read: impl Fn(usize) -> bool) {
        if self.wounds[donor] == wound {
            for whole in self.wholes.iter_mut().filter(|whole| whole.donor == donor) {
                let is_read = is_read(whole.replica);
                whole.is_doubtful &= !is_read;
                whole.is_overdue &= !is_read;
                whole.is_wounded = false;
            }
        }
    }

    /// Records the release of a reclaimed replica. An error: too few other replicas have its
    /// contents.
    pub fn let_go(&mut self, replica: usize, copies: usize) -> Result<(), String> {
        let at = self.wholes.iter().position(|whole| whole.replica == replica);
        let Some(at) = at else { return Ok(()) };
        let Whole { slab, fragment, .. } = self.wholes[at];
        self.wholes[at].is_lost = true;
        let others = self.wholes.iter().filter(|other| {
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
            .wholes
            .iter()
            .filter(|whole| whole.slab == slab && !whole.is_lost && !whole.is_doubtful);
        let fragments: BTreeSet<_> = there.clone().map(|whole| whole.fragment).collect();
        // An absent donor is dropped only if other donors have all its contents. One loss must be
        // certain.
        let of_slab = |whole: &&Whole| whole.slab == slab;
        let is_one_gone =
            self.wholes.iter().filter(of_slab).any(|one| one.is_lost || one.is_overdue);
        if !is_one_gone {
            return Err(format!("slab {slab} reported lost, but no donor was absent for long"));
        }
        if fragments.len() < self.needed {
            return Ok(());
        }
        let donors: Vec<_> = there.map(|whole| whole.donor).collect();
        Err(format!("slab {slab} reported lost, but donors {donors:?} have it"))
    }
}
