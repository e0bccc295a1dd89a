//! Start of service: from the file, or as one of several.

use venice_rack::monitor::{CountingKeys, MonitorCore, Record, View};
use venice_rack::monitor_node::MonitorNode;
use venice_rack::pausable_clock::TICK_NS;

use super::driver::Driver;
use super::membership::{Member, SIGN_EVERY_NS};
use super::{Monitor, MonitorTag, MonitorTimer, State};
use crate::control::desk::{Desk, Fact, Tag, Timer};
use crate::control::messages::{Broken, Request, Response};
use crate::control::party::Party;

/// Time limit of the store's answer.
pub(super) const ANSWER_WITHIN_NS: u64 = 2_000_000_000;
/// Longest lifetime of a certificate, in milliseconds.
const CERTIFICATE_LIFE_MS: u64 = 30 * 86_400_000;
/// Pause before a retry after a failure.
pub(super) const PAUSE_NS: u64 = 200_000_000;

impl Monitor {
    /// Sends the first sign of life; the store is read after it.
    pub(super) fn open(&mut self, desk: &mut Desk<'_>) {
        self.state = State::Opening(None);
        let tag = Tag::Monitor(MonitorTag::Join);
        desk.call(Party::Store, Request::Join, ANSWER_WITHIN_NS, tag);
    }

    pub(super) fn joined(&mut self, desk: &mut Desk<'_>, outcome: Result<Response, Broken>) {
        let Ok(Response::Joined { member }) = outcome else {
            return self.open_later(desk);
        };
        // It was sent before the answer came: the state is at most as old as that.
        let known_ns = desk.now_ns.saturating_sub(ANSWER_WITHIN_NS);
        self.state = State::Opening(Some(Member::new(member, known_ns)));
        let tag = Tag::Monitor(MonitorTag::Load);
        desk.call(Party::Store, Request::Load, ANSWER_WITHIN_NS, tag);
    }

    pub(super) fn loaded(&mut self, desk: &mut Desk<'_>, outcome: Result<Response, Broken>) {
        let State::Opening(member) = &mut self.state else { return };
        let (Some(mut member), Ok(Response::Loaded(snapshot))) = (member.take(), outcome) else {
            return self.open_later(desk);
        };
        let records = snapshot.records.iter().map(|(_, record)| record.clone()).collect();
        member.begin(snapshot.revision, snapshot.signs);
        let until_ns = member.membership.until_ns();
        desk.timer(until_ns.saturating_sub(desk.now_ns), tenure());
        desk.timer(SIGN_EVERY_NS, Timer::Monitor(MonitorTimer::Sign));
        self.serve(desk, records, Some((member, View::new(snapshot.records))));
    }

    fn open_later(&mut self, desk: &mut Desk<'_>) {
        self.state = State::Opening(None);
        desk.timer(PAUSE_NS, Timer::Monitor(MonitorTimer::Open));
    }

    pub(super) fn serve(
        &mut self,
        desk: &mut Desk<'_>,
        records: Vec<Record>,
        shared: Option<(Member, View)>,
    ) {
        let clock_ns = self.clock.at(desk.now_ns);
        let life = u64::from(self.number) << 20 | self.starts;
        let keys = Box::new(CountingKeys(life << 32));
        let recover = match &shared {
            Some(_) => MonitorCore::recover_with_peers,
            None => MonitorCore::recover,
        };
        let core = recover(self.settings, keys, clock_ns, records);
        let (member, view) = shared.unzip();
        let node = MonitorNode::new(core, view, clock_ns, CERTIFICATE_LIFE_MS);
        self.state = State::Serving(Box::new(Driver::new(node, member)));
        desk.fact(Fact::Begins);
        desk.listen();
        desk.timer(self.clock.takes_ns(TICK_NS), Timer::Monitor(MonitorTimer::Tick));
        self.pump(desk);
    }
}

pub(super) fn tenure() -> Timer {
    Timer::Monitor(MonitorTimer::Tenure)
}
