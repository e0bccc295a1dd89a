//! What the machine can do by the shortest program there is: the measure of everything else.

mod copy;
mod line;
mod tcp;
mod udp;

pub(super) use copy::copies;
pub(super) use line::ping_pong;
pub(super) use tcp::{tcp_round_trips, tcp_streams};
pub(super) use udp::{udp_round_trips, udp_streams};

use serde::{Deserialize, Serialize};

/// How an end waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waiting {
    /// It looks again and again.
    Spin,
    /// The kernel wakes it.
    Sleep,
}

impl Waiting {
    /// For names of variants.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Waiting::Spin => "spinning",
            Waiting::Sleep => "sleeping",
        }
    }
}
