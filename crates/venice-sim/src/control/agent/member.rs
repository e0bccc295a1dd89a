//! Membership: joining, and independent reports to each Monitor Node.

use venice_rack::monitor_node::{Call, Reply};
use venice_rack::types::{
    CalledBack, HeartbeatAck, HeartbeatReport, PortReport, RackError, Registered,
};

use super::{Agent, AgentTag, AgentTimer, name_of};
use crate::control::desk::{Desk, Tag, Timer};
use crate::control::messages::{Broken, Request, Response};
use crate::control::party::Party;

/// First and longest pause between two attempts to join.
const MIN_PAUSE_NS: u64 = 100_000_000;
const MAX_PAUSE_NS: u64 = 2_000_000_000;
/// Time limit of joining, and of a report.
const WITHIN_NS: u64 = 5_000_000_000;
/// Pause before the next attempt to reach a Monitor Node that does not answer.
const PAUSE_NS: u64 = 1_000_000_000;

#[derive(Default)]
pub(super) struct Membership {
    /// `None`: not registered yet, or to join again.
    registered: Option<Registered>,
    pause_ns: u64,
    /// Number of times it has joined.
    round: u32,
    correspondents: Vec<Correspondent>,
    letter: Option<HeartbeatReport>,
}

/// Reporter to one Monitor Node.
#[derive(Clone, Default)]
struct Correspondent {
    is_busy: bool,
    /// True if it has not sent the newest report.
    is_behind: bool,
    is_answered: bool,
    called_back: Vec<CalledBack>,
}

/// The Monitor Node, the registration round, and the time of the request.
type Asked = (u16, u32, u64);

impl Agent {
    /// Requests registration at that Monitor Node.
    pub(super) fn join(&mut self, desk: &mut Desk<'_>, at: u16) {
        let Some(registration) = self.registration() else { return };
        let tag = Tag::Agent(AgentTag::Join { at });
        desk.call(Party::Monitor(at), Call::Register(registration).into(), WITHIN_NS, tag);
    }

    pub(super) fn joined(
        &mut self,
        desk: &mut Desk<'_>,
        at: u16,
        outcome: Result<Response, Broken>,
    ) {
        let Some(life) = &mut self.life else { return };
        match outcome {
            Ok(Response::Replied(Reply::Registered(Ok(registered)))) => {
                life.core.set_epoch(registered.identity.epoch);
                life.identity = Some(registered.identity);
                life.secret = registered.secret;
                let membership = &mut life.membership;
                membership.registered = Some(registered);
                membership.pause_ns = 0;
                membership.round += 1;
                membership.correspondents =
                    vec![Correspondent::default(); usize::from(self.monitors)];
                let round = membership.round;
                self.tick(desk, round);
            }
            // The next one may answer.
            Err(_) if at + 1 < self.monitors => self.join(desk, at + 1),
            _ => {
                let membership = &mut life.membership;
                let pause_ns = (2 * membership.pause_ns).clamp(MIN_PAUSE_NS, MAX_PAUSE_NS);
                membership.pause_ns = pause_ns;
                desk.timer(pause_ns, Timer::Agent(AgentTimer::Join));
            }
        }
    }

    /// Sends a periodic report.
    pub(super) fn tick(&mut self, desk: &mut Desk<'_>, round: u32) {
        let Some(registered) = self.member(round) else { return };
        self.write_letter(desk);
        let interval_ns = registered.heartbeat_interval_ms * 1_000_000;
        let takes_ns = self.clock.takes_ns(interval_ns);
        desk.timer(takes_ns, Timer::Agent(AgentTimer::Report { round }));
    }

    /// Returns the present registration if it is that of the given round.
    fn member(&self, round: u32) -> Option<Registered> {
        let membership = &self.life.as_ref()?.membership;
        membership.registered.filter(|_| membership.round == round)
    }

    /// Marks that there is something new to report.
    pub(super) fn write_letter(&mut self, desk: &mut Desk<'_>) {
        let Some(life) = &mut self.life else { return };
        let Some(registered) = life.membership.registered else { return };
        life.membership.letter = Some(HeartbeatReport {
            usage: Vec::new(),
            peers_version: 0,
            identity: registered.identity,
            instance: life.instance,
            memory: life.core.report(),
            links: Vec::new(),
            port: PortReport::default(),
            pressure: Default::default(),
            door: Default::default(),
        });
        for at in 0..self.monitors {
            if let Some(life) = &mut self.life {
                life.membership.correspondents[usize::from(at)].is_behind = true;
            }
            self.tell(desk, at);
        }
    }

