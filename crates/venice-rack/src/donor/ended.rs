//! Grants that are over, so that a call that comes late lends none of them again.

use std::collections::BTreeSet;
use venice_wire::GrantId;

/// So many are known by their number. Of those before them it is known that they may be over, which is
/// taken for the same: grants lent at once have rising numbers, and one that comes so late is asked for
/// anew under another.
const KNOWN: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Ended {
    last: BTreeSet<GrantId>,
    /// This one and those below may be.
    before: Option<GrantId>,
}

impl Ended {
    pub(super) fn note(&mut self, grant: GrantId) {
        self.last.insert(grant);
        if self.last.len() > KNOWN {
            self.before = self.before.max(self.last.pop_first());
        }
    }

    pub(super) fn may_have(&self, grant: GrantId) -> bool {
        Some(grant) <= self.before || self.last.contains(&grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_stays_over_and_what_is_new_is_not() {
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
