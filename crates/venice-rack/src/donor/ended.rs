//! Ended grants, so that a late call does not lend one again.

use crate::caller::Owner;
use std::collections::{BTreeMap, BTreeSet};
use venice_wire::{GrantId, GrantKey};

/// Grants remembered by number. Older ones count as ended whether they are or not: grants lent in
/// one call have rising numbers, and one that comes so late is requested again under another
/// number.
const KNOWN: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Ended {
    last: BTreeSet<GrantId>,
    /// This grant and all below it may have ended.
    before: Option<GrantId>,
    /// The new owners of transferred grants, with the old keys: at most as many as are remembered.
    transferred: BTreeMap<GrantId, (GrantKey, Owner)>,
}

impl Ended {
    pub(super) fn note(&mut self, grant: GrantId) {
        self.last.insert(grant);
        if self.last.len() > KNOWN {
            self.before = self.before.max(self.last.pop_first());
        }
    }

    /// Records a grant as transferred to another owner.
    pub(super) fn note_transferred(&mut self, grant: GrantId, key: GrantKey, to: Owner) {
        self.note(grant);
        self.transferred.insert(grant, (key, to));
        if self.transferred.len() > KNOWN {
            self.transferred.pop_first();
        }
    }

    /// Returns the new owner of a transferred grant, to the holder of its old key.
    pub(super) fn new_owner(&self, grant: GrantId, key: GrantKey) -> Option<&Owner> {
        let (old_key, owner) = self.transferred.get(&grant)?;
        (*old_key == key).then_some(owner)
    }

    pub(super) fn may_have(&self, grant: GrantId) -> bool {
        Some(grant) <= self.before || self.last.contains(&grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_grants_stay_ended() {
        let mut ended = Ended::default();
        for number in (2..=4 * KNOWN as u64).step_by(2) {
            assert!(!ended.may_have(GrantId(number)));
            ended.note(GrantId(number));
            assert!(!ended.may_have(GrantId(number + 1)));
        }
        assert!((1..=KNOWN as u64).all(|number| ended.may_have(GrantId(number))));
        assert!(ended.may_have(GrantId(4 * KNOWN as u64)));
        assert!(!ended.may_have(GrantId(4 * KNOWN as u64 - 1)));
        assert_eq!(ended.last.len(), KNOWN);
    }
}
