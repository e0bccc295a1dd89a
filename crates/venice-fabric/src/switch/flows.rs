//! Flows: packets of different programs wait in different queues, so that they take turns for an
//! output.
//!
//! A switch keeps no list of programs. It tells them apart as stochastic fair queueing does
//! (McKenney 1990), by a hash: of the grant whose key a sealed packet names, which all sockets of a
//! program have in common, otherwise of the program's address. Two programs may share a queue; then
//! they share its turns.

use venice_wire::{Endpoint, KeyName, Packet, PacketAddr, SealedHeader};

/// Queues for each input.
pub(super) const FLOWS: usize = 16;

/// Returns the index of the input's queue for a packet. All packets between the same two ends under
/// the same key use the same one, and so stay in order.
pub(super) fn flow_of(packet: &Packet<'_>) -> usize {
    let named = SealedHeader::parse(packet.payload()).ok();
    let word = match named.map(|header| header.key) {
        Some(KeyName::Grant(grant)) => grant.0,
        _ => program_of(packet),
    };
    // Fibonacci hashing: the upper bits of the product depend on all of the word.
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % FLOWS
}

/// Returns the address of the end that is a program; of the sender where both are agents.
fn program_of(packet: &Packet<'_>) -> u64 {
    let (source, destination) = (packet.source(), packet.destination());
    let is_answer = source.endpoint == Endpoint::AGENT && destination.endpoint != Endpoint::AGENT;
    let PacketAddr { node, endpoint } = if is_answer { destination } else { source };
    u64::from(node.0) << 32 | u64::from(endpoint.0)
}

/// Packets of this node that wait to be sent: the number of each flow, and the admission of one
/// more.
#[derive(Debug)]
pub(super) struct LocalPackets {
    of_flow: [u32; FLOWS],
    held: u32,
    most: u32,
}

impl LocalPackets {
    pub(super) fn new(most: u32) -> Self {
        Self { of_flow: [0; FLOWS], held: 0, most }
    }

    /// True if there is room for one more packet. A program may have as many as there are free
    /// slots (Choudhury, Hahne 1998), so one that sends at full rate blocks before it takes the
    /// room of others. Answers of this node's agent are limited too, and leave some slots free:
    /// they wait and do not get lost.
    pub(super) fn has_room(&self, packet: &Packet<'_>) -> bool {
        let left = self.most - self.held;
        if packet.source().endpoint == Endpoint::AGENT {
            return left > self.most / 4;
        }
        left > 0 && self.of_flow[flow_of(packet)] <= left
    }

    pub(super) fn enters(&mut self, flow: usize) {
        self.of_flow[flow] += 1;
        self.held += 1;
    }

    pub(super) fn leaves(&mut self, flow: usize) {
        self.of_flow[flow] -= 1;
        self.held -= 1;
    }
}
