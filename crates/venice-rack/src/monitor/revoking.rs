//! Who is turned out, and for how long that has to be remembered.

use super::admission::check_name;
use super::{Action, Change, Event, JoinTokenRecord, MonitorCore, Token};
use crate::NS_PER_MS;
use crate::revocation::{Revocation, RevocationNews, Revocations};
use crate::types::RackError;
use std::collections::BTreeSet;

/// Time between two looks at what can be forgotten. A clock that is wrong for less forgets nothing.
const LOOK_EVERY_NS: u64 = 3_600_000 * NS_PER_MS;
/// Doors' clocks are never so far behind.
const SLACK_MS: u64 = 86_400_000;

/// How long revocations matter.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The longest that certificates of this rack were ever good for, in milliseconds.
    pub(super) certificate_life_ms: u64,
    /// Revocations up to before this were past their use at the last look already, and at the one
    /// before it too: in milliseconds since 1970.
    over_at_last_look_ms: u64,
    over_before_ms: u64,
    next_look_ns: u64,
    /// Nodes that a token has let in since this process began.
    pub(super) let_in: BTreeSet<String>,
}

impl MonitorCore {
    /// An administrator turns the node `name` out: what was certified for it up to `until_ms`
    /// (milliseconds since 1970) is void, and tokens that it came in by or that name it are gone.
    /// A name that the rack does not know is turned out only if the administrator `is_sure`. In
    /// force at once ([`Self::revocations`]), answered by [`Action::ReplyDone`] once it is durable.
    pub fn handle_revoke(
        &mut self,
        now_ns: u64,
        until_ms: u64,
        token: Token,
        (name, is_sure): (&str, bool),
    ) {
        let result = self.check_revoke(name, is_sure);
        if result.is_ok() {
            self.turn_out(now_ns, until_ms, name);
        }
        self.actions.push_back(Action::ReplyDone { token, result });
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

    fn turn_out(&mut self, now_ns: u64, until_ms: u64, name: &str) {
        self.change(Change::PutRevocation(Revocation::new(name, until_ms)));
        self.memory.let_in.remove(name);
        let is_its = |record: &&JoinTokenRecord| record.used_by == name || record.node == name;
        let its: Vec<u64> = self.tokens.values().filter(is_its).map(|record| record.id).collect();
        for id in its {
            self.change(Change::DeleteToken(id));
        }
        let holder = self.rrt.by_name(name).map(|entry| entry.record.identity);
        if let Some(identity) = holder {
            let node = identity.node;
            let record = self.rrt.change_record(node, |record| record.is_turned_out = true);
            self.change(Change::PutNode(record));
            self.mark_down(now_ns, identity);
        }
        self.note(Event::NodeRevoked { name: name.to_owned() });
    }

    /// A node's door goes by revocations of this Monitor Node's making that it does not know (any
    /// more): its store was lost, or is an older one. What it signs for such a node since it began, it
    /// signs unknowing; so that is void too, up to `until_ms`, unless a token let the node in since.
    /// In force at once. True where it learnt something.
    pub fn handle_revocations_told(
        &mut self,
        now_ns: u64,
        until_ms: u64,
        told: Vec<Revocation>,
    ) -> bool {
        let mut has_learnt = false;
        for Revocation { node, until_ms: told_ms, .. } in told {
            let is_known = self.revoked.until_ms(&node).is_some_and(|known_ms| known_ms >= told_ms);
            if is_known || told_ms < self.memory.over_before_ms {
                continue;
            }
            has_learnt = true;
            if self.memory.let_in.contains(&node) {
                self.change(Change::PutRevocation(Revocation::new(node, told_ms)));
            } else {
                self.turn_out(now_ns, told_ms.max(until_ms), &node);
            }
        }
        has_learnt
    }

    /// What a node is told whose door goes by others.
    pub(super) fn revocation_news(&self, revoked_version: u64) -> Option<RevocationNews> {
        let is_other = revoked_version != self.revoked.version();
        let over_before_ms = self.memory.over_before_ms;
        is_other.then(|| RevocationNews { known: self.revoked.list(), over_before_ms })
    }

    /// Certificates are good for so long from now on. The longest counts, also after a restart.
    pub fn handle_certificate_life(&mut self, life_ms: u64) {
        if life_ms > self.memory.certificate_life_ms {
            self.change(Change::PutCertificateLife(life_ms));
        }
    }

    /// Forgets revocations when every certificate that they void has ended, as the time of day
    /// (`wall_ms`, in milliseconds since 1970) says at two looks an hour apart. To be called now and
    /// then; true where [`Self::revocations`] is another by it.
    pub fn handle_wall_clock(&mut self, now_ns: u64, wall_ms: u64) -> bool {
        if now_ns < self.memory.next_look_ns {
            return false;
        }
        self.memory.next_look_ns = now_ns.saturating_add(LOOK_EVERY_NS);
        let life_ms = self.memory.certificate_life_ms.saturating_add(SLACK_MS);
        let over_ms = wall_ms.saturating_sub(life_ms);
        let before_ms = over_ms.min(self.memory.over_at_last_look_ms);
        (self.memory.over_at_last_look_ms, self.memory.over_before_ms) = (over_ms, before_ms);
        let is_over = |it: &Revocation| it.until_ms < before_ms;
        let gone: Vec<Revocation> = self.revoked.list().into_iter().filter(is_over).collect();
        for revocation in &gone {
            self.change(Change::DeleteRevocation(revocation.node.clone()));
        }
        !gone.is_empty()
    }

    /// Who was turned out.
    pub fn revocations(&self) -> &Revocations {
        &self.revoked
    }
}
