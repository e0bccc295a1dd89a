//! Who has what, and who was away: what may be lost follows from the faults alone, not from what the
//! code under test thinks of them.

use std::collections::BTreeSet;

use venice_wire::GrantId;

use super::story::FaultKind;
use super::{LEASE_NS, SILENCE_NS};

/// A donor that was away for less is no reason to do without it.
const GRACE_NS: u64 = SILENCE_NS / 2;
/// One that was away for less is no reason to lose what nobody else has: its lease is renewed every
/// fourth of it.
const PATIENCE_NS: u64 = LEASE_NS * 2 / 3;
/// For so long after it is back it may yet be given up, for having been away.
const HEALED_AFTER_NS: u64 = 4_000_000_000;

/// A replica that was once whole.
#[derive(Clone, Copy, Debug)]
struct Whole {
    replica: usize,
    slab: usize,
    fragment: usize,
    donor: usize,
    grant: GrantId,
    /// What it had is gone for good.
    is_lost: bool,
    /// Its donor was away since, for long enough to be done without.
    is_doubtful: bool,
    /// And for so long that it may be taken for lost, whatever others have.
    is_overdue: bool,
    /// It was away lately, for however long.
    is_wounded: bool,
}

/// The book.
#[derive(Debug)]
pub struct Ledger {
    /// Fragments that a page takes.
    needed: usize,
    wholes: Vec<Whole>,
    /// By donor: how often it was away.
    wounds: Vec<u32>,
}

impl Ledger {
    pub fn new(needed: usize) -> Ledger {
        Ledger { needed, wholes: Vec::new(), wounds: vec![0; 64] }
    }

    /// A replica has all that was written.
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

    /// A donor died.
    pub fn lose_node(&mut self, donor: usize) {
        self.lose(|whole| whole.donor == donor);
    }

    /// A grant ended at its donor.
    pub fn lose_grant(&mut self, grant: GrantId) {
        self.lose(|whole| whole.grant == grant);
    }

    /// A donor is away for a while.
    pub fn wound(&mut self, donor: usize, lasts_ns: u64) {
        self.wounds[donor] += 1;
        for whole in self.wholes.iter_mut().filter(|whole| whole.donor == donor) {
            // Twice in a row may be as long as both.
            whole.is_overdue |= lasts_ns > PATIENCE_NS || whole.is_wounded;
            whole.is_doubtful |= lasts_ns >= GRACE_NS || whole.is_wounded;
            whole.is_wounded = true;
        }
    }

    /// What is to be looked at, and when, after a donor was away.
    pub fn is_healing(&self, donor: usize, kind: FaultKind) -> Option<(u32, u64)> {
        let was_away = matches!(kind, FaultKind::Stalls | FaultKind::IsCutOff);
        was_away.then_some((self.wounds[donor], HEALED_AFTER_NS))
    }

    /// It has been back for long enough: what of it is read still is to be relied on again.
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

    /// A replica is let go of, as its donor wants the memory back; an error: too few others have what
    /// it had.
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
            false => Err(format!("the last replica of slab {slab} was let go of")),
        }
    }

    /// May what a slab holds be lost? An error: enough donors have it that were there all the time.
    pub fn may_be_lost(&self, slab: usize) -> Result<(), String> {
        let there = self
            .wholes
            .iter()
            .filter(|whole| whole.slab == slab && !whole.is_lost && !whole.is_doubtful);
        let fragments: BTreeSet<_> = there.clone().map(|whole| whole.fragment).collect();
        // Who was away for a while is done without only where others have it all: the last that
        // goes must be gone.
        let of_slab = |whole: &&Whole| whole.slab == slab;
        let is_one_gone =
            self.wholes.iter().filter(of_slab).any(|one| one.is_lost || one.is_overdue);
        if !is_one_gone {
            return Err(format!("slab {slab} is said to be lost, and nobody was away for long"));
        }
        if fragments.len() < self.needed {
            return Ok(());
        }
        let donors: Vec<_> = there.map(|whole| whole.donor).collect();
        Err(format!("slab {slab} is said to be lost, and donors {donors:?} have it"))
    }
}
