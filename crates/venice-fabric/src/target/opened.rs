//! The grants one link uses: the donor's side of the mapping table.
//!
//! A grant is entered when the first access to it succeeds. It is removed with its link, or when
//! the recipient reports that it is no longer mapped; a donor that revokes a grant requests that
//! report.

use venice_wire::{GrantId, Refusal};

use crate::LinkConfig;

#[derive(Debug)]
pub(super) struct OpenedGrants {
    /// Sorted by grant.
    entries: Vec<Opened>,
    limit: usize,
    /// The index of the entry used last: most accesses go to the same grant as the one before.
    last: usize,
    revoking: usize,
    /// True once a grant was in use.
    had_any: bool,
}

#[derive(Clone, Copy, Debug)]
struct Opened {
    grant: GrantId,
    /// The notices of the revocation sent so far.
    notice: Option<Notice>,
}

#[derive(Clone, Copy, Debug)]
struct Notice {
    since_ns: u64,
    at_ns: u64,
    sent: u32,
}

impl OpenedGrants {
    pub(super) fn new(limit: u16) -> Self {
        let limit = usize::from(limit.max(1));
        Self { entries: Vec::new(), limit, last: 0, revoking: 0, had_any: false }
    }

    /// Makes room, so that nothing allocates later.
    pub(super) fn reserve(&mut self) {
        self.entries.reserve_exact(self.limit);
    }

    /// Checks whether an access to `grant` may be carried out. `revoked` are the grants that no
    /// link may begin to use any more.
    pub(super) fn admit(&mut self, grant: GrantId, revoked: &Revoked) -> Result<(), Refusal> {
        if self.entries.get(self.last).is_some_and(|entry| entry.grant == grant) {
            return Ok(());
        }
        match self.find(grant) {
            Ok(at) => self.last = at,
            Err(_) if revoked.contains(grant) => return Err(Refusal::UnknownGrant),
            Err(_) if self.entries.len() == self.limit => return Err(Refusal::TableFull),
            Err(_) => {}
        }
        Ok(())
    }

    /// Enters `grant` after a successful access that was admitted.
    pub(super) fn enter(&mut self, grant: GrantId) {
        if self.entries.get(self.last).is_some_and(|entry| entry.grant == grant) {
            return;
        }
        let at = self.find(grant).unwrap_or_else(|at| {
            assert!(self.entries.len() < self.limit, "it was admitted");
            self.entries.insert(at, Opened { grant, notice: None });
            self.had_any = true;
            at
        });
        self.last = at;
    }

    /// Removes `grant`: the recipient has no mapping of it any more, and no outstanding access.
    pub(super) fn close(&mut self, grant: GrantId) {
        if let Ok(at) = self.find(grant) {
            let entry = self.entries.remove(at);
            self.revoking -= usize::from(entry.notice.is_some());
        }
    }

    /// Marks `grant` as revoked; returns true if this link uses it, and must be notified.
    pub(super) fn revoke(&mut self, grant: GrantId, now_ns: u64) -> bool {
        let Ok(at) = self.find(grant) else { return false };
        if self.entries[at].notice.is_none() {
            self.entries[at].notice = Some(Notice { since_ns: now_ns, at_ns: now_ns, sent: 0 });
            self.revoking += 1;
        }
        true
    }

    /// Returns a grant of whose revocation the recipient must be notified now, and schedules the
    /// next notice. A recipient that has not answered for the silence bound of a link is gone, and
    /// its entry is removed.
    pub(super) fn next_notice(&mut self, now_ns: u64, config: &LinkConfig) -> Option<GrantId> {
        while self.revoking > 0 {
            let is_due = |entry: &Opened| entry.notice.is_some_and(|it| it.at_ns <= now_ns);
            let entry = self.entries.iter_mut().find(|entry| is_due(entry))?;
            let grant = entry.grant;
            let notice = entry.notice.as_mut()?;
            if now_ns.saturating_sub(notice.since_ns) < config.silence_ns {
                let wait_ns = config.replay_min_ns.max(1).saturating_mul(1 << notice.sent.min(16));
                notice.at_ns = now_ns.saturating_add(wait_ns.min(config.replay_max_ns.max(1)));
                notice.sent = notice.sent.saturating_add(1);
                return Some(grant);
            }
            self.close(grant);
        }
        None
    }

