//! Membership: performs what the logic of `venice-agent` asks for.

use venice_rack::agent_member::{Output, ReportCall, ReportResult};
use venice_rack::monitor_node::{Call, Reply};
use venice_rack::types::{HeartbeatReport, PortReport, RackError};

use super::{Agent, AgentTag, AgentTimer, name_of};
use crate::control::desk::{Desk, Tag, Timer};
use crate::control::messages::{Broken, Request, Response};
use crate::control::party::Party;

/// Time limit of joining.
const WITHIN_NS: u64 = 5_000_000_000;

impl Agent {
    /// Performs all outputs, and sets the next timer.
    pub(super) fn continue_membership(&mut self, desk: &mut Desk<'_>) {
        while let Some(output) = self.life.as_mut().and_then(|life| life.member.poll_output()) {
            self.perform(desk, output);
        }
        let clock_ns = self.clock.at(desk.now_ns);
        let Some(life) = &mut self.life else { return };
        let Some(due_ns) = life.member.poll_timeout() else { return };
        if life.member_due_ns.is_none_or(|set_ns| due_ns < set_ns) {
            life.member_due_ns = Some(due_ns);
            let after_ns = self.clock.takes_ns(due_ns.saturating_sub(clock_ns));
            desk.timer(after_ns, Timer::Agent(AgentTimer::Member));
        }
    }

    pub(super) fn member_due(&mut self, desk: &mut Desk<'_>) {
        let clock_ns = self.clock.at(desk.now_ns);
        let Some(life) = &mut self.life else { return };
        life.member_due_ns = life.member_due_ns.filter(|set_ns| *set_ns > clock_ns);
        life.member.handle_timeout(clock_ns);
        self.continue_membership(desk);
    }

    /// Reports that something is new.
    pub(super) fn report_change(&mut self, desk: &mut Desk<'_>) {
        let clock_ns = self.clock.at(desk.now_ns);
        let Some(life) = &mut self.life else { return };
        life.member.handle_change(clock_ns);
        self.continue_membership(desk);
    }

    fn perform(&mut self, desk: &mut Desk<'_>, output: Output) {
        let clock_ns = self.clock.at(desk.now_ns);
        let Some(life) = &mut self.life else { return };
        match output {
            Output::Register => self.join(desk, 0),
            Output::Write => {
                let Some(registered) = life.member.registered() else { return };
                life.report = Some(HeartbeatReport {
                    usage: Vec::new(),
                    peers_version: 0,
                    identity: registered.identity,
                    instance: life.member.registration().instance,
                    memory: life.node.report(),
                    links: Vec::new(),
                    port: PortReport::default(),
                    pressure: Default::default(),
                    door: Default::default(),
                });
            }
            Output::Report(call) => {
                let Some(report) = life.report.clone() else { return };
                let request = Request::Heartbeat(name_of(self.number), Box::new(report));
                self.call(desk, call, request);
            }
            Output::RegisterAt(call) => {
                let request = Call::Register(life.member.registration().clone()).into();
                self.call(desk, call, request);
            }
            Output::CalledBack(grants) => {
                let now_ns = life.node.now_ns(clock_ns);
                life.node.core_mut().handle_called_back(now_ns, &grants);
                self.settle(desk);
            }
            Output::Follow(ack) => life.node.core_mut().handle_draining(ack.is_draining),
        }
    }

    fn call(&self, desk: &mut Desk<'_>, call: ReportCall, request: Request) {
        let left_ns = call.until_ns.saturating_sub(self.clock.at(desk.now_ns));
        let within_ns = self.clock.takes_ns(left_ns);
        let tag = Tag::Agent(AgentTag::Report(call));
        desk.call(Party::Monitor(call.at as u16), request, within_ns, tag);
    }

    /// Requests registration at that Monitor Node.
    fn join(&mut self, desk: &mut Desk<'_>, at: u16) {
        let Some(life) = &self.life else { return };
        let request = Call::Register(life.member.registration().clone()).into();
        let tag = Tag::Agent(AgentTag::Join { at });
        desk.call(Party::Monitor(at), request, WITHIN_NS, tag);
    }

    pub(super) fn joined(
        &mut self,
        desk: &mut Desk<'_>,
        at: u16,
        outcome: Result<Response, Broken>,
    ) {
        let clock_ns = self.clock.at(desk.now_ns);
        let Some(life) = &mut self.life else { return };
        let registered = match outcome {
            Ok(Response::Replied(Reply::Registered(Ok(registered)))) => Some(registered),
            // The next one may answer.
            Err(_) if at + 1 < self.monitors => return self.join(desk, at + 1),
            _ => None,
        };
        if let Some(registered) = &registered {
            life.node.core_mut().set_epoch(registered.identity.epoch);
        }
        life.member.handle_registered(clock_ns, registered);
        self.continue_membership(desk);
    }

    /// Handles the outcome of a report, or of a registration on its way.
    pub(super) fn reported(
        &mut self,
        desk: &mut Desk<'_>,
        call: ReportCall,
        outcome: Result<Response, Broken>,
    ) {
        let clock_ns = self.clock.at(desk.now_ns);
        let Some(life) = &mut self.life else { return };
        let result = match outcome {
            Ok(Response::Acknowledged(Ok(ack))) => ReportResult::Acknowledged(Box::new(ack)),
            Ok(Response::Acknowledged(Err(RackError::NotRegistered))) => {
                ReportResult::NotRegistered
            }
            Ok(Response::Replied(Reply::Registered(Ok(registered)))) => {
                life.member.handle_known_again(call, registered);
                return self.continue_membership(desk);
            }
            _ => ReportResult::None,
        };
        life.member.handle_report_result(clock_ns, call, result);
        self.continue_membership(desk);
    }
}
