//! Begin and end of faults, and the operator who drains nodes.

use std::collections::BTreeMap;

use venice_rack::monitor_node::{Call, Order, Reply};

use super::desk::{Desk, Tag, Timer};
use super::messages::{Broken, Response};
use super::party::Party;
use super::scenario::FaultKind;
use super::world::{Brought, Event, World};

/// Time limit of the operator's calls, and its pause before a retry.
const OPERATOR_WITHIN_NS: u64 = 3_000_000_000;
const OPERATOR_PAUSE_NS: u64 = 300_000_000;

/// The operator: repeats each drain until it is confirmed.
#[derive(Debug, Default)]
pub(super) struct Operator {
    /// By donor: number of faults that want it drained, and true if the state is confirmed.
    wanted: BTreeMap<u16, (u32, bool)>,
}

impl Operator {
    pub(super) fn want(&mut self, desk: &mut Desk<'_>, donor: u16, drains: bool) {
        let (wanted, is_said) = self.wanted.entry(donor).or_default();
        *wanted = if drains { *wanted + 1 } else { wanted.saturating_sub(1) };
        *is_said = false;
        desk.timer(0, Timer::Operator(donor));
    }

    pub(super) fn see_to(&mut self, desk: &mut Desk<'_>, donor: u16, monitors: u16) {
        let Some((wanted, false)) = self.wanted.get(&donor).copied() else { return };
        let drains = wanted > 0;
        let order = Order::Drain { name: super::agent::name_of(donor), undo: !drains };
        let request = Call::Order(order).into();
        let at = desk.rng.below(monitors.into()) as u16;
        let tag = Tag::Operator { donor, drains };
        desk.call(Party::Monitor(at), request, OPERATOR_WITHIN_NS, tag);
    }

    pub(super) fn outcome(
        &mut self,
        desk: &mut Desk<'_>,
        (donor, drains): (u16, bool),
        outcome: Result<Response, Broken>,
    ) {
        let Some((wanted, is_said)) = self.wanted.get_mut(&donor) else { return };
        if drains != (*wanted > 0) {
            return;
        }
        match outcome {
            Ok(Response::Replied(Reply::Done(Ok(())))) => *is_said = true,
            _ => desk.timer(OPERATOR_PAUSE_NS, Timer::Operator(donor)),
        }
    }

    /// Repeats all former requests once more: an earlier call may have arrived last.
    pub(super) fn doubt(&mut self, desk: &mut Desk<'_>) {
        for (donor, (_, is_said)) in &mut self.wanted {
            *is_said = false;
            desk.timer(0, Timer::Operator(*donor));
        }
    }
}

impl World<'_> {
    /// Schedules all events known in advance.
    pub(super) fn plan(&mut self) {
        for (number, fault) in self.scenario.faults.iter().enumerate() {
            self.events.push(fault.at.0, Event::FaultBegins(number));
            self.events.push(fault.end_ns(), Event::FaultEnds(number));
        }
        self.plan_peace();
    }

    pub(super) fn begin_fault(&mut self, number: usize) {
        let fault = &self.scenario.faults[number];
        *self.faults.entry(fault.name()).or_default() += 1;
        self.trace.note(&[self.now_ns, number as u64]);
        match fault.kind.clone() {
            FaultKind::Crash { who } => self.down(who),
            FaultKind::Freeze { who } => {
                let standing = self.standing(who);
                if standing.downs == 0 {
                    standing.frozen.insert(number);
                }
            }
            FaultKind::Cut { from, to, both } => {
                self.network.cut(from, to, true);
                if both {
                    self.network.cut(to, from, true);
                }
            }
            FaultKind::Isolate { who } => self.network.isolate(who, true),
            FaultKind::Storm { impairment } => self.network.storm(number, Some(impairment)),
            FaultKind::Drain { donor } => self.drain(donor, true),
            FaultKind::Pressure { donor, slabs } => self.want_back(donor, slabs),
            FaultKind::Break { donor } => self.break_devices(donor, true),
        }
    }

    pub(super) fn end_fault(&mut self, number: usize) {
        match self.scenario.faults[number].kind.clone() {
            FaultKind::Crash { who } => self.up(who),
            FaultKind::Freeze { who } => self.thaw(who, number),
            FaultKind::Cut { from, to, both } => {
                self.network.cut(from, to, false);
                if both {
                    self.network.cut(to, from, false);
                }
            }
            FaultKind::Isolate { who } => self.network.isolate(who, false),
            FaultKind::Storm { .. } => self.network.storm(number, None),
            FaultKind::Drain { donor } => self.drain(donor, false),
            FaultKind::Pressure { donor, .. } => self.want_back(donor, 0),
            FaultKind::Break { donor } => self.break_devices(donor, false),
        }
    }

    fn drain(&mut self, donor: u16, drains: bool) {
        self.as_operator(|operator, desk| operator.want(desk, donor, drains));
    }

    fn want_back(&mut self, donor: u16, slabs: u32) {
        self.bring(Party::Donor(donor), Brought::WantBack(slabs));
    }

    fn break_devices(&mut self, donor: u16, begins: bool) {
        self.bring(Party::Donor(donor), Brought::BreakDevices(begins));
    }
}
