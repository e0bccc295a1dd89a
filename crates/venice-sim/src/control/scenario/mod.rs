//! What is to be run, as data: the rack, what its messages suffer, what its programs want, and what
//! goes wrong. A TOML file, or drawn from a seed.

mod draw;
mod fault;

use serde::{Deserialize, Serialize};

pub use self::draw::Bounds;
pub use self::fault::{Fault, FaultKind};
use super::party::Party;
pub use crate::scenario::BadScenario;
use crate::scenario::text;
use crate::units::{Nanos, Share};

/// Most donors and recipients.
pub const MAX_NODES: u16 = 64;
/// Most Monitor Nodes.
pub const MAX_MONITORS: u16 = 5;
/// How far clocks may be apart, as the README states it.
const MOST_APART: Nanos = Nanos(600_000_000_000);

/// One run of a rack's control plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// All random numbers of the run come from it.
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
    /// Whether each donor lends an accelerator, a network card and storage too.
    pub devices: bool,
    /// Lease of a grant.
    pub lease: Nanos,
    /// How long programs come and go; then all faults end, and the rack is to come to rest.
    pub span: Nanos,
    /// What happens to messages all the time.
    pub network: Impairment,
    /// What is wrong with clocks.
    pub clocks: Clocks,
    /// What programs want.
    pub workload: Workload,
    /// What goes wrong, and for how long.
    #[serde(rename = "fault")]
    pub faults: Vec<Fault>,
}

/// What happens to messages on their way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Impairment {
    /// The shortest time on the way.
    pub latency: Nanos,
    /// How much longer it may be.
    pub jitter: Nanos,
    /// Messages that never arrive, without anybody being told.
    pub loss: Share,
    /// Messages over whose way the connection breaks, arrived or not: their sender is told, and
    /// makes its call once more.
    pub resets: Share,
    /// Messages that take longer than others, up to [`Impairment::late_by`].
    pub late: Share,
    /// How much longer.
    pub late_by: Nanos,
}

/// What is wrong with clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Clocks {
    /// How far two of them may be apart; a process that starts may find its own put right, or wrong.
    pub apart: Nanos,
    /// How much faster or slower than the true time they run.
    pub drift: Share,
}

/// What programs want.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// Mean time between two programs of a recipient.
    pub think: Nanos,
    /// Mean time that a program keeps what it was granted.
    pub hold: Nanos,
    /// Most slabs that one asks for.
    pub max_slabs: u32,
    /// Programs that want a device, where there are some.
    pub device: Share,
    /// That name a donor.
    pub named: Share,
    /// That want two copies.
    pub copies: Share,
    /// That wait in line where there is no room.
    pub wait: Share,
    /// Of these that have grants of lower priority called back.
    pub preempt: Share,
    /// That die without a word.
    pub die: Share,
}

impl Scenario {
    /// Reads a scenario from TOML.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn from_toml(text: &str) -> Result<Self, BadScenario> {
        text::from_toml(text, Self::check)
    }

    /// Writes the scenario as TOML, which [`Scenario::from_toml`] reads back.
    pub fn to_toml(&self) -> String {
        text::to_toml(self)
    }

    /// Whether the scenario can be run.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn check(&self) -> Result<(), BadScenario> {
        let bad = |why: String| Err(BadScenario(why));
        let within = |count: u16, most: u16| (1..=most).contains(&count);
        if !within(self.donors, MAX_NODES) || !within(self.recipients, MAX_NODES) {
            let (donors, recipients) = (self.donors, self.recipients);
            return bad(format!(
                "1 to {MAX_NODES} donors and recipients, not {donors} and {recipients}"
            ));
        }
        if !within(self.monitors, MAX_MONITORS) {
            return bad(format!("1 to {MAX_MONITORS} Monitor Nodes, not {}", self.monitors));
        }
        if self.slabs == 0 || self.workload.max_slabs == 0 {
            return bad("slabs and max_slabs are at least 1".into());
        }
        // Who has left one line for another may be granted for five seconds more what nobody hears of,
        // which ends with its lease: two leases are to be longer than that.
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

    /// Whether there is such a party.
    pub(super) fn has(&self, party: Party) -> bool {
        match party {
            Party::Monitor(number) => number < self.monitors,
            Party::Donor(number) => number < self.donors,
            Party::Recipient(number) => number < self.recipients,
            Party::Store => self.monitors > 1,
            Party::Operator => true,
        }
    }

    /// When all faults are over and no program begins any more, from the start.
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
    /// A rack's network when all is well.
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
        }
    }
}
