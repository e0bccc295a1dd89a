//! Start of service: from the file, or as one of several.

use venice_rack::monitor::{MonitorCore, Record, View};
use venice_rack::pausable_clock::{PausableClock, TICK_NS};

use super::driver::Driver;
use super::membership::{FRESH_FOR_NS, Membership, SIGN_EVERY_NS};
use super::{Keys, Monitor, MonitorTag, MonitorTimer, State};
use crate::control::desk::{Desk, Fact, Tag, Timer};
use crate::control::messages::{Broken, Request, Response};
use crate::control::party::Party;

/// Time limit of the store's answer.
pub(super) const ANSWER_WITHIN_NS: u64 = 2_000_000_000;
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
        let Ok(Response::Joined { member, revision }) = outcome else {
            return self.open_later(desk);
        };
        // It was sent before the answer came: the state is at most as old as that.
        let until_ns = desk.now_ns.saturating_sub(ANSWER_WITHIN_NS) + FRESH_FOR_NS;
        self.state = State::Opening(Some(Membership::new(member, revision, until_ns)));
        let tag = Tag::Monitor(MonitorTag::Load);
        desk.call(Party::Store, Request::Load, ANSWER_WITHIN_NS, tag);
    }

    pub(super) fn loaded(&mut self, desk: &mut Desk<'_>, outcome: Result<Response, Broken>) {
        let State::Opening(membership) = &mut self.state else { return };
        let (Some(mut membership), Ok(Response::Loaded(snapshot))) = (membership.take(), outcome)
        else {
            return self.open_later(desk);
        };
        let records = snapshot.records.iter().map(|(_, record)| record.clone()).collect();
        membership.begin(snapshot.revision, View::new(snapshot.records), snapshot.signs);
        desk.timer(membership.until_ns.saturating_sub(desk.now_ns), tenure());
        desk.timer(SIGN_EVERY_NS, Timer::Monitor(MonitorTimer::Sign));
        self.serve(desk, records, Some(membership));
    }

    fn open_later(&mut self, desk: &mut Desk<'_>) {
        self.state = State::Opening(None);
        desk.timer(PAUSE_NS, Timer::Monitor(MonitorTimer::Open));
    }

    pub(super) fn serve(
        &mut self,
        desk: &mut Desk<'_>,
        records: Vec<Record>,
        membership: Option<Membership>,
    ) {
        let clock_ns = self.clock.at(desk.now_ns);
        let life = u64::from(self.number) << 20 | self.starts;
        let keys = Box::new(Keys(life << 32));
        let recover = match &membership {
            Some(_) => MonitorCore::recover_with_peers,
            None => MonitorCore::recover,
        };
        let mut core = recover(self.settings, keys, clock_ns, records);
        core.handle_certificate_life(30 * 86_400_000);
        let driver = Driver::new(core, PausableClock::new(clock_ns), membership);
        self.state = State::Serving(Box::new(driver));
        desk.fact(Fact::Begins);
        desk.listen();
        desk.timer(self.clock.takes_ns(TICK_NS), Timer::Monitor(MonitorTimer::Tick));
        self.pump(desk);
    }
}

pub(super) fn tenure() -> Timer {
    Timer::Monitor(MonitorTimer::Tenure)
}
