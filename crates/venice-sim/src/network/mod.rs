//! The links between the nodes, and what travels on them.

mod link;

use std::collections::BTreeMap;

pub use self::link::{Arrival, Link, LinkCounts, Passage};
use crate::random::Stream;
use crate::scenario::{Impairment, Scenario};
use venice_fabric::LinkModel;
use venice_wire::NodeId;

/// Which end of a node a frame comes from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// The program that borrows.
    Recipient,
    /// The agent that lends.
    Donor,
    /// The switch that passes packets on.
    Switch,
}

/// Nodes have the same numbers on the wire, from 0.
pub(crate) fn node_id(number: u16) -> NodeId {
    NodeId(number.into())
}

/// A frame on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The node it comes from.
    pub from: u16,
    /// And which end there.
    pub from_end: End,
    /// The node it goes to.
    pub to: u16,
    /// And which end there.
    pub to_end: End,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// All links of a rack. A link comes into being when it is first used.
#[derive(Debug)]
pub struct Network {
    root: Stream,
    model: LinkModel,
    queue_bytes: u32,
    /// What links do all the time.
    usual: Impairment,
    /// Impairments of the storms that rage at present, by fault.
    storms: BTreeMap<usize, Impairment>,
    nodes: usize,
    /// The place in `links` of each pair of nodes, plus 1; 0: not used yet.
    places: Vec<u32>,
    links: Vec<Link>,
    /// What happened to frames.
    pub counts: LinkCounts,
}

impl Network {
    /// The links of a rack with so many nodes, the router included.
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

    /// The direction of the link from one node to another.
    pub fn link(&mut self, from: u16, to: u16) -> &mut Link {
        let place = &mut self.places[usize::from(from) * self.nodes + usize::from(to)];
        if *place == 0 {
            let rng = self.root.split("link", &[from.into(), to.into()]);
            self.links.push(Link::new(self.model, self.queue_bytes, rng));
            *place = self.links.len() as u32;
        }
        &mut self.links[*place as usize - 1]
    }

    /// Sends a frame; what arrives comes with the number of [`Link::cut_epoch`].
    pub fn send(&mut self, now_ns: u64, datagram: &Datagram) -> (Passage, u32) {
        let impairment = self.impairment();
        let mut counts = self.counts;
        let link = self.link(datagram.from, datagram.to);
        let passage = link.send(now_ns, &impairment, &datagram.bytes, &mut counts);
        let epoch = link.cut_epoch();
        self.counts = counts;
        (passage, epoch)
    }

    /// Whether a frame sent under `cut_epoch` still arrives; counts it.
    pub fn arrives(&mut self, from: u16, to: u16, cut_epoch: u32) -> bool {
        let arrives = self.link(from, to).cut_epoch() == cut_epoch;
        let count = if arrives { &mut self.counts.delivered } else { &mut self.counts.cut };
        *count += 1;
        arrives
    }

    /// A storm begins.
    pub fn begin_storm(&mut self, fault: usize, impairment: Impairment) {
        self.storms.insert(fault, impairment);
    }

    /// A storm is over.
    pub fn end_storm(&mut self, fault: usize) {
        self.storms.remove(&fault);
    }

    /// What links do at present: the worst of their own and every storm's.
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
