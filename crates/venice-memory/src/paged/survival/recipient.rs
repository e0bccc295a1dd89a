//! The recipient's supervisor: one thread renews leases, decides suspicions and releases reclaimed
//! replicas, another rebuilds missing replicas. They make the same calls as `venice-recipient`,
//! over the simulated control plane.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use venice_wire::{GrantId, NodeId, SLAB_BYTES};

use super::donor::Renewal;
use super::scenario::Scenario;
use super::world::{BUILDER, SUPERVISOR, World};
use super::{Counts, LEASE_NS};
use crate::paged::rebuild::{BuildError, Copier};
use crate::paged::run_block::{
    Batches, Fate, ReplicaAt, ReplicaState, RunBlockMap, SuspicionResolver,
};

/// Interval of the supervisor's checks, nanoseconds.
const LOOK_NS: u64 = 200_000_000;
/// Time for which a donor counts as suspected, nanoseconds.
const SILENT_FOR_NS: u64 = 3_000_000_000;

/// Borrows memory for one slab from a node: enters the grant at the donor and in the run block.
pub fn borrow(world: &World, block: &RunBlockMap, node: usize) -> ReplicaAt {
    let grant = GrantId(block.donors().len() as u64 + 1);
    let mut state = world.state();
    let now_ns = state.now_ns;
    let key = state.donors[node].lend(now_ns, grant);
    state.tend(node);
    let name = format!("node{node}");
    let number = NodeId(node as u32 + 1).0;
    let donor = block.add_donor(&name, number, &name).expect("donor table has room");
    ReplicaAt { donor, remote_addr: SLAB_BYTES, grant: grant.0, key: key.0 }
}

fn node_of(block: &RunBlockMap, donor: usize) -> usize {
    block.donors()[donor].node.load(Ordering::Relaxed) as usize - 1
}

/// Records a complete replica in the checker.
pub fn record_complete(world: &World, block: &RunBlockMap, replica: usize) {
    let entry = &block.replicas()[replica];
    let (part, at) = ((entry.slab(), entry.fragment()), entry.at());
    let node = node_of(block, at.donor);
    let mut state = world.state();
    let is_away = state.donors[node].stalls + state.donors[node].cuts > 0;
    let is_dead = state.donors[node].is_dead;
    state.loss_checker.add_complete(replica, part, node, GrantId(at.grant), is_away || is_dead);
}

/// The thread that renews leases, decides suspicions and releases replicas.
pub struct Supervisor<'a> {
    pub world: &'a Arc<World>,
    pub block: &'a Arc<RunBlockMap>,
    pub copies: usize,
    answered_ns: BTreeMap<usize, u64>,
    renewed_ns: u64,
    suspicions: SuspicionResolver,
    releasing: Option<(Vec<usize>, Batches)>,
}

