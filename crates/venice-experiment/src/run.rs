//! Simulations in steps that are short on the clock, so that progress and interrupts are prompt.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::{Outcome, Simulation, State};

/// First step of virtual time: a microsecond.
const FIRST_STEP_PS: u64 = 1_000_000;
/// A step takes about this long.
const STEP: Duration = Duration::from_millis(50);

/// A point that was run.
#[derive(Debug)]
pub struct RunPoint {
    /// Its state at the end.
    pub state: State,
    /// Its results.
    pub outcome: Outcome,
    /// The packets of the captured link as a pcapng file, and their number.
    pub captured: Option<(Vec<u8>, usize)>,
}

/// Runs a simulation to its end, or until `observe` breaks, which is asked after each step; `captures`
/// says that it captures a link.
pub fn run_point(
    mut simulation: Box<dyn Simulation>,
    captures: bool,
    observe: &mut dyn FnMut(&dyn Simulation) -> ControlFlow<()>,
) -> RunPoint {
    let end = |simulation: Box<dyn Simulation>, state| RunPoint {
        state,
        outcome: simulation.outcome(),
        captured: captures.then(|| simulation.captured()),
    };
    let mut step = FIRST_STEP_PS;
    while !simulation.is_over() {
        let start = Instant::now();
        simulation.advance(simulation.now().saturating_add(step));
        step = match start.elapsed() {
            took if took < STEP / 2 => step.saturating_mul(2),
            took if took > STEP * 2 => (step / 2).max(1),
            _ => step,
        };
        if observe(&*simulation).is_break() && !simulation.is_over() {
            return end(simulation, State::Interrupted);
        }
    }
    end(simulation, State::Done)
}
