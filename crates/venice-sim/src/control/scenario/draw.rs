//! Scenarios drawn from a seed, the input of thousands of runs.

use super::{Clocks, Fault, FaultKind, Impairment, Party, Scenario, Workload};
use venice_simkernel::random::Stream;
use venice_simkernel::units::{Nanos, Share};

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

/// Bounds of a random scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Fewest Monitor Nodes.
    pub min_monitors: u16,
    /// Most Monitor Nodes.
    pub max_monitors: u16,
    /// Most donors.
    pub max_donors: u16,
    /// Most recipients.
    pub max_recipients: u16,
    /// Most faults.
    pub max_faults: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { min_monitors: 1, max_monitors: 3, max_donors: 5, max_recipients: 6, max_faults: 8 }
    }
}

impl Scenario {
    /// Draws the scenario of a seed.
    pub fn random(seed: u64, bounds: &Bounds) -> Self {
        let root = Stream::new(seed).split("control", &[]);
        let mut rng = root.split("rack", &[]);
        let mut scenario = Self {
            seed,
            donors: rng.between(1, bounds.max_donors.into()) as u16,
            recipients: rng.between(1, bounds.max_recipients.into()) as u16,
            monitors: draw_monitors(&mut rng, bounds),
            slabs: *rng.pick(&[2, 4, 8, 16]),
            devices: rng.chance(600_000),
            lease: Nanos(*rng.pick(&[8 * S, 10 * S])),
            span: Nanos(rng.between(8 * S, 25 * S)),
            network: draw_network(&mut root.split("network", &[])),
            clocks: draw_clocks(&mut root.split("clocks", &[])),
            workload: draw_workload(&mut root.split("workload", &[])),
            faults: Vec::new(),
        };
        let count = root.split("faults", &[]).below(u64::from(bounds.max_faults) + 1);
        let draw = |n| draw_fault(&mut root.split("fault", &[n]), &scenario);
        scenario.faults = (0..count).map(draw).collect();
        scenario
    }
}

fn draw_monitors(rng: &mut Stream, bounds: &Bounds) -> u16 {
    rng.between(bounds.min_monitors.into(), bounds.max_monitors.into()) as u16
}

fn draw_network(rng: &mut Stream) -> Impairment {
    let share = |rng: &mut Stream, shares: &[u32]| Share(*rng.pick(shares));
    Impairment {
        latency: Nanos(*rng.pick(&[50_000, 200_000, 5 * MS])),
        jitter: Nanos(*rng.pick(&[50_000, MS, 40 * MS])),
        loss: share(rng, &[0, 0, 5_000, 50_000]),
        resets: share(rng, &[0, 0, 10_000, 100_000]),
        late: share(rng, &[0, 0, 20_000, 100_000]),
        late_by: Nanos(*rng.pick(&[300 * MS, 3 * S, 12 * S])),
    }
}

fn draw_clocks(rng: &mut Stream) -> Clocks {
    Clocks {
        apart: Nanos(*rng.pick(&[0, 10 * S, 600 * S])),
        drift: Share(*rng.pick(&[0, 200, 2_000])),
    }
}

fn draw_workload(rng: &mut Stream) -> Workload {
    let share = |rng: &mut Stream, shares: &[u32]| Share(*rng.pick(shares));
    Workload {
        think: Nanos(*rng.pick(&[100 * MS, S, 3 * S])),
        hold: Nanos(*rng.pick(&[500 * MS, 3 * S, 10 * S])),
        max_slabs: *rng.pick(&[1, 4, 12]),
        device: share(rng, &[0, 200_000, 700_000]),
        named: share(rng, &[0, 200_000, 700_000]),
        copies: share(rng, &[0, 200_000]),
        wait: share(rng, &[0, 300_000, 600_000, 900_000]),
        preempt: share(rng, &[0, 300_000]),
        die: share(rng, &[0, 100_000, 400_000]),
        transfer: share(rng, &[0, 200_000, 500_000, 900_000]),
    }
}

fn draw_fault(rng: &mut Stream, scenario: &Scenario) -> Fault {
    let at = Nanos(rng.below(scenario.span.0));
    let lease_ns = scenario.lease.0;
    // Durations: a moment, less than the detection time, about a lease, and longer.
    let lasts = Nanos(match rng.below(4) {
        0 => rng.between(MS, 300 * MS),
        1 => rng.between(300 * MS, 4 * S),
        2 => rng.between(3 * S, lease_ns),
        _ => rng.between(lease_ns, 2 * lease_ns),
    });
    Fault { at, lasts, kind: draw_kind(rng, scenario) }
}

fn draw_kind(rng: &mut Stream, scenario: &Scenario) -> FaultKind {
    let donor = |rng: &mut Stream| rng.below(scenario.donors.into()) as u16;
    let anybody = |rng: &mut Stream| match rng.below(8) {
        0..3 => Party::Monitor(rng.below(scenario.monitors.into()) as u16),
        3..6 => Party::Donor(rng.below(scenario.donors.into()) as u16),
        6 if scenario.monitors > 1 => Party::Store,
        _ => Party::Recipient(rng.below(scenario.recipients.into()) as u16),
    };
    match rng.below(12) {
        0..3 => match anybody(rng) {
            Party::Store => FaultKind::Freeze { who: Party::Store },
            who => FaultKind::Crash { who },
        },
        3 | 4 => FaultKind::Freeze { who: anybody(rng) },
        5 => FaultKind::Isolate { who: anybody(rng) },
        6 | 7 => {
            let (from, to) = (anybody(rng), anybody(rng));
            match from == to {
                true => FaultKind::Isolate { who: from },
                false => FaultKind::Cut { from, to, both: rng.chance(500_000) },
            }
        }
        8 => FaultKind::Storm { impairment: draw_network(rng) },
        9 => FaultKind::Drain { donor: donor(rng) },
        10 => FaultKind::Pressure { donor: donor(rng), slabs: rng.between(1, 8) as u32 },
        _ => FaultKind::Break { donor: donor(rng) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_scenario_is_valid_and_round_trips() {
        for seed in 0..300 {
            let scenario = Scenario::random(seed, &Bounds::default());
            assert_eq!(scenario.check(), Ok(()), "seed {seed}");
            assert_eq!(Scenario::from_toml(&scenario.to_toml()), Ok(scenario));
        }
    }
}