impl<'a> Supervisor<'a> {
    pub fn new(
        world: &'a Arc<World>,
        block: &'a Arc<RunBlockMap>,
        scenario: &Scenario,
    ) -> Supervisor<'a> {
        Supervisor {
            world,
            block,
            copies: scenario.copies,
            answered_ns: BTreeMap::new(),
            renewed_ns: 0,
            suspicions: SuspicionResolver::default(),
            releasing: None,
        }
    }

    pub fn run(&mut self, counts: &Counts, ended: &AtomicBool) {
        while !ended.load(Ordering::Acquire) {
            let now_ns = self.world.now_ns();
            // Other holders are probed soon while a suspicion is open.
            let every_ns = if self.suspicions.is_open() { LOOK_NS } else { LEASE_NS / 4 };
            if now_ns >= self.renewed_ns + every_ns {
                self.renewed_ns = now_ns;
                self.renew_all(now_ns);
            }
            self.resolve(now_ns);
            self.release(counts);
            self.world.wait(SUPERVISOR, now_ns + LOOK_NS, false);
        }
    }

    fn renew_all(&mut self, now_ns: u64) {
        let lease = self.block.lease();
        for (index, donor) in self.block.donors().iter().enumerate() {
            if donor.is_gone() {
                continue;
            }
            // One grant for each donor entry, in the order of lending.
            let grant = GrantId(index as u64 + 1);
            let node = node_of(self.block, index);
            let renewal = self.world.state().donors[node].renew(now_ns, grant);
            let answered_ns = self.answered_ns.entry(index).or_insert(now_ns);
            let silence = Duration::from_nanos(now_ns - *answered_ns);
            match renewal {
                Renewal::Live { is_reclaiming } => {
                    *answered_ns = now_ns;
                    donor.set_reclaiming(is_reclaiming);
                }
                Renewal::Unknown => donor.lose(Fate::Revoked),
                Renewal::Refused => donor.lose(Fate::Died),
                Renewal::Silent => donor.judge_silence(silence, lease, true),
                Renewal::Unreachable => donor.judge_silence(silence, lease, false),
            }
        }
    }

    fn resolve(&mut self, now_ns: u64) {
        let answered_ns = |donor| self.answered_ns.get(&donor).copied().unwrap_or(0);
        self.suspicions.resolve(self.block, now_ns, SILENT_FOR_NS, answered_ns);
    }

    fn release(&mut self, counts: &Counts) {
        let block = self.block;
        if let Some((slabs, _)) = self.releasing.take_if(|(_, noted)| block.are_over(noted)) {
            let before: Vec<usize> = self.readable(&slabs);
            block.release_spares(&slabs);
            let after = self.readable(&slabs);
            for replica in before.into_iter().filter(|replica| !after.contains(replica)) {
                counts.moves(1);
                let released = self.world.state().loss_checker.release(replica, self.copies);
                if let Err(wrong) = released {
                    self.world.fail(wrong);
                }
            }
        }
        if self.releasing.is_none() && block.donors().iter().any(|donor| donor.is_reclaiming()) {
            let slabs = block.begin_release();
            let noted = block.batches();
            self.releasing = (!slabs.is_empty()).then_some((slabs, noted));
        }
        for (index, donor) in block.donors().iter().enumerate() {
            if donor.is_reclaiming() && block.is_donor_empty(index) && donor.give_back() {
                let (node, mut state) = (node_of(block, index), self.world.state());
                let now_ns = state.now_ns;
                state.donors[node].release(now_ns, GrantId(index as u64 + 1));
                state.tend(node);
            }
        }
    }

    fn readable(&self, slabs: &[usize]) -> Vec<usize> {
        let of_slab = |slab: &usize| self.block.readable(*slab).map(|(replica, _)| replica);
        slabs.iter().flat_map(of_slab).collect()
    }
}

/// The thread that rebuilds missing replicas.
pub struct Builder<'a> {
    pub world: &'a Arc<World>,
    pub block: &'a Arc<RunBlockMap>,
    pub copier: Copier,
    pub copies: usize,
    pub end_ns: u64,
}

impl Builder<'_> {
    pub fn run(&mut self, counts: &Counts) {
        while self.world.now_ns() < self.end_ns {
            let now_ns = self.world.now_ns();
            self.world.wait(BUILDER, now_ns + LOOK_NS, false);
            let lacking = self.lacking().next();
            if let Some((slab, fragment)) = lacking
                && let Some(node) = self.node_without(slab)
            {
                self.build(slab, fragment, node, counts);
            }
        }
        if let Some((slab, fragment)) = self.lacking().next()
            && self.node_without(slab).is_some()
        {
            self.world.fail(format!("fragment {fragment} of slab {slab} was not rebuilt"));
        }
    }

    /// Fragments with too few copies on donors that do not reclaim them.
    fn lacking(&self) -> impl Iterator<Item = (usize, usize)> + use<'_> {
        let block = self.block;
        let slabs = (0..block.slab_count()).filter(|&slab| block.slab_is_alive(slab));
        let parts = slabs.flat_map(|slab| (0..block.fragment_count()).map(move |at| (slab, at)));
        parts.filter(|&(slab, fragment)| {
            let there = block.readable_of(slab, fragment).count();
            let staying = block.staying(slab, fragment).count();
            there < self.copies || there == self.copies && staying < self.copies
        })
    }

    /// A lending node without a replica of the slab.
    fn node_without(&self, slab: usize) -> Option<usize> {
        let has = |node: usize| {
            let mut of_slab = self.block.readable(slab);
            of_slab.any(|(_, replica)| node_of(self.block, replica.donor()) == node)
        };
        let mut state = self.world.state();
        let nodes: Vec<usize> = (0..state.donors.len())
            .filter(|&node| state.donors[node].is_lending() && !has(node))
            .collect();
        (!nodes.is_empty()).then(|| *state.rng.pick(&nodes))
    }

    fn build(&mut self, slab: usize, fragment: usize, node: usize, counts: &Counts) {
        let at = borrow(self.world, self.block, node);
        let added = self.block.add_fragment(slab, fragment, at, ReplicaState::Building);
        let replica = added.expect("replica table has room");
        match self.copier.build(replica, &AtomicBool::new(false)) {
            Ok(()) => {
                record_complete(self.world, self.block, replica);
                counts.builds(1);
            }
            Err(BuildError::Lost | BuildError::NoSource | BuildError::Stopped) => {}
        }
    }
}