    /// Sends the newest report, unless one is already being sent.
    fn tell(&mut self, desk: &mut Desk<'_>, at: u16) {
        let Some(life) = &mut self.life else { return };
        let membership = &mut life.membership;
        let correspondent = &mut membership.correspondents[usize::from(at)];
        if correspondent.is_busy || !correspondent.is_behind {
            return;
        }
        (correspondent.is_busy, correspondent.is_behind) = (true, false);
        let round = membership.round;
        self.report(desk, (at, round, desk.now_ns));
    }

    fn report(&mut self, desk: &mut Desk<'_>, (at, round, since_ns): Asked) {
        let letter = self.life.as_ref().and_then(|life| life.membership.letter.clone());
        let Some(letter) = letter else { return };
        let left_ns = (since_ns + WITHIN_NS).saturating_sub(desk.now_ns).max(1);
        let tag = Tag::Agent(AgentTag::Report { at, round, since_ns });
        desk.call(
            Party::Monitor(at),
            Request::Heartbeat(name_of(self.number), Box::new(letter)),
            left_ns,
            tag,
        );
    }

    pub(super) fn reported(
        &mut self,
        desk: &mut Desk<'_>,
        asked: Asked,
        outcome: Result<Response, Broken>,
    ) {
        let (at, round, since_ns) = asked;
        if self.member(round).is_none() {
            return;
        }
        match outcome {
            Ok(Response::Acknowledged(Ok(ack))) => self.acknowledged(desk, at, ack),
            Ok(Response::Acknowledged(Err(RackError::NotRegistered))) => {
                // The Monitor Node may have restarted, or may not have the registration yet.
                let Some(registration) = self.registration() else { return };
                let left_ns = (since_ns + WITHIN_NS).saturating_sub(desk.now_ns).max(1);
                let request = Call::Register(registration).into();
                let tag = Tag::Agent(AgentTag::Register { at, round, since_ns });
                desk.call(Party::Monitor(at), request, left_ns, tag);
            }
            _ => self.unanswered(desk, at, round),
        }
    }

    pub(super) fn known_again(
        &mut self,
        desk: &mut Desk<'_>,
        asked: Asked,
        outcome: Result<Response, Broken>,
    ) {
        let (at, round, _) = asked;
        let Some(known_as) = self.member(round) else { return };
        match outcome {
            Ok(Response::Replied(Reply::Registered(Ok(it))))
                if it.identity == known_as.identity =>
            {
                self.report(desk, asked);
            }
            // Another identity is registered: it has to join again.
            Ok(Response::Replied(Reply::Registered(Ok(_)))) => {
                if let Some(life) = &mut self.life {
                    life.membership.registered = None;
                }
                self.join(desk, 0);
            }
            _ => self.unanswered(desk, at, round),
        }
    }

    fn acknowledged(&mut self, desk: &mut Desk<'_>, at: u16, ack: HeartbeatAck) {
        let local_ns = self.now_ns(desk);
        let Some(life) = &mut self.life else { return };
        let correspondents = &mut life.membership.correspondents;
        let it = &mut correspondents[usize::from(at)];
        (it.is_busy, it.is_answered, it.called_back) = (false, true, ack.called_back);
        let is_first = !correspondents[..usize::from(at)].iter().any(|it| it.is_answered);
        let called_back: Vec<CalledBack> =
            correspondents.iter().flat_map(|it| it.called_back.clone()).collect();
        life.core.handle_called_back(local_ns, &called_back);
        if is_first {
            life.core.handle_draining(ack.is_draining);
        }
        self.look(desk);
        self.tell(desk, at);
    }

    fn unanswered(&mut self, desk: &mut Desk<'_>, at: u16, round: u32) {
        let local_ns = self.now_ns(desk);
        let Some(life) = &mut self.life else { return };
        let correspondents = &mut life.membership.correspondents;
        let it = &mut correspondents[usize::from(at)];
        it.is_answered = false;
        it.called_back.clear();
        let called_back: Vec<CalledBack> =
            correspondents.iter().flat_map(|it| it.called_back.clone()).collect();
        life.core.handle_called_back(local_ns, &called_back);
        desk.timer(PAUSE_NS, Timer::Agent(AgentTimer::Paused { at, round }));
    }

    pub(super) fn resume_reporting(&mut self, desk: &mut Desk<'_>, at: u16, round: u32) {
        if self.member(round).is_none() {
            return;
        }
        if let Some(life) = &mut self.life {
            life.membership.correspondents[usize::from(at)].is_busy = false;
        }
        self.tell(desk, at);
    }
}
