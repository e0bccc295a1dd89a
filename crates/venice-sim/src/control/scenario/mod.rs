//! Scenarios as data: the rack, the impairment of its messages, its programs' workload, and its
//! faults. A scenario is a TOML file, or drawn from a seed.

mod draw;
mod fault;

use serde::{Deserialize, Serialize};

pub use self::draw::Bounds;
pub use self::fault::{Fault, FaultKind};
use super::party::Party;
pub use crate::scenario::BadScenario;
use crate::scenario::text;
use venice_simkernel::units::{Nanos, Share};

/// Largest number of donors and of recipients.
pub const MAX_NODES: u16 = 64;
/// Largest number of Monitor Nodes.
pub const MAX_MONITORS: u16 = 5;
/// Largest offset between clocks, as the README states it.
const MOST_APART: Nanos = Nanos(600_000_000_000);

/// One run of a rack's control plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// Seed of all random numbers of the run.
    #[serde(with = "crate::scenario::seed_text")]
    pub seed: u64,
    /// Nodes that lend.
    pub donors: u16,
    /// Nodes whose programs borrow, one program at a time each.
    pub recipients: u16,
    /// Monitor Nodes: one has a file for its store, several share one.
    pub monitors: u16,
    /// Slabs that each donor lends.
    pub slabs: u32,
    /// True if each donor lends an accelerator, a network card and storage too.
    pub devices: bool,
    /// Lease of a grant.
    pub lease: Nanos,
    /// Time during which programs start and end; then all faults end, and the rack comes to rest.
    pub span: Nanos,
    /// Permanent impairment of messages.
    pub network: Impairment,
    /// Errors of clocks.
    pub clocks: Clocks,
    /// Workload of the programs.
    pub workload: Workload,
    /// Faults.
    #[serde(rename = "fault")]
    pub faults: Vec<Fault>,
}

/// Impairment of messages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Impairment {
    /// Shortest delay.
    pub latency: Nanos,
    /// Largest extra delay.
    pub jitter: Nanos,
    /// Share of messages lost silently.
    pub loss: Share,
    /// Share of messages whose connection breaks, before or after their arrival: the sender sees
    /// it, and repeats its call.
    pub resets: Share,
    /// Share of messages delayed further, up to [`Impairment::late_by`].
    pub late: Share,
    /// Largest such delay.
    pub late_by: Nanos,
}

impl Impairment {
    /// Returns the impairment under which messages fare as badly as under each of the two.
    pub(super) fn worst(self, other: Self) -> Self {
        Self {
            latency: self.latency.max(other.latency),
            jitter: self.jitter.max(other.jitter),
            loss: self.loss.max(other.loss),
            resets: self.resets.max(other.resets),
            late: self.late.max(other.late),
            late_by: self.latest().max(other.latest()),
        }
    }

    /// Returns the largest delay beyond the jitter.
    pub(super) fn latest(self) -> Nanos {
        if self.late.0 > 0 { self.late_by } else { Nanos(0) }
    }
}

/// Errors of clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Clocks {
    /// Largest offset between two of them; a process that starts may find its own corrected, or
    /// wrong.
    pub apart: Nanos,
    /// Largest drift from the true time.
    pub drift: Share,
}

/// Workload of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// Mean time between two programs of a recipient.
    pub think: Nanos,
    /// Mean time between a program's grant and its release.
    pub hold: Nanos,
    /// Largest number of slabs in a request.
    pub max_slabs: u32,
    /// Share of programs that want a device, if there are some.
    pub device: Share,
    /// Share of programs that name a donor.
    pub named: Share,
    /// Share of programs that want two replicas.
    pub copies: Share,
    /// Share of programs that queue if there is no room.
    pub wait: Share,
    /// Share of those that preempt grants of lower priority.
    pub preempt: Share,
    /// Share of programs that die without release.
    pub die: Share,
    /// Share of programs that transfer their grants to another user instead of a release.
    pub transfer: Share,
}

