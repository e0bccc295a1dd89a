//! What programs do, drawn access by access.

use serde::Serialize;

use super::{Scenario, Workload};
use crate::random::Stream;

/// Kinds of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A single read.
    Read,
    /// A single write.
    Write,
    /// A bulk read.
    BulkRead,
    /// A bulk write.
    BulkWrite,
    /// A message over a QPair; its time is that from one end to the other.
    Message,
}

/// One access of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Which of its donors, counted from 0.
    pub session: usize,
    /// What.
    pub kind: Kind,
    /// The first byte in the region.
    pub at: u32,
    /// How many bytes.
    pub len: u32,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Read, Self::Write, Self::BulkRead, Self::BulkWrite, Self::Message];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::BulkRead => "bulk read",
            Self::BulkWrite => "bulk write",
            Self::Message => "message",
        }
    }
}

impl Workload {
    /// The next access to one of the `usable` sessions.
    ///
    /// # Panics
    /// If there is none.
    pub fn draw_access(&self, rng: &mut Stream, usable: &[usize]) -> Access {
        let session = *rng.pick(usable);
        let kind = self.draw_kind(rng);
        let longest = match kind {
            Kind::Read | Kind::Write | Kind::Message => u32::from(self.max_access_bytes),
            Kind::BulkRead | Kind::BulkWrite => self.max_bulk_bytes,
        };
        let longest = longest.min(self.region_bytes);
        let len = match rng.below(4) {
            0 => longest,
            1 => rng.between(1, longest.min(16).into()) as u32,
            _ => rng.between(1, longest.into()) as u32,
        };
        // Half of all accesses meet at the front.
        let room = self.region_bytes - len;
        let room = if rng.chance(500_000) { room.min(64) } else { room };
        let at = rng.between(0, room.into()) as u32;
        Access { session, kind, at, len }
    }

    fn draw_kind(&self, rng: &mut Stream) -> Kind {
        let mix = self.mix;
        let weights = [
            (Kind::Read, mix.read),
            (Kind::Write, mix.write),
            (Kind::BulkRead, mix.bulk_read),
            (Kind::BulkWrite, mix.bulk_write),
            (Kind::Message, mix.message),
        ];
        let total: u32 = weights.iter().map(|(_, weight)| weight).sum();
        let mut drawn = rng.below(total.into()) as u32;
        for (kind, weight) in weights {
            match drawn.checked_sub(weight) {
                Some(rest) => drawn = rest,
                None => return kind,
            }
        }
        unreachable!("the weights add up to their sum")
    }

    /// Nanoseconds until the next access is wanted.
    pub fn draw_pause_ns(&self, rng: &mut Stream) -> u64 {
        match self.think.0 {
            0 => 0,
            mean_ns => rng.below(2 * mean_ns) + 1,
        }
    }
}

impl Scenario {
    /// The numbers that a node draws come from here.
    pub fn node_stream(&self, node: u16) -> Stream {
        Stream::new(self.seed).split("node", &[node.into()])
    }

    /// Whom a node borrows from: others, each once.
    pub fn donors_of(&self, node: u16) -> Vec<u16> {
        if node >= self.nodes {
            // The router has no program.
            return Vec::new();
        }
        let mut rng = self.node_stream(node).split("donors", &[]);
        let mut others: Vec<u16> = (0..self.nodes).filter(|&other| other != node).collect();
        let draw = |_| others.swap_remove(rng.below(others.len() as u64) as usize);
        (0..self.workload.donors).map(draw).collect()
    }
}
