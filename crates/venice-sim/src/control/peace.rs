//! The end of a run: faults end, programs end, probes are served, and release all.

use super::agent::DEVICES;
use super::desk::Desk;
use super::faults::Operator;
use super::judge::Scene;
use super::network::RESEND_NS;
use super::party::Party;
use super::recipient::Wish;
use super::scenario::{FaultKind, Impairment, Scenario};
use super::world::{Brought, Event, World, frozen_recipients};

/// Time between served and agreed: reports come every second.
const SETTLES_NS: u64 = 3_000_000_000;
/// Writes of a Monitor Node for a request: before its donors lend and after.
const WRITES_OF_REQUEST: u64 = 2;
/// Time for all releases, and their reports.
const GIVES_BACK_NS: u64 = 6_000_000_000;

/// A phase of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No fault is active; outstanding messages may be late.
    Calm,
    /// No message is outstanding: programs end, and probes request each device and all memory of
    /// each donor.
    Peace,
    /// All probes are served.
    Served,
    /// All tables agree, and the probes release.
    Agreed,
    /// All memory is free again.
    Empty,
    Over,
}

/// Returns the probes' requests, which show that all is available: one for the memory of each
/// donor, and for each device.
pub(super) fn probes(scenario: &Scenario) -> impl Iterator<Item = Wish> + use<> {
    let (slabs, has_devices) = (scenario.slabs, scenario.devices);
    (0..scenario.donors).flat_map(move |donor| {
        let devices = DEVICES.into_iter().filter(move |_| has_devices);
        let devices = devices.map(move |(kind, _, units)| Wish::device(donor, kind, units));
        [Wish::whole(donor, slabs)].into_iter().chain(devices)
    })
}

impl World<'_> {
    pub(super) fn plan_peace(&mut self) {
        let calm_ns = self.scenario.calm_ns();
        let peace_ns = calm_ns + self.latest_ns();
        let served_ns = peace_ns + 2 * self.scenario.lease.0 + self.writing_ns();
        let agreed_ns = served_ns + SETTLES_NS;
        let empty_ns = agreed_ns + GIVES_BACK_NS;
        let phases = [
            (calm_ns, Phase::Calm),
            (peace_ns, Phase::Peace),
            (served_ns, Phase::Served),
            (agreed_ns, Phase::Agreed),
            (empty_ns, Phase::Empty),
            (empty_ns, Phase::Over),
        ];
        for (at_ns, phase) in phases {
            self.events.push(at_ns, Event::Phase(phase));
        }
    }

    /// Returns the longest flight time of a message sent at the first moment of calm.
    fn latest_ns(&self) -> u64 {
        let storms = self.scenario.faults.iter().filter_map(|fault| match &fault.kind {
            FaultKind::Storm { impairment } => Some(*impairment),
            _ => None,
        });
        let worst = storms.fold(self.scenario.network, Impairment::worst);
        // Messages held by a cut leave a little later.
        RESEND_NS + worst.latency.0 + worst.jitter.0 + worst.latest().0
    }

    /// Returns the longest time of the store for all writes. Several Monitor Nodes conflict there,
    /// so they count as one; calls wait while one waits for the store.
    fn writing_ns(&self) -> u64 {
        if self.scenario.monitors == 1 {
            return 0;
        }
        let network = &self.scenario.network;
        let there_and_back_ns = 2 * (network.latency.0 + network.jitter.0);
        self.recipients.len() as u64 * WRITES_OF_REQUEST * there_and_back_ns
    }

    pub(super) fn begin_phase(&mut self, phase: Phase) {
        match phase {
            Phase::Calm => self.network.calm(),
            Phase::Peace => {
                self.as_operator(Operator::doubt);
                self.tell_recipients(|| Brought::End);
            }
            Phase::Served => self.judge_all(|judge, scene| judge.check_served(scene)),
            Phase::Agreed => {
                self.judge_all(|judge, scene| judge.check_agreement(scene, false));
                self.tell_recipients(|| Brought::LetGo);
            }
            Phase::Empty => self.judge_all(|judge, scene| judge.check_agreement(scene, true)),
            Phase::Over => {}
        }
    }

    fn tell_recipients(&mut self, brought: impl Fn() -> Brought) {
        for number in 0..self.recipients.len() as u16 {
            self.bring(Party::Recipient(number), brought());
        }
    }

    fn judge_all(&mut self, check: impl FnOnce(&mut super::judge::Judge, &Scene<'_>)) {
        let frozen = frozen_recipients(&self.standings);
        let scene = Scene {
            now_ns: self.now_ns,
            agents: &self.agents,
            monitors: &self.monitors,
            recipients: &self.recipients,
            store: &self.store,
            frozen: &frozen,
        };
        check(&mut self.judge, &scene);
    }

    /// Runs an action of the operator.
    pub(super) fn as_operator(&mut self, act: impl FnOnce(&mut Operator, &mut Desk<'_>)) {
        let party = Party::Operator;
        let rng = self.rngs.get_mut(&party).expect("every participant has random numbers");
        let mut desk = Desk { now_ns: self.now_ns, rng, out: &mut self.out, party };
        act(&mut self.operator, &mut desk);
    }
}
