//! Survival simulation in virtual time: the real code that reads, writes, copies and repairs far
//! memory ([`Framed`](super::framed), the [`Copier`](super::rebuild::Copier), the run block, the
//! fabric's initiator and target) runs over the simulator's links. Meanwhile donors die, stall, are
//! cut off and return, or reclaim their memory. An independent checker watches these promises:
//!
//! - No byte is ever wrong.
//! - A loss needs more donors gone at once than the redundancy bears ([`loss_checker`] derives that from
//!   the faults alone), and the program gets an error.
//! - No access takes longer than [`ANSWERED_WITHIN_NS`].
//! - Lost replicas are rebuilt within [`REBUILT_WITHIN_NS`] after the last fault.
//! - A donor that was dropped and has returned with its old contents is not read.
//!
//! One seed is one run. `VENICE_SURVIVAL_SEED=7` runs only seed 7. `VENICE_SURVIVAL_SEEDS=100000`
//! runs that many, from `VENICE_SURVIVAL_SEED` on (`scripts/soak.sh`).

mod donor;
mod loss_checker;
mod program;
mod recipient;
mod scenario;
mod wire;
mod world;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use venice_simkernel::random::Stream;
use venice_testkit::seeds::{on_all_processors, seeds};

use self::program::{Model, Thread};
use self::recipient::{Builder, Supervisor, borrow, record_complete};
use self::scenario::{FaultKind, Scenario};
pub use self::wire::SimulatedWire;
use self::world::{BUILDER, EVICTOR, HANDLER, SUPERVISOR, World};
use super::far::Far;
use super::rebuild::Copier;
use super::run_block::{Owner, PortKind, ReplicaState, RunBlockMap, SILENT_LEASES};

/// Lease of every grant, nanoseconds.
const LEASE_NS: u64 = 3_000_000_000;
/// Time without a sign of life after which a link counts as failed: less than half a lease, so that
/// the decision about the donor comes before the lease expires.
const SILENCE_NS: u64 = 1_000_000_000;
/// The longest an access may take: until the only donor that has the page counts as lost.
const ANSWERED_WITHIN_NS: u64 = (SILENT_LEASES as u64 + 3) * LEASE_NS;
/// Time after the last fault within which all lost replicas must be rebuilt.
const REBUILT_WITHIN_NS: u64 = 4 * LEASE_NS;
/// Seeds of `make test-all`; each commit's `make test` runs a share of them.
const SEEDS: u64 = 2000;

/// Counts of the events of some runs.
#[derive(Debug, Default)]
struct Counts {
    reads: AtomicUsize,
    writes: AtomicUsize,
    losses: AtomicUsize,
    builds: AtomicUsize,
    moves: AtomicUsize,
}

impl Counts {
    fn reads(&self, count: usize) {
        self.reads.fetch_add(count, Ordering::Relaxed);
    }

    fn writes(&self, count: usize) {
        self.writes.fetch_add(count, Ordering::Relaxed);
    }

    fn losses(&self, count: usize) {
        self.losses.fetch_add(count, Ordering::Relaxed);
    }

    fn builds(&self, count: usize) {
        self.builds.fetch_add(count, Ordering::Relaxed);
    }

    fn moves(&self, count: usize) {
        self.moves.fetch_add(count, Ordering::Relaxed);
    }
}

/// A run block for the scenario, without slabs.
fn new_block(scenario: &Scenario) -> Arc<RunBlockMap> {
    let (_fd, block) = match scenario.coding {
        None => RunBlockMap::create(PortKind::Udp, scenario.slabs, scenario.copies),
        Some(coding) => RunBlockMap::create_coded(PortKind::Udp, scenario.slabs, coding),
    }
    .expect("run block fits");
    block.copies.store(scenario.copies as u32, Ordering::Relaxed);
    block.set_lease(Duration::from_nanos(LEASE_NS));
    Arc::new(block)
}

fn lend_slabs(world: &World, block: &RunBlockMap, scenario: &Scenario) {
    for slab in 0..scenario.slabs {
        let parts = scenario.coding.map_or(scenario.copies, |coding| coding.fragments());
        for part in 0..parts {
            let at = borrow(world, block, (part + slab) % scenario.nodes);
            let fragment = if scenario.coding.is_some() { part } else { 0 };
            let added = match part {
                0 => block.add_slab(at),
                _ => block.add_fragment(slab, fragment, at, ReplicaState::Live),
            };
            added.expect("slab fits");
        }
    }
    (0..block.replicas().len()).for_each(|replica| record_complete(world, block, replica));
}

