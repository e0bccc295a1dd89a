//! Eq. 2: increase of execution time when memory is further away.

use serde::Serialize;

use crate::error::ModelError;
use crate::parameter::{Model, Outcome, Parameter, check};
use crate::quantity::Quantity;
use crate::statement::Statement;

/// Returns Eq. 2, `MFP = ΔET / ΔML`: the part of its time that work spends on memory latency, from
/// the increase of its time (`time_increase`) when the latency grew by `latency_increase`, both
/// relative to their baseline.
#[must_use]
pub fn memory_fraction_of_performance(time_increase: f64, latency_increase: f64) -> f64 {
    time_increase / latency_increase
}

/// Returns Eq. 2 solved for ΔET: the increase of execution time, relative to its time with a memory
/// latency of `base_ns`, at an average latency of `latency_ns`.
#[must_use]
pub fn execution_time_increase(mfp: f64, base_ns: f64, latency_ns: f64) -> f64 {
    mfp * (latency_ns - base_ns) / base_ns
}

/// A workload, and its sensitivity to memory latency.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Workload {
    /// Name of the workload.
    pub name: &'static str,
    /// Memory fraction of performance, of 1.
    pub mfp: f64,
}

/// Workloads of Figure 7, with the figures of the paper's text.
pub const PAPER_WORKLOADS: [Workload; 4] = [
    Workload { name: "SPEC INT, 1 thread", mfp: 0.20 },
    Workload { name: "SPEC FP, 1 thread", mfp: 0.16 },
    Workload { name: "SPEC INT, 8 threads", mfp: 0.08 },
    Workload { name: "the most sensitive", mfp: 0.59 },
];

/// Latency of memory over a path to a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct LatencyModel {
    /// Latency of memory that is not pooled, in nanoseconds.
    pub base_ns: f64,
    /// Length of the path to the pool and back, in metres.
    pub distance_m: f64,
    /// Propagation time of light for a metre, in nanoseconds.
    pub ns_per_m: f64,
    /// Switch passes of an access.
    pub switches: f64,
    /// Time of one pass, in nanoseconds.
    pub switch_ns: f64,
    /// Software overhead of an access, in nanoseconds.
    pub software_ns: f64,
    /// Part of all accesses that local memory serves, of 1.
    pub local: f64,
    /// Memory fraction of performance of the workload in question, of 1.
    pub mfp: f64,
}

/// The paper's least: 75 ns, and the faster of its switches, "therefore ... the total memory
/// latency will be at minimum 150 ns". The workload is that of its example.
impl Default for LatencyModel {
    fn default() -> Self {
        Self {
            base_ns: 75.0,
            distance_m: 0.0,
            ns_per_m: 5.0,
            switches: 1.0,
            switch_ns: 75.0,
            software_ns: 0.0,
            local: 0.0,
            mfp: 0.4,
        }
    }
}

impl LatencyModel {
    /// Returns the latency that the path adds to an access, in nanoseconds.
    #[must_use]
    pub fn added_ns(&self) -> f64 {
        self.distance_m * self.ns_per_m + self.switches * self.switch_ns + self.software_ns
    }

    /// Returns the latency of an access to the pool, in nanoseconds.
    #[must_use]
    pub fn pool_ns(&self) -> f64 {
        self.base_ns + self.added_ns()
    }

    /// Returns the average latency of an access, local ones included, in nanoseconds.
    #[must_use]
    pub fn average_ns(&self) -> f64 {
        self.base_ns + (1.0 - self.local) * self.added_ns()
    }

    /// Returns the increase of the average latency, relative to local memory: ΔML.
    #[must_use]
    pub fn latency_increase(&self) -> f64 {
        (self.average_ns() - self.base_ns) / self.base_ns
    }

    /// Returns the increase of the time of work with this `mfp`: ΔET.
    #[must_use]
    pub fn time_increase(&self, mfp: f64) -> f64 {
        execution_time_increase(mfp, self.base_ns, self.average_ns())
    }

    /// Returns the part of all accesses that must be local for work with this `mfp` to take at most
    /// `time_increase` longer, of 1. 0 if the path alone stays within the limit.
    #[must_use]
    pub fn local_needed(&self, mfp: f64, time_increase: f64) -> f64 {
        let all_far = execution_time_increase(mfp, self.base_ns, self.pool_ns());
        if all_far <= time_increase { 0.0 } else { 1.0 - time_increase / all_far }
    }

