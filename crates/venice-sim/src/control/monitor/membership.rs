//! One of several Monitor Nodes: its signs of life, and the changes that it receives.

use std::collections::BTreeMap;

use venice_rack::monitor::Change;
use venice_rack::monitor_node::{Membership, Sign};

use super::opening::{ANSWER_WITHIN_NS, PAUSE_NS, tenure};
use super::{Monitor, MonitorTag, MonitorTimer};
use crate::control::desk::{Desk, Effect, Tag, Timer};
use crate::control::messages::{Batch, Broken, Request, Response};
use crate::control::party::Party;

pub(super) const SIGN_EVERY_NS: u64 = 1_000_000_000;

pub(super) struct Member {
    pub(super) membership: Membership<u64>,
    /// Revision up to which changes were received.
    heard: u64,
    /// The number of the sign that is being sent, if one is.
    signing: Option<u64>,
    pub(super) transactions: u64,
}

impl Member {
    pub(super) fn new(member: u64, known_ns: u64) -> Self {
        let membership = Membership::new(member, known_ns);
        Self { membership, heard: 0, signing: None, transactions: 0 }
    }

    /// Begins with the contents of the store.
    pub(super) fn begin(&mut self, revision: u64, signs: BTreeMap<u64, Sign>) {
        self.heard = revision;
        for (member, sign) in signs {
            self.membership.handle_sign(member, Some(sign));
        }
    }

    /// Receives a batch of the watch; returns its changes if they are new.
    pub(super) fn learn(&mut self, batch: Batch) -> Option<(u64, Vec<Change>)> {
        if batch.revision <= self.heard {
            return None;
        }
        assert_eq!(batch.revision, self.heard + 1, "the watch skipped a revision");
        self.heard = batch.revision;
        for (member, sign) in batch.signs {
            self.membership.handle_sign(member, sign);
        }
        Some((batch.revision, batch.changes))
    }
}

impl Monitor {
    pub(super) fn give_sign(&mut self, desk: &mut Desk<'_>) {
        desk.timer(SIGN_EVERY_NS, Timer::Monitor(MonitorTimer::Sign));
        let Some(member) = self.member_mut().filter(|it| it.signing.is_none()) else { return };
        let sign = member.membership.next_sign(desk.now_ns);
        let number = sign.number;
        member.signing = Some(number);
        let tag = Tag::Monitor(MonitorTag::Sign { number });
        let request = Request::Sign(*member.membership.own(), sign);
        desk.call(Party::Store, request, ANSWER_WITHIN_NS, tag);
    }

    pub(super) fn signed(
        &mut self,
        desk: &mut Desk<'_>,
        number: u64,
        outcome: Result<Response, Broken>,
    ) {
        let Some(member) = self.member_mut().filter(|it| it.signing == Some(number)) else {
            return;
        };
        member.signing = None;
        if matches!(outcome, Ok(Response::Signed { is_member: false })) {
            // The others no longer count it as a member.
            self.begin_anew(desk);
        }
    }

    pub(super) fn check_tenure(&mut self, desk: &mut Desk<'_>) {
        let Some(member) = self.member_mut() else { return };
        match member.membership.until_ns().checked_sub(desk.now_ns).filter(|left_ns| *left_ns > 0) {
            Some(left_ns) => desk.timer(left_ns, tenure()),
            None => self.begin_anew(desk),
        }
    }

    /// Stops serving until it has read the store again.
    pub(super) fn begin_anew(&mut self, desk: &mut Desk<'_>) {
        let party = desk.party;
        self.crash();
        desk.out.effects.push_back(Effect::BeginAnew { party, after_ns: PAUSE_NS });
    }
}
