//! Everything that can be set. The comments name the source of each default; `chosen` marks those for
//! which there is none.

use serde::{Deserialize, Serialize};
use venice_experiment::BadConfig;
use venice_fabric::LinkModel;
use venice_simkernel::units::{BitRate, Hertz, Nanos, Picos, Share};

use crate::cache::{CacheConfig, LINE_BYTES};

/// The configuration of a recipient, its donor, and what is between them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Config {
    /// The program.
    pub program: Program,
    /// The recipient's processor.
    pub processor: Processor,
    /// The memory of both nodes.
    pub memory: Memory,
    /// The link between the nodes; swap has its own.
    pub link: Link,
    /// The way to remote memory.
    pub channel: Channel,
}

/// The program, as its recorded accesses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Program {
    /// A trace that comes with Venice, or the path of a file.
    pub trace: String,
    /// Accesses of the trace that are replayed; 0: all.
    pub accesses: u64,
    /// Requests that it can have under way at once if it is rewritten for it, 1 to 64: how many of its
    /// accesses depend on no other's result.
    pub independent: u32,
}

impl Default for Program {
    fn default() -> Self {
        Self { trace: "pagerank".into(), accesses: 0, independent: 16 }
    }
}

/// The recipient's processor: a fixed number of cycles an instruction, and as many misses under way as
/// its window and its fill buffers allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Processor {
    /// Its clock. Venice paper, table 1: 667 MHz.
    pub frequency: Hertz,
    /// Cycles of 1000 instructions that hit its caches. Chosen.
    pub kilo_instruction_cycles: u32,
    /// Instructions that it executes past a load that misses, before it waits. Chosen: the size of a
    /// small reorder buffer.
    pub window: u32,
    /// Lines that it fills at once. ARM DDI 0388I, table 8-1: six linefills of a Cortex-A9.
    pub fills: u32,
    /// Dirty lines that it writes back at once. The same table: four evictions.
    pub write_backs: u32,
    /// Its last cache.
    pub cache: CacheConfig,
}

impl Default for Processor {
    fn default() -> Self {
        Self {
            frequency: Hertz(667_000_000),
            kilo_instruction_cycles: 1500,
            window: 32,
            fills: 6,
            write_backs: 4,
            cache: CacheConfig::default(),
        }
    }
}

impl Processor {
    /// Returns the time of so many instructions, in picoseconds, rounded up.
    pub fn time_of(&self, instructions: u64) -> u64 {
        let cycles = u128::from(instructions) * u128::from(self.kilo_instruction_cycles);
        let ps = (cycles * u128::from(Picos::SECOND)).div_ceil(1000 * u128::from(self.frequency.0));
        u64::try_from(ps).unwrap_or(u64::MAX)
    }
}

/// The memory of both nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Memory {
    /// The share of the program's pages that is local, spread evenly.
    pub local: Share,
    /// Time of a line in a node's own memory. Chosen.
    pub latency: Picos,
}

impl Default for Memory {
    fn default() -> Self {
        Self { local: Share(0), latency: Picos(100 * Picos::NANO) }
    }
}

impl Memory {
    /// True if a page is local: of the first n pages, the share of n.
    pub fn is_local(&self, page: u64) -> bool {
        let local = u128::from(self.local.0);
        let of = |pages: u64| u128::from(pages) * local / 1_000_000;
        of(page + 1) > of(page)
    }
}

/// The link between recipient and donor, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Link {
    /// Its rate. Venice paper, table 1: 5 Gb/s.
    pub rate: BitRate,
    /// From the last bit sent to its arrival, both interfaces included. Venice paper, table 1: 1.4 µs.
    pub latency: Nanos,
    /// Delay of an external router, which forwards as it receives; 0: the nodes are linked directly.
    pub router: Nanos,
}

impl Default for Link {
    fn default() -> Self {
        Self { rate: BitRate(5_000_000_000), latency: Nanos(1400), router: Nanos(0) }
    }
}

