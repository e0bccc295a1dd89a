//! Eq. 1: cost of a system, including the idle parts of its modules.

use serde::Serialize;

use crate::error::ModelError;
use crate::parameter::{Model, Outcome, Parameter, check};
use crate::quantity::Quantity;
use crate::statement::Statement;

/// Kinds of modules that Eq. 1 adds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Memory modules.
    Memory,
    /// Graphics processors and other accelerators.
    Gpu,
    /// Solid-state disks.
    Ssd,
    /// Hard disks.
    Hdd,
}

impl Kind {
    /// All kinds, in the equation's order.
    pub const ALL: [Kind; 4] = [Kind::Memory, Kind::Gpu, Kind::Ssd, Kind::Hdd];

    /// Returns the display name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Gpu => "GPU",
            Kind::Ssd => "SSD",
            Kind::Hdd => "HDD",
        }
    }
}

/// The same modules twice: pooled, and each in a server of its own. The two differ in utilisation.
#[derive(Debug, Clone, PartialEq)]
pub struct CostModel {
    /// Number of modules of each [`Kind`].
    pub modules: [f64; 4],
    /// Cost of one module of each kind.
    pub module_cost: [f64; 4],
    /// Utilisation of each kind where pooled: above 0, at most 1.
    pub composable: [f64; 4],
    /// Utilisation of each kind where not pooled.
    pub traditional: [f64; 4],
}

/// Cost of one kind of modules in both systems.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CostOfKind {
    /// Kind of the modules.
    pub kind: Kind,
    /// Number of modules.
    pub modules: f64,
    /// Cost of one module.
    pub module_cost: f64,
    /// Utilisation where pooled.
    pub composable_utilization: f64,
    /// Cost where pooled.
    pub composable_cost: f64,
    /// Utilisation where not pooled.
    pub traditional_utilization: f64,
    /// Cost where not pooled.
    pub traditional_cost: f64,
}

/// Returns one term of Eq. 1, `N C / U`: the cost of `modules` at `module_cost` each with this
/// `utilization`. Without modules 0, for any utilisation.
#[must_use]
pub fn effective_cost(modules: f64, module_cost: f64, utilization: f64) -> f64 {
    if modules == 0.0 { 0.0 } else { modules * module_cost / utilization }
}

/// The paper gives neither numbers nor prices: one module of each kind, at a cost of 1. Its
/// utilisations are 75 % pooled, and "less than 50 %" otherwise, of every kind.
impl Default for CostModel {
    fn default() -> Self {
        Self {
            modules: [1.0; 4],
            module_cost: [1.0; 4],
            composable: [0.75; 4],
            traditional: [0.5; 4],
        }
    }
}

impl CostModel {
    /// Returns the costs of both systems, kind by kind.
    ///
    /// # Errors
    /// Fails if a utilisation is not above 0 and at most 1.
    pub fn by_kind(&self) -> Result<[CostOfKind; 4], ModelError> {
        self.check()?;
        Ok(Kind::ALL.map(|kind| {
            let at = kind as usize;
            let (modules, module_cost) = (self.modules[at], self.module_cost[at]);
            let of = |utilization| effective_cost(modules, module_cost, utilization);
            CostOfKind {
                kind,
                modules,
                module_cost,
                composable_utilization: self.composable[at],
                composable_cost: of(self.composable[at]),
                traditional_utilization: self.traditional[at],
                traditional_cost: of(self.traditional[at]),
            }
        }))
    }

    /// Returns Eq. 1 of both systems: composable and traditional.
    ///
    /// # Errors
    /// Fails if a utilisation is not above 0 and at most 1, or the total cost is 0.
    pub fn totals(&self) -> Result<(f64, f64), ModelError> {
        let kinds = self.by_kind()?;
        let composable: f64 = kinds.iter().map(|kind| kind.composable_cost).sum();
        let traditional: f64 = kinds.iter().map(|kind| kind.traditional_cost).sum();
        if composable <= 0.0 || traditional <= 0.0 {
            return Err(ModelError::NothingToPay);
        }
        Ok((composable, traditional))
    }

