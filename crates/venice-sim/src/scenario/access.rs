//! Accesses of programs, drawn one by one.

use serde::{Deserialize, Serialize};

use super::{Mix, Scenario, Workload};
use venice_simkernel::random::Stream;

/// Kinds of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    /// A message over a QPair; its latency is that from one end to the other.
    Message,
    /// An atomic that adds.
    FetchAdd,
    /// An atomic that compares and swaps.
    CompareSwap,
    /// A write without completion.
    Post,
    /// A fence behind the posted writes.
    Fence,
    /// A window is given back, and requested again.
    Unmap,
    /// A byte stream over a QPair of its own, there and back.
    Stream,
}

/// One access of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Index of the donor, from 0.
    pub session: usize,
    /// Its kind.
    pub kind: Kind,
    /// Its first byte in the region.
    pub at: u32,
    /// Its length in bytes.
    pub len: u32,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::Read,
        Self::Write,
        Self::BulkRead,
        Self::BulkWrite,
        Self::Message,
        Self::FetchAdd,
        Self::CompareSwap,
        Self::Post,
        Self::Fence,
        Self::Unmap,
        Self::Stream,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::BulkRead => "bulk read",
            Self::BulkWrite => "bulk write",
            Self::Message => "message",
            Self::FetchAdd => "fetch-add",
            Self::CompareSwap => "compare-swap",
            Self::Post => "posted write",
            Self::Fence => "fence",
            Self::Unmap => "unmap",
            Self::Stream => "stream",
        }
    }
}

impl Workload {
    /// Draws the next access to one of the `usable` sessions.
    ///
    /// # Panics
    /// If there is none.
    pub fn draw_access(&self, rng: &mut Stream, usable: &[usize]) -> Access {
        let session = *rng.pick(usable);
        let kind = self.draw_kind(rng);
        let longest = match kind {
            Kind::Read | Kind::Write | Kind::Post | Kind::Message => self.max_access_bytes.into(),
            Kind::BulkRead | Kind::BulkWrite => self.max_bulk_bytes,
            Kind::FetchAdd | Kind::CompareSwap => {
                let word = rng.below(self.counters.into()) as u32;
                return Access { session, kind, at: self.counter_at(word), len: 8 };
            }
            Kind::Fence | Kind::Unmap | Kind::Stream => {
                return Access { session, kind, at: 0, len: 0 };
            }
        };
        let longest = longest.min(self.region_bytes);
        let len = match rng.below(4) {
            0 => longest,
            1 => rng.between(1, longest.min(16).into()) as u32,
            _ => rng.between(1, longest.into()) as u32,
        };
        // A bulk write has no piece so short that its bytes could be those of another write.
        let len = match kind {
            Kind::BulkWrite if len % 4096 < 8 => len.next_multiple_of(8).min(longest),
            _ => len,
        };
        // Half of all accesses meet at the front.
        let room = self.region_bytes - len;
        let room = if rng.chance(500_000) { room.min(64) } else { room };
        let at = rng.between(0, room.into()) as u32;
        Access { session, kind, at, len }
    }

    fn draw_kind(&self, rng: &mut Stream) -> Kind {
        let weights = self.mix.weights();
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

    /// Returns the offset of a word for atomics: behind the bytes of the region.
    pub fn counter_at(&self, word: u32) -> u32 {
        self.region_bytes.next_multiple_of(8) + 8 * word
    }

    /// Returns the bytes that a donor lends for one region: its bytes, then the words for atomics.
    pub fn window_bytes(&self) -> u32 {
        self.counter_at(self.counters.into())
    }

    /// Splits lent memory into the bytes of a region and its words for atomics.
    pub fn split_window<'a>(&self, memory: &'a [u8]) -> (&'a [u8], Vec<u64>) {
        let (words, _) = memory[self.counter_at(0) as usize..].as_chunks();
        let words = words.iter().map(|&word| u64::from_le_bytes(word)).collect();
        (&memory[..self.region_bytes as usize], words)
    }

    /// Draws the nanoseconds until the next access.
    pub fn draw_pause_ns(&self, rng: &mut Stream) -> u64 {
        match self.think.0 {
            0 => 0,
            mean_ns => rng.below(2 * mean_ns) + 1,
        }
    }
}

impl Mix {
    /// Returns the weight of each kind.
    pub fn weights(&self) -> [(Kind, u32); Kind::ALL.len()] {
        [
            (Kind::Read, self.read),
            (Kind::Write, self.write),
            (Kind::BulkRead, self.bulk_read),
            (Kind::BulkWrite, self.bulk_write),
            (Kind::Message, self.message),
            (Kind::FetchAdd, self.fetch_add),
            (Kind::CompareSwap, self.compare_swap),
            (Kind::Post, self.post),
            (Kind::Fence, self.fence),
            (Kind::Unmap, self.unmap),
            (Kind::Stream, self.stream),
        ]
    }
}

impl Scenario {
    /// Returns the random stream of a node.
    pub fn node_stream(&self, node: u16) -> Stream {
        Stream::new(self.seed).split("node", &[node.into()])
    }

    /// Draws the donors of a node: others, each once.
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
