//! The bare machine, by minimal programs: the baseline of all figures.

mod copy;
mod line;
mod tcp;
mod udp;

pub(super) use copy::copies;
pub(super) use line::ping_pong;
pub(super) use tcp::{tcp_round_trips, tcp_streams};
pub(super) use udp::{udp_round_trips, udp_streams};

use serde::{Deserialize, Serialize};

/// Waiting strategy of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waiting {
    /// It polls.
    Spin,
    /// The kernel wakes it.
    Sleep,
}

impl Waiting {
    /// Returns the name used in variants.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Waiting::Spin => "spinning",
            Waiting::Sleep => "sleeping",
        }
    }
}