/// Runs a scenario; `spoil` may plant a mistake before it begins. An error: the broken promise.
fn run(scenario: &Scenario, counts: &Counts, spoil: impl FnOnce(&World)) -> Result<u64, String> {
    let block = new_block(scenario);
    let world = Arc::new(World::new(scenario, &block));
    lend_slabs(&world, &block, scenario);
    spoil(&world);
    let model = Model::new(&block, scenario.slabs);
    let root = Stream::new(scenario.seed);
    let far = |actor: usize| {
        let seed = root.split("initiator", &[actor as u64]).draw();
        Far::simulated(&block, SimulatedWire::new(&world, actor, seed))
    };
    let thread = |actor: usize, far: Far| Thread {
        world: &world,
        block: &block,
        model: &model,
        far,
        rng: root.split("program", &[actor as u64]),
        end_ns: scenario.end_ns,
    };
    let writing = far(EVICTOR).writing(&block, Owner::Lane).expect("writer table has room");
    let (mut evictor, mut handler) = (thread(EVICTOR, writing), thread(HANDLER, far(HANDLER)));
    let copier = Copier::over(&block, far(BUILDER));
    let (copies, end_ns) = (scenario.copies, scenario.end_ns);
    let mut builder = Builder { world: &world, block: &block, copier, copies, end_ns };
    let mut supervisor = Supervisor::new(&world, &block, scenario);
    let ended = AtomicBool::new(false);
    let act = |actor: usize, body: &mut dyn FnMut()| {
        let acted = catch_unwind(AssertUnwindSafe(|| {
            world.begin(actor);
            body();
            world.end(actor);
        }));
        if acted.is_err() {
            let mut state = world.state();
            state.wrong.get_or_insert_with(|| format!("actor {actor} panicked"));
            drop(state);
            world.wake_all();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| act(EVICTOR, &mut || evictor.evict(counts)));
        scope.spawn(|| act(BUILDER, &mut || builder.run(counts)));
        scope.spawn(|| act(SUPERVISOR, &mut || supervisor.run(counts, &ended)));
        scope.spawn(|| {
            act(HANDLER, &mut || {
                handler.read(counts);
                ended.store(true, Ordering::Release);
            });
        });
        world.start();
    });
    let state = world.state();
    state.wrong.clone().map_or(Ok(state.now_ns), Err)
}

fn number_from(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("the variable is a number"))
}

/// Runs the seeds on all processors and returns the counts of all of them.
fn run_all(seeds: Range<u64>) -> Counts {
    let counts = Counts::default();
    on_all_processors(seeds, |seed| {
        let scenario = Scenario::of(seed);
        if let Err(wrong) = run(&scenario, &counts, |_| ()) {
            panic!(
                "seed {seed}: {wrong}\n{scenario:#?}\nreplay it with VENICE_SURVIVAL_SEED={seed} \
                 cargo test -p venice-memory survival::faults_never_corrupt_pages"
            );
        }
    });
    counts
}

#[test]
fn faults_never_corrupt_pages() {
    let (first, count) =
        (number_from("VENICE_SURVIVAL_SEED"), number_from("VENICE_SURVIVAL_SEEDS"));
    let chosen = match (first, count) {
        (None, None) => seeds(SEEDS),
        (first, count) => first.unwrap_or(0)..first.unwrap_or(0) + count.unwrap_or(1),
    };
    let began = std::time::Instant::now();
    let counts = run_all(chosen.clone());
    println!("{chosen:?} in {:?}: {counts:?}", began.elapsed());
    if chosen.end - chosen.start >= SEEDS {
        let counts = [&counts.reads, &counts.writes, &counts.losses, &counts.builds, &counts.moves];
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) > 100), "{counts:?}");
    }
}

#[test]
fn equal_seeds_run_equally() {
    for seed in 0..5 {
        let counts = [Counts::default(), Counts::default()];
        let ends =
            counts.each_ref().map(|counts| run(&Scenario::of(seed), counts, |_| ()).unwrap());
        assert_eq!(ends[0], ends[1]);
        assert_eq!(format!("{:?}", counts[0]), format!("{:?}", counts[1]));
    }
}

/// The checker must find a donor that confirms writes it drops.
#[test]
fn checker_finds_dropped_writes() {
    let spoil = |world: &World| {
        world.state().donors.iter_mut().for_each(|donor| donor.drops_one_in = Some(50));
    };
    let found =
        (0..20).filter(|&seed| run(&Scenario::of(seed), &Counts::default(), spoil).is_err());
    assert!(found.count() > 15);
}

/// Short stalls of donors without any death lose nothing.
#[test]
fn short_stalls_lose_nothing() {
    for seed in 0..50 {
        let mut scenario = Scenario::of(seed);
        for fault in &mut scenario.faults {
            (fault.kind, fault.lasts_ns) = (FaultKind::Stalls, fault.lasts_ns % 450_000_000);
        }
        let counts = Counts::default();
        run(&scenario, &counts, |_| ()).unwrap();
        assert_eq!(counts.losses.load(Ordering::Relaxed), 0, "seed {seed}");
    }
}
