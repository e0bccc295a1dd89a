//! One actor's links to the donors, in virtual time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use venice_fabric::{Initiator, InitiatorConfig, PeerIndex};
use venice_wire::{MAX_FRAME_BYTES, NodeId};

use super::SILENCE_NS;
use super::world::World;
use crate::paged::run_block::Donor;

/// Factor on the copier's pauses, which would only fill the schedule with idle steps.
const RESTS_LONGER: u32 = 20;

pub struct SimulatedWire {
    world: Arc<World>,
    actor: usize,
    initiator: Initiator,
    /// The donor behind each peer.
    peers: Vec<usize>,
    /// The buffer that frames are written to.
    frame: Box<[u8]>,
}

impl SimulatedWire {
    pub fn new(world: &Arc<World>, actor: usize, seed: u64) -> SimulatedWire {
        let mut config = InitiatorConfig::new(NodeId(1000), seed);
        (config.crma_depth, config.link.window, config.max_windows) = (32, 64, 1024);
        config.link.silence_ns = SILENCE_NS;
        let initiator = Initiator::new(config);
        let frame = vec![0; MAX_FRAME_BYTES].into();
        SimulatedWire { world: world.clone(), actor, initiator, peers: Vec::new(), frame }
    }

    pub fn initiator(&mut self) -> &mut Initiator {
        &mut self.initiator
    }

    pub fn now_ns(&self) -> u64 {
        self.world.now_ns()
    }

    pub fn add_peer(&mut self, donor: &Donor) -> PeerIndex {
        let node = donor.node.load(Ordering::Relaxed);
        let now_ns = self.now_ns();
        self.peers.push(node as usize - 1);
        self.initiator.add_peer(NodeId(node), now_ns)
    }

    pub fn pump(&mut self) {
        let now_ns = self.now_ns();
        while let Some((donor, frame)) = self.world.take(self.actor) {
            if let Some(peer) = self.peers.iter().rposition(|of| *of == donor) {
                self.initiator.handle_frame(now_ns, PeerIndex(peer as u32), &frame);
            }
        }
        self.initiator.handle_timeout(now_ns);
        while let Some((peer, len)) = self.initiator.poll_transmit(now_ns, &mut self.frame) {
            self.world.send(self.actor, self.peers[peer.0 as usize], &self.frame[..len]);
        }
    }

    pub fn turn(&mut self, most_ns: u64) {
        self.pump();
        let latest_ns = self.now_ns() + most_ns;
        let until_ns = self.initiator.poll_timeout().map_or(latest_ns, |at| at.min(latest_ns));
        self.world.wait(self.actor, until_ns, true);
        self.pump();
    }

    pub fn rest(&mut self, time: Duration) {
        let until_ns = self.now_ns() + (time * RESTS_LONGER).as_nanos() as u64;
        self.world.wait(self.actor, until_ns, false);
    }
}
