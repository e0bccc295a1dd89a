//! The links between the nodes, and their frames.

mod link;

use std::collections::BTreeMap;

pub use self::link::{Arrival, Link, LinkCounts, Passage};
use crate::scenario::{Impairment, Scenario};
use venice_fabric::LinkModel;
use venice_simkernel::random::Stream;
use venice_wire::NodeId;

/// An end of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// The program that borrows.
    Recipient,
    /// The agent that lends.
    Donor,
    /// The switch that forwards packets.
    Switch,
}

/// Returns the wire's id of a node; both count from 0.
pub(crate) fn node_id(number: u16) -> NodeId {
    NodeId(number.into())
}

/// A frame in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Source node.
    pub from: u16,
    /// Source end.
    pub from_end: End,
    /// Destination node.
    pub to: u16,
    /// Destination end.
    pub to_end: End,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// All links of a rack, created on first use.
#[derive(Debug)]
pub struct Network {
    root: Stream,
    model: LinkModel,
    queue_bytes: u32,
    /// Permanent impairment of the links.
    usual: Impairment,
    /// Impairments of the present storms, by fault.
    storms: BTreeMap<usize, Impairment>,
    nodes: usize,
    /// Index in `links` of each pair of nodes, plus 1; 0: not used yet.
    places: Vec<u32>,
    links: Vec<Link>,
    /// Counts of frames.
    pub counts: LinkCounts,
}

impl Network {
    /// Creates the links of a rack with so many nodes, the router included.
    pub fn new(scenario: &Scenario, nodes: usize) -> Self {
        Self {
            root: Stream::new(scenario.seed).split("links", &[]),
            model: scenario.link,
            queue_bytes: scenario.queue_bytes,
            usual: scenario.impairment,
            storms: BTreeMap::new(),
            nodes,
            places: vec![0; nodes * nodes],
            links: Vec::new(),
            counts: LinkCounts::default(),
        }
    }

    /// Returns the direction of the link from one node to another.
    pub fn link(&mut self, from: u16, to: u16) -> &mut Link {
        let place = &mut self.places[usize::from(from) * self.nodes + usize::from(to)];
        if *place == 0 {
            let rng = self.root.split("link", &[from.into(), to.into()]);
            self.links.push(Link::new(self.model, self.queue_bytes, rng));
            *place = self.links.len() as u32;
        }
        &mut self.links[*place as usize - 1]
    }

    /// Sends a frame; returns the arrivals and the present [`Link::cut_epoch`].
    pub fn send(&mut self, now_ns: u64, datagram: &Datagram) -> (Passage, u32) {
        let impairment = self.impairment();
        let mut counts = self.counts;
        let link = self.link(datagram.from, datagram.to);
        let passage = link.send(now_ns, &impairment, &datagram.bytes, &mut counts);
        let epoch = link.cut_epoch();
        self.counts = counts;
        (passage, epoch)
    }

    /// True if a frame sent under `cut_epoch` still arrives; counts it.
    pub fn arrives(&mut self, from: u16, to: u16, cut_epoch: u32) -> bool {
        let arrives = self.link(from, to).cut_epoch() == cut_epoch;
        let count = if arrives { &mut self.counts.delivered } else { &mut self.counts.cut };
        *count += 1;
        arrives
    }

    /// Begins a storm.
    pub fn begin_storm(&mut self, fault: usize, impairment: Impairment) {
        self.storms.insert(fault, impairment);
    }

    /// Ends a storm.
    pub fn end_storm(&mut self, fault: usize) {
        self.storms.remove(&fault);
    }

    /// Returns the present impairment: the worst of the links' own and every storm's.
    fn impairment(&self) -> Impairment {
        self.storms.values().fold(self.usual, |worst, storm| Impairment {
            loss: worst.loss.max(storm.loss),
            duplicate: worst.duplicate.max(storm.duplicate),
            corrupt: worst.corrupt.max(storm.corrupt),
            reorder: worst.reorder.max(storm.reorder),
            jitter: worst.jitter.max(storm.jitter),
            stale: worst.stale.max(storm.stale),
        })
    }
}
