//! The modes of `venice run`.

use serde::Serialize;
use venice_wire::PortKind;

/// The way a program uses borrowed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By a pager inside the program.
    Paged,
    /// Without paging: it is mapped from the donors.
    Window,
    /// By the kernel, which swaps.
    Swap,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 3] = [Mode::Paged, Mode::Window, Mode::Swap];

    /// Returns its flag on the command line.
    pub const fn flag(self) -> &'static str {
        match self {
            Mode::Paged => "--mode paged",
            Mode::Window => "--mode window",
            Mode::Swap => "--mode swap",
        }
    }

    /// True if it works over the port.
    pub fn works_over(self, port: PortKind) -> bool {
        match self {
            Mode::Window => port.capabilities().mapped,
            Mode::Paged | Mode::Swap => true,
        }
    }

    /// Returns the ports over which it works.
    pub fn ports(self) -> impl Iterator<Item = PortKind> {
        PortKind::ALL.into_iter().filter(move |port| self.works_over(*port))
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Mode::Paged => "paged",
            Mode::Window => "window",
            Mode::Swap => "swap",
        })
    }
}