impl Link {
    /// Returns it as the fabric models links.
    pub fn model(&self) -> LinkModel {
        LinkModel {
            latency_ns: self.latency.0,
            bandwidth_bps: std::num::NonZeroU64::new(self.rate.0),
            router_ns: self.router.0,
        }
    }
}

/// The way to remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Channel {
    /// All memory is local.
    Local,
    /// Misses to remote pages are CRMA reads, write-backs CRMA writes.
    Crma(Crma),
    /// Each line is asked for by a message, which a thread of the donor answers.
    Qpair(Qpair),
    /// Remote memory is a block device to which pages are swapped.
    Swap(Swap),
}

impl Default for Channel {
    fn default() -> Self {
        Self::Crma(Crma::default())
    }
}

/// Lines over CRMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Crma {
    /// One way between processor, or memory, and the interface of its node. 0: it is on the chip.
    pub crossing: Picos,
    /// Accesses that the interface has under way at most.
    pub accesses: u32,
}

impl Default for Crma {
    fn default() -> Self {
        Self { crossing: Picos(0), accesses: 64 }
    }
}

/// Lines over QPair messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Qpair {
    /// One way between processor, or memory, and the interface of its node. 0: it is on the chip.
    pub crossing: Picos,
    /// The program goes on after a request, and has as many under way as are independent; else it
    /// waits for each.
    pub asynchronous: bool,
    /// Instructions of the program to make a request. Chosen.
    pub post: u32,
    /// Instructions of the program to take an answer. Chosen.
    pub poll: u32,
    /// Instructions of the donor's thread for a request and its answer. Chosen.
    pub serve: u32,
}

impl Default for Qpair {
    fn default() -> Self {
        Self { crossing: Picos(0), asynchronous: false, post: 250, poll: 250, serve: 400 }
    }
}

/// Pages on a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Swap {
    /// Instructions of a fault: the trap, the choice of a victim, the request, the mapping. Chosen.
    pub fault: u32,
    /// A page's way through the stacks of both nodes and back, but for its bytes.
    pub request: Picos,
    /// Rate at which the device moves the bytes of pages, one page after the other.
    pub rate: BitRate,
}

impl Default for Swap {
    /// Over TCP: 58.4 µs for a remote page (OPERA deliverable 4.7, section 4.2), at 10 Gb/s.
    fn default() -> Self {
        Self { fault: 5000, request: Picos(55 * Picos::MICRO), rate: BitRate(10_000_000_000) }
    }
}

/// Requires a number to be within bounds.
fn bound<T: PartialOrd + std::fmt::Display>(
    key: &str,
    value: T,
    low: T,
    high: T,
) -> Result<(), BadConfig> {
    if (&low..=&high).contains(&&value) {
        return Ok(());
    }
    Err(BadConfig::new(key, format!("{value}: must be {low} to {high}")))
}

/// The most instructions of a fixed cost.
const MOST_COST: u32 = 1_000_000;
/// The longest time of one part. All parts together stay far below the time after which the fabric gives a
/// silent donor up.
const LONGEST: Picos = Picos(1000 * Picos::MICRO);
const RATES: (BitRate, BitRate) = (BitRate(1_000_000), BitRate(1_000_000_000_000));

