//! A rack's control plane in virtual time: the real logic of Monitor Nodes, donors, agents and
//! recipients (`venice-rack`), and between them an unreliable network, a store and wrong clocks.
//!
//! Events are handled one after the other: a call or an answer arrives, a connection breaks, a timer
//! expires, the store reports a change, a fault begins or ends. Faults may strike at any step, also
//! between a message's departure and arrival. In the end all faults are over, programs end, and all
//! tables have to agree.
//!
//! - [`scenario`]: scenarios as data, or drawn from a seed.
//! - [`judge`](Checker): the promises that must hold under all faults.
//! - [`minimise`]: minimisation of a failing scenario.
//!
//! ```
//! use venice_sim::control::{self, Bounds, Scenario};
//!
//! let scenario = Scenario::random(7, &Bounds::default());
//! let report = control::run(&scenario)?;
//! assert!(report.is_ok(), "{:?}", report.violations);
//! assert_eq!(report.trace_hash, control::run(&scenario)?.trace_hash);
//! # Ok::<(), venice_sim::scenario::BadScenario>(())
//! ```

mod agent;
mod calls;
mod clock;
mod desk;
mod faults;
mod judge;
mod messages;
pub mod minimise;
mod monitor;
mod network;
mod party;
mod peace;
mod recipient;
mod report;
mod sabotage;
pub mod scenario;
mod store;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use self::judge::{Checker, Counts, Verdict, Violation};
pub use self::network::MessageCounts;
pub use self::party::{ParsePartyError, Party};
pub use self::report::Report;
pub use self::sabotage::Sabotage;
pub use self::scenario::{Bounds, Clocks, Fault, FaultKind, Impairment, Scenario, Workload};
use self::world::World;
use crate::scenario::BadScenario;

/// Runs a scenario to its end, or to the first violation.
///
/// # Errors
/// When the scenario is invalid.
pub fn run(scenario: &Scenario) -> Result<Report, BadScenario> {
    run_sabotaged(scenario, None)
}

/// Runs a scenario with a bug in it, to test the checkers.
///
/// # Errors
/// When the scenario is invalid.
pub fn run_sabotaged(
    scenario: &Scenario,
    sabotage: Option<Sabotage>,
) -> Result<Report, BadScenario> {
    scenario.check()?;
    let mut world = World::new(scenario, sabotage);
    let run = catch_unwind(AssertUnwindSafe(|| world.run()));
    if let Err(panic) = run {
        world.note_panic(panic.as_ref());
    }
    Ok(world.report())
}