    /// Returns the workloads to report: the paper's, and the one in question.
    #[must_use]
    pub fn workloads(&self) -> Vec<Workload> {
        let asked = Workload { name: "--mfp", mfp: self.mfp };
        PAPER_WORKLOADS.into_iter().chain([asked]).collect()
    }

    fn check(&self) -> Result<(), ModelError> {
        let positive = |value: f64| value > 0.0;
        check("--base-latency", Quantity::Time, self.base_ns, positive, "more than 0 ns")?;
        let part = |value: f64| (0.0..=1.0).contains(&value);
        check("--local", Quantity::Share, self.local, part, "at most 100 %")?;
        check("--mfp", Quantity::Share, self.mfp, part, "at most 100 %")
    }

    /// Returns a path with only the parts that the paper's sentence names.
    fn bare() -> Self {
        Self { switches: 0.0, ..Self::default() }
    }
}

impl Model for LatencyModel {
    const PARAMETERS: &'static [Parameter<Self>] = &[
        Parameter {
            name: "software",
            quantity: Quantity::Time,
            about: "Software overhead of an access: a page fault, a driver",
            get: |model| model.software_ns,
            set: |model, value| model.software_ns = value,
        },
        Parameter {
            name: "base-latency",
            quantity: Quantity::Time,
            about: "Latency of memory that is not pooled",
            get: |model| model.base_ns,
            set: |model, value| model.base_ns = value,
        },
        Parameter {
            name: "distance",
            quantity: Quantity::Length,
            about: "Length of the path to the pool and back",
            get: |model| model.distance_m,
            set: |model, value| model.distance_m = value,
        },
        Parameter {
            name: "propagation",
            quantity: Quantity::TimePerLength,
            about: "Propagation time of light for a metre",
            get: |model| model.ns_per_m,
            set: |model, value| model.ns_per_m = value,
        },
        Parameter {
            name: "switches",
            quantity: Quantity::Count,
            about: "Switch passes of an access",
            get: |model| model.switches,
            set: |model, value| model.switches = value,
        },
        Parameter {
            name: "switch-latency",
            quantity: Quantity::Time,
            about: "Time of one pass: 75 to 150 ns in the paper",
            get: |model| model.switch_ns,
            set: |model, value| model.switch_ns = value,
        },
        Parameter {
            name: "local",
            quantity: Quantity::Share,
            about: "Part of all accesses that local memory serves",
            get: |model| model.local,
            set: |model, value| model.local = value,
        },
        Parameter {
            name: "mfp",
            quantity: Quantity::Share,
            about: "Memory fraction of performance of your own work",
            get: |model| model.mfp,
            set: |model, value| model.mfp = value,
        },
    ];

    fn outcomes(&self) -> Result<Vec<Outcome>, ModelError> {
        self.check()?;
        let mut outcomes = vec![
            Outcome::new("average access", Quantity::Time, self.average_ns()),
            Outcome::new("longer by", Quantity::Share, self.latency_increase()),
        ];
        outcomes.extend(
            self.workloads()
                .into_iter()
                .map(|work| Outcome::new(work.name, Quantity::Share, self.time_increase(work.mfp))),
        );
        Ok(outcomes)
    }

    fn statements() -> Vec<Statement> {
        let bare = Self::bare();
        let integers = PAPER_WORKLOADS[0].mfp;
        let chassis = Self { distance_m: 6.0, ..bare.clone() };
        let racks = Self { distance_m: 20.0, ..bare.clone() };
        let software = |software_ns| Self { software_ns, ..bare.clone() }.time_increase(integers);
        let doubled = execution_time_increase(0.4, 75.0, 150.0);
        let time = Quantity::Time;
        let share = Quantity::Share;
        vec![
            Statement::new(
                ("7", "an MFP of 40 %, latency doubled from 75 to 150 ns: takes longer by"),
                share,
                (0.40, doubled),
                0.005,
                "",
            ),
            Statement::new(
                ("7", "a chassis in the rack, 6 m there and back, adds"),
                time,
                (30.0, chassis.added_ns()),
                0.5,
                "",
            ),
            Statement::new(
                ("7", "which makes memory slower by"),
                share,
                (0.40, chassis.latency_increase()),
                0.005,
                "",
            ),
            Statement::new(
                ("7", "a few racks apart, 10 m and back, adds"),
                time,
                (100.0, racks.added_ns()),
                0.5,
                "",
            ),
            Statement::new(
                ("7", "racks that serve a whole data centre, about 100 m, add"),
                time,
                (500.0, 100.0 * bare.ns_per_m),
                0.5,
                "counts the 100 m once: there and back they take 1 µs",
            ),
            Statement::new(
                ("7", "the least latency with a switch is"),
                time,
                (150.0, Self::default().pool_ns()),
                0.5,
                "",
            ),
            Statement::new(
                ("7", "by which SPEC INT takes longer by at least"),
                share,
                (0.40, Self::default().time_increase(integers)),
                0.005,
                "Eq. 2 gives 20 % of an increase of 100 %. 40 % is what the example's MFP of 40 % gives",
            ),
            Statement::new(
                ("7", "software that adds 1 µs: SPEC INT takes longer by"),
                share,
                (2.66, software(1000.0)),
                0.01,
                "",
            ),
            Statement::new(
                ("7", "software that adds 10 µs: SPEC INT takes longer by"),
                share,
                (26.66, software(10_000.0)),
                0.01,
                "",
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reproduces_paper_figures_except_one() {
        let statements = LatencyModel::statements();
        let off: Vec<_> = statements.iter().filter(|one| !one.agrees).collect();
        assert_eq!(off.len(), 1, "{off:?}");
        assert_eq!((off[0].paper, off[0].remark.is_empty()), (0.40, false));
        assert!((off[0].ours - 0.20).abs() < 1e-12);
    }

    #[test]
    fn mfp_matches_definition() {
        assert_eq!(memory_fraction_of_performance(0.4, 1.0), 0.4);
        let model = LatencyModel { software_ns: 1000.0, ..LatencyModel::default() };
        let back =
            memory_fraction_of_performance(model.time_increase(0.2), model.latency_increase());
        assert!((back - 0.2).abs() < 1e-12);
    }

    #[test]
    fn local_memory_hides_latency() {
        let far = LatencyModel { software_ns: 5000.0, ..LatencyModel::default() };
        let needed = far.local_needed(0.2, 0.1);
        let model = LatencyModel { local: needed, ..far.clone() };
        assert!((model.time_increase(0.2) - 0.1).abs() < 1e-9, "{needed}");
        assert_eq!(far.local_needed(0.0, 0.1), 0.0);
        let all = LatencyModel { local: 1.0, ..far };
        assert_eq!((all.average_ns(), all.latency_increase()), (75.0, 0.0));
    }

    #[test]
    fn rejects_invalid_parameters() {
        let base = LatencyModel { base_ns: 0.0, ..LatencyModel::default() };
        assert!(base.outcomes().unwrap_err().to_string().contains("--base-latency"));
        for (local, mfp) in [(1.5, 0.2), (0.5, 1.2), (f64::NAN, 0.2)] {
            assert!(LatencyModel { local, mfp, ..LatencyModel::default() }.outcomes().is_err());
        }
    }

    proptest! {
        #[test]
        fn longer_path_is_never_faster(
            distance_m in 0.0..1e4, switches in 0.0..16.0, switch_ns in 0.0..1e5,
            software_ns in 0.0..1e6, local in 0.0..1.0, mfp in 0.0..1.0, more in 0.0..1e6,
        ) {
            let near = LatencyModel {
                distance_m, switches, switch_ns, software_ns, local, mfp, ..LatencyModel::default()
            };
            let base = near.time_increase(mfp);
            prop_assert!(base >= 0.0 && near.average_ns() <= near.pool_ns() * (1.0 + 1e-12));
            for far in [
                LatencyModel { distance_m: distance_m + more, ..near.clone() },
                LatencyModel { software_ns: software_ns + more, ..near.clone() },
                LatencyModel { local: local / 2.0, ..near.clone() },
            ] {
                prop_assert!(far.time_increase(mfp) >= base);
            }
        }
    }
}
