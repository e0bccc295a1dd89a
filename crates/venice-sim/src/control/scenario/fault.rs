//! What goes wrong, from when on and for how long.

use serde::{Deserialize, Serialize};

use super::{BadScenario, Impairment, Party, Scenario};
use crate::scenario::text::{no_fault, place_and_times};
use crate::units::Nanos;

/// One thing that goes wrong and is right again after a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// When it begins.
    pub at: Nanos,
    /// How long it lasts.
    #[serde(rename = "for")]
    pub lasts: Nanos,
    /// What it is.
    #[serde(flatten)]
    pub kind: FaultKind,
}

/// Kinds of fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum FaultKind {
    /// A process dies and starts anew: a Monitor Node with its store, an agent or a program with
    /// nothing.
    Crash {
        /// Whose.
        who: Party,
    },
    /// A process does nothing (as after SIGSTOP); what arrives waits for it.
    Freeze {
        /// Whose.
        who: Party,
    },
    /// Nothing gets from one to the other; back it does, unless `both`.
    Cut {
        /// Where messages come from.
        from: Party,
        /// Where they do not arrive.
        to: Party,
        /// Whether the way back is cut too.
        #[serde(default)]
        both: bool,
    },
    /// One is cut off from all others.
    Isolate {
        /// Who.
        who: Party,
    },
    /// Messages suffer more.
    Storm {
        /// What.
        #[serde(flatten)]
        impairment: Impairment,
    },
    /// An operator drains a node, and takes that back.
    Drain {
        /// The donor.
        donor: u16,
    },
    /// A donor's own programs need memory that it has lent.
    Pressure {
        /// The donor.
        donor: u16,
        /// Slabs that it wants back.
        slabs: u32,
    },
    /// A donor's devices do not work.
    Break {
        /// The donor.
        donor: u16,
    },
}

impl Fault {
    /// When it is over.
    pub fn end_ns(&self) -> u64 {
        self.at.0.saturating_add(self.lasts.0)
    }

    /// What it is called.
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

    /// Whom it names.
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

    /// The fault that is so written: `donor2@1s+20s`, from 1 s on for 20 s.
    ///
    /// # Errors
    /// Says what is wrong with the text.
    pub fn parse(text: &str, kind: impl Fn(Party) -> FaultKind) -> Result<Self, BadScenario> {
        let (who, at, lasts) = parts(text)?;
        let who = who.parse().map_err(|error| BadScenario(format!("{error}")))?;
        Ok(Self { at, lasts, kind: kind(who) })
    }

    /// The cut that is so written: `monitor0-donor2@1s+20s`.
    ///
    /// # Errors
    /// Says what is wrong with the text.
    pub fn parse_cut(text: &str) -> Result<Self, BadScenario> {
        let (ends, at, lasts) = parts(text)?;
        let wrong = || BadScenario(format!("'{ends}' is no link: write monitor0-donor2"));
        let (from, to) = ends.split_once('-').ok_or_else(wrong)?;
        let party = |text: &str| text.parse().map_err(|error| BadScenario(format!("{error}")));
        let kind = FaultKind::Cut { from: party(from)?, to: party(to)?, both: true };
        Ok(Self { at, lasts, kind })
    }

    /// The drain that is so written: `donor2@1s+20s`.
    ///
    /// # Errors
    /// Says what is wrong with the text.
    pub fn parse_drain(text: &str) -> Result<Self, BadScenario> {
        let (who, at, lasts) = parts(text)?;
        match who.parse() {
            Ok(Party::Donor(donor)) => Ok(Self { at, lasts, kind: FaultKind::Drain { donor } }),
            _ => Err(BadScenario(format!("'{who}' is no donor: write donor2, say"))),
        }
    }

    pub(super) fn check(&self, scenario: &Scenario) -> Result<(), BadScenario> {
        let name = self.name();
        if let Some(party) = self.parties().into_iter().find(|party| !scenario.has(*party)) {
            return Err(BadScenario(format!("a {name} names {party}, whom the rack has not")));
        }
        match self.kind {
            FaultKind::Cut { from, to, .. } if from == to => {
                Err(BadScenario(format!("{from} has no link to itself to cut")))
            }
            FaultKind::Crash { who: Party::Store } => {
                Err(BadScenario("the store keeps what it has: freeze it, or cut it off".into()))
            }
            _ => Ok(()),
        }
    }
}

fn parts(text: &str) -> Result<(&str, Nanos, Nanos), BadScenario> {
    let example = "WHO@FROM+FOR, for example donor2@1s+20s; for a cut A-B@FROM+FOR";
    place_and_times(text).ok_or_else(|| no_fault(text, example))
}