impl Scenario {
    /// Parses a scenario from TOML.
    ///
    /// # Errors
    /// With the mistake in the text.
    pub fn from_toml(text: &str) -> Result<Self, BadScenario> {
        text::from_toml(text, Self::check)
    }

    /// Writes the scenario as TOML, which [`Scenario::from_toml`] reads back.
    pub fn to_toml(&self) -> String {
        text::to_toml(self)
    }

    /// Checks the scenario.
    ///
    /// # Errors
    /// With the first invalid value.
    pub fn check(&self) -> Result<(), BadScenario> {
        let bad = |why: String| Err(BadScenario(why));
        let within = |count: u16, most: u16| (1..=most).contains(&count);
        if !within(self.donors, MAX_NODES) || !within(self.recipients, MAX_NODES) {
            let (donors, recipients) = (self.donors, self.recipients);
            return bad(format!(
                "expected 1 to {MAX_NODES} donors and recipients, not {donors} and {recipients}"
            ));
        }
        if !within(self.monitors, MAX_MONITORS) {
            return bad(format!(
                "expected 1 to {MAX_MONITORS} Monitor Nodes, not {}",
                self.monitors
            ));
        }
        if self.slabs == 0 || self.workload.max_slabs == 0 {
            return bad("slabs and max_slabs are at least 1".into());
        }
        // A program that moved from one queue to another may be granted, for five seconds more, a
        // lease that it never learns of: two leases must exceed that.
        if !(8_000_000_000..=60_000_000_000).contains(&self.lease.0) {
            return bad(format!("a lease is 8s to 60s, not {}", self.lease));
        }
        if !(1..=600_000_000_000).contains(&self.span.0) {
            return bad(format!("a span is up to 600s, not {}", self.span));
        }
        if self.clocks.apart > MOST_APART || self.clocks.drift > Share(10_000) {
            return bad("clocks are at most 600s apart and 1% too fast or slow".into());
        }
        if self.workload.think.0 == 0 || self.workload.hold.0 == 0 {
            return bad("think and hold are longer than 0".into());
        }
        self.faults.iter().try_for_each(|fault| fault.check(self))
    }

    /// True if there is such a participant.
    pub(super) fn has(&self, party: Party) -> bool {
        match party {
            Party::Monitor(number) => number < self.monitors,
            Party::Donor(number) => number < self.donors,
            Party::Recipient(number) => number < self.recipients,
            Party::Store => self.monitors > 1,
            Party::Operator => true,
        }
    }

    /// Returns the time from the start at which all faults are over and no program begins any more.
    pub fn calm_ns(&self) -> u64 {
        self.faults.iter().map(Fault::end_ns).fold(self.span.0, u64::max)
    }
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            seed: 0,
            donors: 4,
            recipients: 6,
            monitors: 1,
            slabs: 8,
            devices: true,
            lease: Nanos(10_000_000_000),
            span: Nanos(30_000_000_000),
            network: Impairment::default(),
            clocks: Clocks::default(),
            workload: Workload::default(),
            faults: Vec::new(),
        }
    }
}

impl Default for Impairment {
    /// Returns a healthy rack's network.
    fn default() -> Self {
        Self {
            latency: Nanos(100_000),
            jitter: Nanos(400_000),
            loss: Share(0),
            resets: Share(0),
            late: Share(0),
            late_by: Nanos(3_000_000_000),
        }
    }
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            think: Nanos(1_000_000_000),
            hold: Nanos(4_000_000_000),
            max_slabs: 8,
            device: Share(250_000),
            named: Share(200_000),
            copies: Share(200_000),
            wait: Share(0),
            preempt: Share(0),
            die: Share(100_000),
            transfer: Share(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_delay_does_not_combine() {
        let usual = Impairment { late: Share(0), late_by: Nanos(12), ..Impairment::default() };
        let storm = Impairment { late: Share(1), late_by: Nanos(3), ..Impairment::default() };
        assert_eq!(usual.worst(storm), Impairment { late_by: Nanos(3), ..storm });
        assert_eq!((usual.latest(), storm.latest()), (Nanos(0), Nanos(3)));
    }
}
