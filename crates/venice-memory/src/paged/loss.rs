//! Pages lost with their donors: recorded in the run block, for the supervisor to report.

use std::sync::atomic::Ordering;

use super::proc_maps;
use super::run_block::{Fate, Process, RunBlockMap};

/// The report of a lost page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The process that touched it.
    pub pid: u32,
    /// The donors that held it, and how each was lost; `None`: it lives, but has missed a write.
    pub donors: Vec<(String, Option<Fate>)>,
    /// True if the donors held fragments of it.
    pub is_coded: bool,
    /// Address of the page.
    pub address: u64,
    /// The mapping around it.
    pub region: std::ops::Range<u64>,
}

/// Records that the page at `address` is lost; the access to it gets `SIGBUS`.
pub(super) fn note(process: &Process, slot: u32, address: usize) {
    let region = region_of(address).unwrap_or(address..address);
    process.lost_slot.store(u64::from(slot), Ordering::Relaxed);
    process.lost_region_start.store(region.start as u64, Ordering::Relaxed);
    process.lost_region_end.store(region.end as u64, Ordering::Relaxed);
    process.lost_address.store(address as u64 + 1, Ordering::Release);
}

/// Takes the losses recorded since the last call.
pub fn take(block: &RunBlockMap) -> Vec<Loss> {
    let noted = |(_, process): (usize, &Process)| {
        let address = process.lost_address.swap(0, Ordering::AcqRel).checked_sub(1)?;
        let start = process.lost_region_start.load(Ordering::Relaxed);
        let slab = block.slab_of(process.lost_slot.load(Ordering::Relaxed) as u32);
        let had = block.replicas_of(slab).map(|(_, replica)| replica.donor());
        // Donors that were given back had nothing to lose.
        let donors = had.map(|donor| &block.donors()[donor]);
        let donors = donors.filter(|donor| !donor.is_given_back());
        Some(Loss {
            pid: process.pid.load(Ordering::Relaxed),
            donors: donors.map(|donor| (donor.name(), donor.fate())).collect(),
            is_coded: block.coding().is_some(),
            address,
            region: start..process.lost_region_end.load(Ordering::Relaxed),
        })
    };
    block.live_processes().filter_map(noted).collect()
}

/// Returns the mapping around `address`. Allocates nothing: it may be called in a signal handler.
fn region_of(address: usize) -> Option<std::ops::Range<usize>> {
    let mut found = None;
    proc_maps::for_each(|mapping| {
        let region = mapping.start..mapping.end;
        found = region.contains(&address).then_some(region);
        found.is_none()
    });
    found
}

#[cfg(test)]
mod tests {
    use super::super::run_block::{PortKind, ReplicaAt};
    use super::*;

    #[test]
    fn loss_is_reported_once() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        let donor = block.add_donor("node3", 3, "").unwrap();
        block.add_slab(ReplicaAt { donor, remote_addr: 0, grant: 1, key: 1 }).unwrap();
        let place = block.enter_process(77).unwrap();
        let here = &raw const place as usize;
        note(&block.processes[place], 0, here);
        let losses = take(&block);
        assert_eq!((losses.len(), losses[0].pid), (1, 77));
        assert_eq!(losses[0].donors, [("node3".to_string(), None)]);
        assert!(losses[0].region.contains(&(here as u64)), "a stack is a mapping too");
        assert!(take(&block).is_empty());
    }
}
