//! A row of the doctor's report.

use serde::Serialize;

use crate::mode::Mode;

/// Result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Works.
    Ok,
    /// Works, but something will be slower or unavailable.
    Warn,
    /// Absent or unusable.
    Missing,
}

impl State {
    /// Word for the state in the table.
    pub fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Warn => "warn",
            State::Missing => "missing",
        }
    }

    /// ANSI colour: green, yellow or red.
    pub fn colour_code(self) -> u8 {
        match self {
            State::Ok => 32,
            State::Warn => 33,
            State::Missing => 31,
        }
    }
}

/// Result of one check, with its remedy.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// State found.
    pub state: State,
    /// Modes of `venice run` that need it.
    pub needed_by: Vec<Mode>,
    /// Observation.
    pub detail: String,
    /// Remedy; empty if the state is ok.
    pub remedy: String,
}

impl Finding {
    /// Returns a finding without a problem.
    pub fn ok(check: &'static str, detail: impl Into<String>) -> Finding {
        Finding {
            check,
            state: State::Ok,
            needed_by: Vec::new(),
            detail: detail.into(),
            remedy: String::new(),
        }
    }

    /// Returns a finding that works with limits.
    pub fn warn(
        check: &'static str,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { state: State::Warn, remedy: remedy.into(), ..Finding::ok(check, detail) }
    }

    /// Returns a finding that is absent or unusable.
    pub fn missing(
        check: &'static str,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { state: State::Missing, remedy: remedy.into(), ..Finding::ok(check, detail) }
    }

    /// Sets the modes that need it.
    pub fn needed_by(self, modes: &[Mode]) -> Finding {
        Finding { needed_by: modes.into(), ..self }
    }

    /// True if `mode` needs it and it is missing.
    pub fn stops(&self, mode: Mode) -> bool {
        self.state == State::Missing && self.needed_by.contains(&mode)
    }
}