impl Config {
    /// Checks all bounds.
    ///
    /// # Errors
    /// With the key that is out of its bounds.
    pub fn check(&self) -> Result<(), BadConfig> {
        bound("program.independent", self.program.independent, 1, 64)?;
        let Processor { frequency, kilo_instruction_cycles, window, fills, write_backs, cache } =
            self.processor;
        bound("processor.frequency", frequency, Hertz(10_000_000), Hertz(100_000_000_000))?;
        bound("processor.kilo-instruction-cycles", kilo_instruction_cycles, 1, 100_000)?;
        bound("processor.window", window, 1, 1_000_000)?;
        bound("processor.fills", fills, 1, 64)?;
        bound("processor.write-backs", write_backs, 1, 64)?;
        if cache.sets().is_none() {
            let why = format!(
                "{} in {} ways: lines of {LINE_BYTES} bytes / ways must be a power of two, ways 1 to 64",
                cache.bytes, cache.ways
            );
            return Err(BadConfig::new("processor.cache.bytes", why));
        }
        bound("memory.latency", self.memory.latency, Picos(1), LONGEST)?;
        bound("link.rate", self.link.rate, RATES.0, RATES.1)?;
        bound("link.latency", self.link.latency, Nanos(0), Nanos(1_000_000))?;
        bound("link.router", self.link.router, Nanos(0), Nanos(1_000_000))?;
        self.channel.check()
    }
}

impl Channel {
    fn check(&self) -> Result<(), BadConfig> {
        match *self {
            Self::Local => Ok(()),
            Self::Crma(Crma { crossing, accesses }) => {
                bound("channel.crossing", crossing, Picos(0), LONGEST)?;
                bound("channel.accesses", accesses, 1, 64)
            }
            Self::Qpair(Qpair { crossing, asynchronous: _, post, poll, serve }) => {
                bound("channel.crossing", crossing, Picos(0), LONGEST)?;
                bound("channel.post", post, 0, MOST_COST)?;
                bound("channel.poll", poll, 0, MOST_COST)?;
                bound("channel.serve", serve, 0, MOST_COST)
            }
            Self::Swap(Swap { fault, request, rate }) => {
                bound("channel.fault", fault, 0, MOST_COST)?;
                bound("channel.request", request, Picos(0), LONGEST)?;
                bound("channel.rate", rate, RATES.0, RATES.1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_pages_are_spread() {
        for local in [0, 1, 250_000, 666_667, 999_999, 1_000_000] {
            let memory = Memory { local: Share(local), ..Memory::default() };
            for pages in [0, 1, 3, 1000, 4096] {
                let count = (0..pages).filter(|page| memory.is_local(*page)).count() as u64;
                assert_eq!(count, pages * u64::from(local) / 1_000_000, "{local} of {pages}");
            }
        }
    }

    #[test]
    fn every_bound_names_its_key() {
        let error = |text: &str| {
            let config: Config = toml::from_str(text).unwrap();
            config.check().unwrap_err().to_string()
        };
        for (text, key) in [
            ("processor.frequency = '1Hz'", "processor.frequency"),
            ("processor.kilo-instruction-cycles = 0", "processor.kilo-instruction-cycles"),
            ("processor.window = 0", "processor.window"),
            ("processor.fills = 65", "processor.fills"),
            ("processor.write-backs = 0", "processor.write-backs"),
            ("processor.cache.bytes = '100B'", "processor.cache.bytes"),
            ("memory.latency = '0'", "memory.latency"),
            ("link.rate = '1bps'", "link.rate"),
            ("link.latency = '1s'", "link.latency"),
            ("link.router = '1s'", "link.router"),
            ("channel = { kind = 'crma', accesses = 0 }", "channel.accesses"),
            ("channel = { kind = 'crma', crossing = '2s' }", "channel.crossing"),
            ("program.independent = 65", "program.independent"),
            ("channel = { kind = 'qpair', serve = 2000000 }", "channel.serve"),
            ("channel = { kind = 'swap', rate = '0' }", "channel.rate"),
        ] {
            assert!(error(text).starts_with(&format!("{key}: ")), "{}", error(text));
        }
        assert_eq!(Config::default().check(), Ok(()));
    }

    #[test]
    fn instructions_take_their_cycles() {
        let processor = Processor { frequency: Hertz(2_000_000_000), ..Processor::default() };
        assert_eq!(processor.time_of(1000), 750 * Picos::NANO);
        assert_eq!(processor.time_of(1), 750);
    }
}
