//! Revocation of nodes, and ids retention.

use super::admission::check_name;
use super::{Change, Event, JoinTokenRecord, MonitorCore, Token};
use crate::NS_PER_MS;
use crate::monitor_node::Reply;
use crate::revocation::{Revocation, RevocationNews, Revocations};
use crate::types::RackError;
use std::collections::BTreeSet;

/// Time between two checks for expired revocations. A clock that is wrong for less deletes none.
const CHECK_EVERY_NS: u64 = 3_600_000 * NS_PER_MS;
/// The most by which the clocks of nodes may be behind.
const SLACK_MS: u64 = 86_400_000;

/// The retention of revocations.
#[derive(Debug, Default)]
pub(super) struct Retention {
    /// The longest lifetime of certificates of this rack ever, in milliseconds.
    pub(super) certificate_life_ms: u64,
    /// Revocations up to before this were expired at the last check already, and at the one before
    /// it too: in milliseconds since 1970.
    over_at_last_check_ms: u64,
    over_before_ms: u64,
    next_check_ns: u64,
    /// Nodes admitted by a token since this process began.
    pub(super) admitted: BTreeSet<String>,
}

impl MonitorCore {
    /// Revokes the node `name`: ids certificates up to `until_ms` (milliseconds since 1970) are
    /// void, and tokens that it used or that name it are deleted. A name unknown to the rack is
    /// revoked only if the administrator `is_sure`. In force at once ([`Self::revocations`]),
    /// answered by [`Reply::Done`] once it is durable.
    pub fn handle_revoke(
        &mut self,
        now_ns: u64,
        until_ms: u64,
        token: Token,
        (name, is_sure): (&str, bool),
    ) {
        let result = self.check_revoke(name, is_sure);
        if result.is_ok() {
            self.revoke(now_ns, until_ms, name);
        }
        self.reply(token, Reply::Done(result));
    }

    fn check_revoke(&self, name: &str, is_sure: bool) -> Result<(), RackError> {
        check_name(name)?;
        let is_known = self.rrt.by_name(name).is_some()
            || self.tokens.values().any(|record| record.used_by == name || record.node == name)
            || self.revoked.until_ms(name).is_some();
        match is_known || is_sure {
            true => Ok(()),
            false => Err(RackError::UnknownNode(name.to_owned())),
        }
    }

    fn revoke(&mut self, now_ns: u64, until_ms: u64, name: &str) {
        self.change(Change::PutRevocation(Revocation::new(name, until_ms)));
        self.retention.admitted.remove(name);
        let is_of_node = |record: &&JoinTokenRecord| record.used_by == name || record.node == name;
        let ids: Vec<u64> =
            self.tokens.values().filter(is_of_node).map(|record| record.id).collect();
        for id in ids {
            self.change(Change::DeleteToken(id));
        }
        let holder = self.rrt.by_name(name).map(|entry| entry.record.identity);
        if let Some(identity) = holder {
            let node = identity.node;
            let record = self.rrt.change_record(node, |record| record.is_revoked = true);
            self.change(Change::PutNode(record));
            self.mark_down(now_ns, identity);
        }
        self.note(Event::NodeRevoked { name: name.to_owned() });
    }

    /// Takes revocations that a node enforces and this Monitor Node lacks, though it made them: ids
    /// store was lost, or is an older one. Certificates that it signed for such a node since it
    /// began were signed in ignorance. They are void too, up to `until_ms`, unless a token admitted
    /// the node since. In force at once. Returns true if any was new.
    pub fn handle_reported_revocations(
        &mut self,
        now_ns: u64,
        until_ms: u64,
        reported: Vec<Revocation>,
    ) -> bool {
        let mut has_learnt = false;
        for Revocation { node, until_ms: reported_ms, .. } in reported {
            let is_known =
                self.revoked.until_ms(&node).is_some_and(|known_ms| known_ms >= reported_ms);
            if is_known || reported_ms < self.retention.over_before_ms {
                continue;
            }
            has_learnt = true;
            if self.retention.admitted.contains(&node) {
                self.change(Change::PutRevocation(Revocation::new(node, reported_ms)));
            } else {
                self.revoke(now_ns, reported_ms.max(until_ms), &node);
            }
        }
        has_learnt
    }

    /// Returns the revocations for a node that enforces other ones.
    pub(super) fn revocation_news(&self, revoked_version: u64) -> Option<RevocationNews> {
        let is_other = revoked_version != self.revoked.version();
        let over_before_ms = self.retention.over_before_ms;
        is_other.then(|| RevocationNews { known: self.revoked.list(), over_before_ms })
    }

    /// Records the lifetime of certificates from now on. The longest counts, also after a restart.
    pub fn handle_certificate_life(&mut self, life_ms: u64) {
        if life_ms > self.retention.certificate_life_ms {
            self.change(Change::PutCertificateLife(life_ms));
        }
    }

    /// Deletes revocations once every certificate they void has expired, by the time of day
    /// (`wall_ms`, in milliseconds since 1970) at two checks an hour apart. To be called regularly.
    /// Returns true if [`Self::revocations`] has changed.
    pub fn handle_wall_clock(&mut self, now_ns: u64, wall_ms: u64) -> bool {
        if now_ns < self.retention.next_check_ns {
            return false;
        }
        self.retention.next_check_ns = now_ns.saturating_add(CHECK_EVERY_NS);
        let life_ms = self.retention.certificate_life_ms.saturating_add(SLACK_MS);
        let over_ms = wall_ms.saturating_sub(life_ms);
        let before_ms = over_ms.min(self.retention.over_at_last_check_ms);
        (self.retention.over_at_last_check_ms, self.retention.over_before_ms) =
            (over_ms, before_ms);
        let is_over = |it: &Revocation| it.until_ms < before_ms;
        let gone: Vec<Revocation> = self.revoked.list().into_iter().filter(is_over).collect();
        for revocation in &gone {
            self.change(Change::DeleteRevocation(revocation.node.clone()));
        }
        !gone.is_empty()
    }

    /// Returns the revoked nodes.
    pub fn revocations(&self) -> &Revocations {
        &self.revoked
    }
}
