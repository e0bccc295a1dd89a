//! One row of what the doctor found.

use serde::Serialize;

/// How well a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// There and good.
    Ok,
    /// There, but something will be slower or not work.
    Warn,
    /// Not there, or not to be had.
    Missing,
}

impl State {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Warn => "warn",
            State::Missing => "missing",
        }
    }

    /// The terminal's colour for it: green, yellow, red.
    pub fn colour_code(self) -> u8 {
        match self {
            State::Ok => 32,
            State::Warn => 33,
            State::Missing => 31,
        }
    }
}

/// A mode of `venice run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By a pager in the program itself.
    Paged,
    /// On memory that is mapped.
    Window,
    /// By the kernel's own swap.
    Swap,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 3] = [Mode::Paged, Mode::Window, Mode::Swap];

    /// As on the command line.
    pub fn flag(self) -> &'static str {
        match self {
            Mode::Paged => "--mode paged",
            Mode::Window => "--mode window",
            Mode::Swap => "--mode swap",
        }
    }
}

/// One thing looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its name.
    pub what: &'static str,
    /// How well it is.
    pub state: State,
    /// The modes of `venice run` that cannot do without it.
    pub needed_by: Vec<Mode>,
    /// What was seen.
    pub detail: String,
    /// What to do about it; empty when all is well.
    pub mend: String,
}

impl Finding {
    /// All is well.
    pub fn ok(what: &'static str, detail: impl Into<String>) -> Finding {
        Finding {
            what,
            state: State::Ok,
            needed_by: Vec::new(),
            detail: detail.into(),
            mend: String::new(),
        }
    }

    /// It works, but not as well as it could.
    pub fn warn(what: &'static str, detail: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { state: State::Warn, mend: mend.into(), ..Finding::ok(what, detail) }
    }

    /// It is not there.
    pub fn missing(
        what: &'static str,
        detail: impl Into<String>,
        mend: impl Into<String>,
    ) -> Finding {
        Finding { state: State::Missing, mend: mend.into(), ..Finding::ok(what, detail) }
    }

    /// The same, for something that `modes` cannot do without.
    pub fn needed_by(self, modes: &[Mode]) -> Finding {
        Finding { needed_by: modes.into(), ..self }
    }

    /// Whether `mode` cannot do without it, and has to.
    pub fn stops(&self, mode: Mode) -> bool {
        self.state == State::Missing && self.needed_by.contains(&mode)
    }
}
