//! Reads of borrowed lines, by nodes that hold grants.

use venice_simkernel::random::Stream;

use crate::config::{Config, Donors};
use crate::fabric::Fabric;

/// A node that reads.
#[derive(Debug)]
pub struct Reader {
    /// The node.
    pub node: u32,
    /// The donors of its lines, read in turn.
    donors: Vec<u32>,
    next: usize,
    /// Its draws of times.
    pub stream: Stream,
}

impl Reader {
    /// Makes a reader of a node whose grants are at `granted`; `None` if there is no donor for it.
    pub fn new(config: &Config, fabric: &Fabric, node: u32, granted: Vec<u32>) -> Option<Self> {
        let stream = Stream::new(config.seed).split("reader", &[node.into()]);
        let mut draws = stream.split("donors", &[]);
        let donors: Vec<u32> = match config.reads.donors {
            Donors::Granted => granted,
            Donors::Random => {
                let other = |_| {
                    let drawn = draws.below(u64::from(config.nodes) - 1) as u32;
                    drawn + u32::from(drawn >= node)
                };
                granted.iter().map(other).collect()
            }
            Donors::Distant => {
                let is_there = |other: &u32| fabric.hops(node, *other) == config.reads.hops;
                let distant: Vec<u32> = (0..config.nodes).filter(is_there).collect();
                let some = granted.iter().filter(|_| !distant.is_empty());
                some.map(|_| *draws.pick(&distant)).collect()
            }
        };
        (!donors.is_empty()).then_some(Self { node, donors, next: 0, stream })
    }

    /// Returns the donor of the next read.
    pub fn next_donor(&mut self) -> u32 {
        self.next += 1;
        self.donors[self.next % self.donors.len()]
    }
}