    /// Returns the saving of the composable system, relative to the traditional one's cost; below 0
    /// if it costs more.
    ///
    /// # Errors
    /// Same as [`CostModel::totals`].
    pub fn cheaper(&self) -> Result<f64, ModelError> {
        let (composable, traditional) = self.totals()?;
        Ok(1.0 - composable / traditional)
    }

    /// Returns the excess cost of the traditional system, relative to the composable one's cost.
    ///
    /// # Errors
    /// Same as [`CostModel::totals`].
    pub fn dearer(&self) -> Result<f64, ModelError> {
        let (composable, traditional) = self.totals()?;
        Ok(traditional / composable - 1.0)
    }

    fn check(&self) -> Result<(), ModelError> {
        for (utilizations, system) in [(&self.composable, ""), (&self.traditional, "traditional ")]
        {
            for (kind, utilization) in Kind::ALL.iter().zip(utilizations) {
                let name = format!("the {system}utilization of {}", kind.name());
                let allowed = |share: f64| share > 0.0 && share <= 1.0;
                check(
                    &name,
                    Quantity::Share,
                    *utilization,
                    allowed,
                    "more than 0 %, at most 100 %",
                )?;
            }
        }
        Ok(())
    }
}

const MEMORY: usize = Kind::Memory as usize;
const GPU: usize = Kind::Gpu as usize;
const SSD: usize = Kind::Ssd as usize;
const HDD: usize = Kind::Hdd as usize;

const fn modules<const K: usize>(name: &'static str) -> Parameter<CostModel> {
    Parameter {
        name,
        quantity: Quantity::Count,
        about: "Number of modules",
        get: |model| model.modules[K],
        set: |model, value| model.modules[K] = value,
    }
}

const fn module_cost<const K: usize>(name: &'static str) -> Parameter<CostModel> {
    Parameter {
        name,
        quantity: Quantity::Cost,
        about: "Cost of one module",
        get: |model| model.module_cost[K],
        set: |model, value| model.module_cost[K] = value,
    }
}

const fn composable<const K: usize>(name: &'static str) -> Parameter<CostModel> {
    Parameter {
        name,
        quantity: Quantity::Share,
        about: "Utilization in the composable system",
        get: |model| model.composable[K],
        set: |model, value| model.composable[K] = value,
    }
}

const fn traditional<const K: usize>(name: &'static str) -> Parameter<CostModel> {
    Parameter {
        name,
        quantity: Quantity::Share,
        about: "Utilization in the traditional system",
        get: |model| model.traditional[K],
        set: |model, value| model.traditional[K] = value,
    }
}

