//! The other Monitor Nodes: signs of life, nodes that do not report to them, and the time for which the
//! present state is valid.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use venice_rack::monitor::{Change, View};
use venice_wire::NodeId;

use super::opening::{ANSWER_WITHIN_NS, PAUSE_NS, tenure};
use super::{Monitor, MonitorTag, MonitorTimer};
use crate::control::desk::{Desk, Effect, Tag, Timer};
use crate::control::messages::{Batch, Broken, Request, Response, Sign};
use crate::control::party::Party;

pub(super) const SIGN_EVERY_NS: u64 = 1_000_000_000;
/// Time after its last observed sign of life after which a Monitor Node stops serving, in
/// nanoseconds.
pub(super) const FRESH_FOR_NS: u64 = 6_000_000_000;

pub(super) struct Membership {
    pub(super) member: u64,
    pub(super) view: View,
    /// Revision up to which changes were received.
    heard: u64,
    /// Time until which its state is valid, in nanoseconds.
    pub(super) until_ns: u64,
    /// Signs sent and not yet observed, with their times.
    given: VecDeque<(u64, u64)>,
    signs: u64,
    is_signing: bool,
    silent: BTreeSet<NodeId>,
    /// By other Monitor Node: the nodes that do not report to it.
    others: BTreeMap<u64, BTreeSet<NodeId>>,
    pub(super) transactions: u64,
}

impl Membership {
    pub(super) fn new(member: u64, revision: u64, until_ns: u64) -> Self {
        Self {
            member,
            view: View::default(),
            heard: revision,
            until_ns,
            given: VecDeque::new(),
            signs: 0,
            is_signing: false,
            silent: BTreeSet::new(),
            others: BTreeMap::new(),
            transactions: 0,
        }
    }

    /// Begins with the contents of the store.
    pub(super) fn begin(&mut self, revision: u64, view: View, signs: BTreeMap<u64, Sign>) {
        (self.heard, self.view) = (revision, view);
        for (member, sign) in signs {
            self.hear(member, Some(sign));
        }
    }

    /// Receives a batch of the watch; returns its new changes.
    pub(super) fn learn(&mut self, batch: Batch) -> Vec<Change> {
        if batch.revision <= self.heard {
            return Vec::new();
        }
        assert_eq!(batch.revision, self.heard + 1, "the watch skipped a revision");
        self.heard = batch.revision;
        for (member, sign) in batch.signs {
            self.hear(member, sign);
        }
        self.view.learn(batch.revision, batch.changes)
    }

    fn hear(&mut self, member: u64, sign: Option<Sign>) {
        match sign {
            Some(sign) if member == self.member => {
                while let Some((number, at_ns)) = self.given.front().copied()
                    && number <= sign.number
                {
                    self.given.pop_front();
                    if number == sign.number {
                        self.until_ns = self.until_ns.max(at_ns + FRESH_FOR_NS);
                    }
                }
            }
            Some(sign) => drop(self.others.insert(member, sign.silent)),
            None => drop(self.others.remove(&member)),
        }
    }

    /// Returns the nodes that report to none of the others; `None`: there are no others.
    pub(super) fn silent_elsewhere(&self) -> Option<BTreeSet<NodeId>> {
        self.others.values().cloned().reduce(|all, one| &all & &one)
    }

    pub(super) fn tell_silent(&mut self, silent: BTreeSet<NodeId>) {
        self.silent = silent;
    }
}

impl Monitor {
    pub(super) fn give_sign(&mut self, desk: &mut Desk<'_>) {
        desk.timer(SIGN_EVERY_NS, Timer::Monitor(MonitorTimer::Sign));
        let Some(membership) = self.membership_mut().filter(|it| !it.is_signing) else { return };
        membership.signs += 1;
        membership.is_signing = true;
        let number = membership.signs;
        membership.given.push_back((number, desk.now_ns));
        let sign = Sign { member: membership.member, number, silent: membership.silent.clone() };
        let tag = Tag::Monitor(MonitorTag::Sign { number });
        desk.call(Party::Store, Request::Sign(sign), ANSWER_WITHIN_NS, tag);
    }

    pub(super) fn signed(
        &mut self,
        desk: &mut Desk<'_>,
        number: u64,
        outcome: Result<Response, Broken>,
    ) {
        let Some(membership) = self.membership_mut().filter(|it| it.signs == number) else {
            return;
        };
        membership.is_signing = false;
        if matches!(outcome, Ok(Response::Signed { is_member: false })) {
            // The others no longer count it as a member.
            self.begin_anew(desk);
        }
    }

    pub(super) fn check_tenure(&mut self, desk: &mut Desk<'_>) {
        let Some(membership) = self.membership_mut() else { return };
        match membership.until_ns.checked_sub(desk.now_ns).filter(|left_ns| *left_ns > 0) {
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
