//! A scenario of donor faults, drawn from a seed.

use venice_sim::scenario::Impairment;
use venice_simkernel::random::Stream;
use venice_simkernel::units::{Nanos, Share};

use crate::paged::coding::Coding;

const MS: u64 = 1_000_000;
/// Latest begin of a fault, milliseconds.
const FAULTS_UNTIL_MS: u64 = 8000;

/// The kind of a donor's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It dies, and restarts later without contents.
    Dies,
    /// It stalls, and then goes on with its old state.
    Stalls,
    /// No frame passes in either direction, and then it is back with its old contents.
    CutOff,
    /// It reclaims its memory, and ends all grants when the fault ends.
    Reclaims,
}

#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub at_ns: u64,
    pub donor: usize,
    pub kind: FaultKind,
    pub lasts_ns: u64,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub nodes: usize,
    pub slabs: usize,
    pub copies: usize,
    pub coding: Option<Coding>,
    pub impairment: Impairment,
    pub faults: Vec<Fault>,
    /// The end of the program, nanoseconds.
    pub end_ns: u64,
}

impl Scenario {
    pub fn of(seed: u64) -> Scenario {
        let mut rng = Stream::new(seed).split("story", &[]);
        let is_coded = rng.chance(400_000);
        let codings: Vec<Coding> = Coding::all().filter(|coding| coding.fragments() <= 6).collect();
        let coding = is_coded.then(|| *rng.pick(&codings));
        let copies = if is_coded { 1 } else { *rng.pick(&[1, 2, 2, 2, 3]) };
        let parts = coding.map_or(copies, |coding| coding.fragments());
        let nodes = parts + rng.between(1, 3) as usize;
        let faults = rng.between(1, 6);
        let mut faults: Vec<Fault> = (0..faults).map(|_| fault(&mut rng, nodes)).collect();
        faults.sort_by_key(|fault| fault.at_ns);
        let over = faults.iter().map(|fault| fault.at_ns + fault.lasts_ns).max().unwrap_or(0);
        Scenario {
            seed,
            nodes,
            slabs: rng.between(1, 2) as usize,
            copies,
            coding,
            impairment: impairment(&mut rng),
            faults,
            end_ns: over + super::REBUILT_WITHIN_NS,
        }
    }
}

fn fault(rng: &mut Stream, nodes: usize) -> Fault {
    let at_ns = rng.between(100, FAULTS_UNTIL_MS) * MS;
    let donor = rng.below(nodes as u64) as usize;
    let kinds = [FaultKind::Dies, FaultKind::Stalls, FaultKind::CutOff, FaultKind::Reclaims];
    let kind = *rng.pick(&kinds);
    // A moment, less than a lease, or longer.
    let lasts_ms = match rng.below(3) {
        0 => rng.between(1, 450),
        1 => rng.between(700, 2000),
        // A stall alone may last for several leases without a loss.
        _ if kind == FaultKind::Stalls => rng.between(3000, 14_000),
        _ => rng.between(3000, 6000),
    };
    Fault { at_ns, donor, kind, lasts_ns: lasts_ms * MS }
}

fn impairment(rng: &mut Stream) -> Impairment {
    if rng.chance(500_000) {
        return Impairment::default();
    }
    Impairment {
        loss: Share(rng.below(20_000) as u32),
        duplicate: Share(rng.below(20_000) as u32),
        corrupt: Share(rng.below(5000) as u32),
        reorder: Share(rng.below(100_000) as u32),
        jitter: Nanos(rng.between(1, 2 * MS)),
        stale: Share(rng.below(10_000) as u32),
    }
}