impl Model for CostModel {
    const PARAMETERS: &'static [Parameter<Self>] = &[
        Parameter {
            name: "utilization",
            quantity: Quantity::Share,
            about: "Utilization of every kind in the composable system",
            get: |model| model.composable[0],
            set: |model, value| model.composable = [value; 4],
        },
        Parameter {
            name: "traditional-utilization",
            quantity: Quantity::Share,
            about: "Utilization of every kind in the traditional system",
            get: |model| model.traditional[0],
            set: |model, value| model.traditional = [value; 4],
        },
        modules::<MEMORY>("memory-modules"),
        module_cost::<MEMORY>("memory-cost"),
        composable::<MEMORY>("memory-utilization"),
        traditional::<MEMORY>("traditional-memory-utilization"),
        modules::<GPU>("gpu-modules"),
        module_cost::<GPU>("gpu-cost"),
        composable::<GPU>("gpu-utilization"),
        traditional::<GPU>("traditional-gpu-utilization"),
        modules::<SSD>("ssd-modules"),
        module_cost::<SSD>("ssd-cost"),
        composable::<SSD>("ssd-utilization"),
        traditional::<SSD>("traditional-ssd-utilization"),
        modules::<HDD>("hdd-modules"),
        module_cost::<HDD>("hdd-cost"),
        composable::<HDD>("hdd-utilization"),
        traditional::<HDD>("traditional-hdd-utilization"),
    ];

    fn outcomes(&self) -> Result<Vec<Outcome>, ModelError> {
        let (composable, traditional) = self.totals()?;
        Ok(vec![
            Outcome::new("composable", Quantity::Cost, composable),
            Outcome::new("traditional", Quantity::Cost, traditional),
            Outcome::new("composable is cheaper by", Quantity::Share, self.cheaper()?),
        ])
    }

    fn statements() -> Vec<Statement> {
        let paper = Self::default();
        let figure =
            |result: Result<f64, ModelError>| result.expect("the paper's figures are valid");
        vec![
            Statement::new(
                ("2", "50 % of everything in use, not 75 %: the effective cost is higher by"),
                Quantity::Share,
                (0.33, figure(paper.dearer())),
                0.005,
                "Eq. 1 gives 75/50. 33 % is how much cheaper 75 % is; to be 33 % dearer than that, \
                 56.4 % would have to be in use",
            ),
            Statement::new(
                ("2", "the same the other way round: at 75 % it is lower by"),
                Quantity::Share,
                (0.33, figure(paper.cheaper())),
                0.005,
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
    fn equation_1_sums_effective_costs() {
        let model = CostModel {
            modules: [16.0, 2.0, 4.0, 8.0],
            module_cost: [100.0, 5000.0, 400.0, 200.0],
            composable: [0.8, 0.5, 1.0, 0.25],
            traditional: [0.4, 0.5, 0.5, 0.25],
        };
        let (composable, traditional) = model.totals().unwrap();
        assert_eq!(composable, 1600.0 / 0.8 + 10_000.0 / 0.5 + 1600.0 + 1600.0 / 0.25);
        assert_eq!(traditional, 4000.0 + 20_000.0 + 3200.0 + 6400.0);
        assert_eq!(model.by_kind().unwrap()[0].composable_cost, 2000.0);
    }

    #[test]
    fn saving_is_one_third() {
        let [higher, lower] = CostModel::statements().try_into().unwrap();
        assert!(!higher.agrees && (higher.ours - 0.5).abs() < 1e-12, "{higher:?}");
        assert!(lower.agrees && (lower.ours - 1.0 / 3.0).abs() < 1e-12, "{lower:?}");
        let shop = CostModel { modules: [384.0, 8.0, 0.0, 96.0], ..CostModel::default() };
        assert!((shop.cheaper().unwrap() - 1.0 / 3.0).abs() < 1e-12);
        // The claim of the remark.
        let remark = CostModel { traditional: [0.75 / 1.33; 4], ..CostModel::default() };
        assert!((remark.dearer().unwrap() - 0.33).abs() < 1e-9);
        assert_eq!(format!("{:.1}", 75.0 / 1.33), "56.4");
    }

    #[test]
    fn rejects_invalid_parameters() {
        for utilization in [0.0, -0.5, 1.01, f64::NAN, f64::INFINITY] {
            let model =
                CostModel { composable: [0.5, utilization, 0.5, 0.5], ..CostModel::default() };
            let refused = model.outcomes().unwrap_err();
            assert!(refused.to_string().contains("utilization of GPU"), "{refused}");
        }
        let nothing = CostModel { modules: [0.0; 4], ..CostModel::default() };
        assert_eq!(nothing.outcomes(), Err(ModelError::NothingToPay));
    }

    proptest! {
        #[test]
        fn higher_utilization_costs_less(
            modules in prop::array::uniform4(1.0..1e4), cost in prop::array::uniform4(0.1..1e5),
            low in prop::array::uniform4(0.01..0.99), more in prop::array::uniform4(0.0..1.0),
        ) {
            let mut high = low;
            for (at, share) in high.iter_mut().enumerate() {
                *share += (1.0 - *share) * more[at];
            }
            let model = CostModel { modules, module_cost: cost, composable: high, traditional: low };
            prop_assert!(model.cheaper().unwrap() >= -1e-12);
            let (cheaper, dearer) = (model.cheaper().unwrap(), model.dearer().unwrap());
            prop_assert!(((1.0 - cheaper) * (1.0 + dearer) - 1.0).abs() < 1e-9);
        }
    }
}
