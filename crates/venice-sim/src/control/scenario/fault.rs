//! Faults, with their begin and duration.

use serde::{Deserialize, Serialize};

use super::{BadScenario, Impairment, Party, Scenario};
use crate::scenario::text::{no_fault, place_and_times};
use venice_simkernel::units::Nanos;

/// A temporary fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Time of its begin.
    pub at: Nanos,
    /// Duration.
    #[serde(rename = "for")]
    pub lasts: Nanos,
    /// Its kind.
    #[serde(flatten)]
    pub kind: FaultKind,
}

/// Kinds of faults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum FaultKind {
    /// A process dies and restarts: a Monitor Node with its store, an agent or a program with no
    /// state.
    Crash {
        /// The participant.
        who: Party,
    },
    /// A process stops (as after SIGSTOP); input waits for it.
    Freeze {
        /// The participant.
        who: Party,
    },
    /// No message passes from one to the other; the way back works, unless `both`.
    Cut {
        /// Sender of the lost messages.
        from: Party,
        /// Their receiver.
        to: Party,
        /// True if the way back is cut too.
        #[serde(default)]
        both: bool,
    },
    /// A participant is cut off from all others.
    Isolate {
        /// The participant.
        who: Party,
    },
    /// Messages are impaired more.
    Storm {
        /// The impairment.
        #[serde(flatten)]
        impairment: Impairment,
    },
    /// An operator drains a node, and undoes that.
    Drain {
        /// The donor.
        donor: u16,
    },
    /// A donor's own programs need memory that it has lent.
    Pressure {
        /// The donor.
        donor: u16,
        /// Slabs that it reclaims.
        slabs: u32,
    },
    /// A donor's devices are broken.
    Break {
        /// The donor.
        donor: u16,
    },
}

impl Fault {
    /// Returns the time of its end, in nanoseconds.
    pub fn end_ns(&self) -> u64 {
        self.at.0.saturating_add(self.lasts.0)
    }

    /// Returns its name.
    pub fn name(&self) -> &'static str {
        match self.kind {
            FaultKind::Crash { .. } => "crash",
            FaultKind::Freeze { .. } => "freeze",
            FaultKind::Cut { .. } => "cut",
            FaultKind::Isolate { .. } => "isolate",
            FaultKind::Storm { .. } => "storm",
            FaultKind::Drain { .. } => "drain",
            FaultKind::Pressure { .. } => "pressure",
            FaultKind::Break { .. } => "break",
        }
    }

    /// Returns the participants that it names.
    pub fn parties(&self) -> Vec<Party> {
        match self.kind {
            FaultKind::Crash { who } | FaultKind::Freeze { who } | FaultKind::Isolate { who } => {
                vec![who]
            }
            FaultKind::Cut { from, to, .. } => vec![from, to],
            FaultKind::Drain { donor }
            | FaultKind::Pressure { donor, .. }
            | FaultKind::Break { donor } => vec![Party::Donor(donor)],
            FaultKind::Storm { .. } => Vec::new(),
        }
    }

    /// Parses a fault such as `donor2@1s+20s`: from 1 s on for 20 s.
    ///
    /// # Errors
    /// With the mistake in the text.
    pub fn parse(text: &str, kind: impl Fn(Party) -> FaultKind) -> Result<Self, BadScenario> {
        let (who, at, lasts) = parts(text)?;
        let who = who.parse().map_err(|error| BadScenario(format!("{error}")))?;
        Ok(Self { at, lasts, kind: kind(who) })
    }

    /// Parses a cut such as `monitor0-donor2@1s+20s`.
    ///
    /// # Errors
    /// With the mistake in the text.
    pub fn parse_cut(text: &str) -> Result<Self, BadScenario> {
        let (ends, at, lasts) = parts(text)?;
        let wrong =
            || BadScenario(format!("'{ends}' is no link: write for example monitor0-donor2"));
        let (from, to) = ends.split_once('-').ok_or_else(wrong)?;
        let party = |text: &str| text.parse().map_err(|error| BadScenario(format!("{error}")));
        let kind = FaultKind::Cut { from: party(from)?, to: party(to)?, both: true };
        Ok(Self { at, lasts, kind })
    }

    /// Parses a drain such as `donor2@1s+20s`.
    ///
    /// # Errors
    /// With the mistake in the text.
    pub fn parse_drain(text: &str) -> Result<Self, BadScenario> {
        let (who, at, lasts) = parts(text)?;
        match who.parse() {
            Ok(Party::Donor(donor)) => Ok(Self { at, lasts, kind: FaultKind::Drain { donor } }),
            _ => Err(BadScenario(format!("'{who}' is no donor: write for example donor2"))),
        }
    }

    pub(super) fn check(&self, scenario: &Scenario) -> Result<(), BadScenario> {
        let name = self.name();
        if let Some(party) = self.parties().into_iter().find(|party| !scenario.has(*party)) {
            return Err(BadScenario(format!("a {name} names {party}, which is not in the rack")));
        }
        match self.kind {
            FaultKind::Cut { from, to, .. } if from == to => {
                Err(BadScenario(format!("{from} has no link to itself to cut")))
            }
            FaultKind::Crash { who: Party::Store } => {
                Err(BadScenario("the store cannot crash: freeze it, or cut it off".into()))
            }
            _ => Ok(()),
        }
    }
}

fn parts(text: &str) -> Result<(&str, Nanos, Nanos), BadScenario> {
    let example = "WHO@FROM+FOR, for example donor2@1s+20s; for a cut A-B@FROM+FOR";
    place_and_times(text).ok_or_else(|| no_fault(text, example))
}