    /// Returns the time of the next notice.
    pub(super) fn poll_timeout(&self) -> Option<u64> {
        if self.revoking == 0 {
            return None;
        }
        self.entries.iter().filter_map(|entry| Some(entry.notice?.at_ns)).min()
    }

    /// True if the recipient of a grant in use is being notified of its revocation.
    pub(super) fn is_revoking(&self) -> bool {
        self.revoking > 0
    }

    /// True if there were grants in use, and none is left.
    pub(super) fn are_over(&self) -> bool {
        self.had_any && self.entries.is_empty()
    }

    /// Returns one of the grants, the same one as long as it is in use.
    pub(super) fn first(&self) -> Option<GrantId> {
        self.entries.first().map(|entry| entry.grant)
    }

    /// Returns the grants in use, and whether each is being revoked.
    pub(super) fn iter(&self) -> impl Iterator<Item = (GrantId, bool)> {
        self.entries.iter().map(|entry| (entry.grant, entry.notice.is_some()))
    }

    fn find(&self, grant: GrantId) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&grant, |entry| entry.grant)
    }
}

/// Revoked grants. The oldest is forgotten first: by then the donor's memory itself has long
/// refused it.
#[derive(Debug, Default)]
pub(super) struct Revoked {
    grants: std::collections::VecDeque<GrantId>,
}

const MAX_REVOKED: usize = 4096;

impl Revoked {
    pub(super) fn push(&mut self, grant: GrantId) {
        if self.contains(grant) {
            return;
        }
        if self.grants.len() == MAX_REVOKED {
            self.grants.pop_front();
        }
        self.grants.push_back(grant);
    }

    pub(super) fn forget(&mut self, grant: GrantId) {
        self.grants.retain(|each| *each != grant);
    }

    fn contains(&self, grant: GrantId) -> bool {
        self.grants.contains(&grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_table_admits_after_close() {
        let (mut opened, mut revoked) = (OpenedGrants::new(2), Revoked::default());
        for n in [5, 3] {
            assert_eq!(opened.admit(GrantId(n), &revoked), Ok(()));
            opened.enter(GrantId(n));
        }
        assert_eq!(opened.admit(GrantId(4), &revoked), Err(Refusal::TableFull));
        opened.close(GrantId(5));
        assert_eq!(opened.admit(GrantId(4), &revoked), Ok(()), "and never entered");
        revoked.push(GrantId(4));
        assert_eq!(opened.admit(GrantId(4), &revoked), Err(Refusal::UnknownGrant));
        revoked.forget(GrantId(4));
        assert_eq!(opened.admit(GrantId(4), &revoked), Ok(()), "shared again");
        assert!(opened.iter().eq([(GrantId(3), false)]));
    }

    #[test]
    fn notice_repeats_until_answered() {
        let config = LinkConfig::default();
        let mut opened = OpenedGrants::new(8);
        opened.enter(GrantId(1));
        assert!(opened.revoke(GrantId(1), 100) && !opened.revoke(GrantId(2), 100));
        let mut times_ns = Vec::new();
        for _ in 0..12 {
            let at_ns = opened.poll_timeout().unwrap();
            assert_eq!(opened.next_notice(at_ns, &config), Some(GrantId(1)));
            assert_eq!(opened.next_notice(at_ns, &config), None);
            times_ns.push(at_ns);
        }
        assert_eq!(times_ns[1] - times_ns[0], config.replay_min_ns);
        assert_eq!(times_ns[11] - times_ns[10], config.replay_max_ns);
        opened.close(GrantId(1));
        assert_eq!((opened.iter().count(), opened.poll_timeout()), (0, None));

        opened.enter(GrantId(2));
        opened.revoke(GrantId(2), 100);
        assert_eq!(opened.next_notice(99 + config.silence_ns, &config), Some(GrantId(2)));
        assert_eq!(opened.next_notice(100 + 2 * config.silence_ns, &config), None);
        assert_eq!((opened.iter().count(), opened.poll_timeout()), (0, None));
    }
}
