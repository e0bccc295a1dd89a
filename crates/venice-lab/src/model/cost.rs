//! Eq. 1 as tables and a plot.

use anyhow::Result;
use venice_model::{CostModel, CostOfKind, ModelError, Quantity, effective_cost};

use super::Presentation;
use crate::plot::{Line, LineChart, Plot, Scale, Stroke, Unit};
use crate::report_table::ReportTable;

impl Presentation for CostModel {
    const NAME: &'static str = "cost";
    const TITLE: &'static str = "Effective cost (Eq. 1): share in use of the modules bought";
    const LEGEND: &'static str = "Thick: cost of the same modules by the share of every kind in \
                                  use. Dashed: the two systems as configured.";
    type Detail = [CostOfKind; 4];

    fn detail(&self) -> Result<Self::Detail, ModelError> {
        self.by_kind()
    }

    fn tables(&self) -> Result<Vec<ReportTable>, ModelError> {
        let (composable, traditional) = self.totals()?;
        let (cheaper, dearer) = (self.cheaper()?, self.dearer()?);
        let (cost, share) = (Quantity::Cost, Quantity::Share);
        let head = [
            "modules",
            "number",
            "cost of one",
            "in use, composable",
            "effective cost",
            "in use, traditional",
            "effective cost",
        ];
        let mut table = ReportTable::new(Self::TITLE, &head, 1);
        for kind in self.by_kind()? {
            table.rows.push(vec![
                kind.kind.name().to_owned(),
                Quantity::Count.write(kind.modules),
                cost.write(kind.module_cost),
                share.write(kind.composable_utilization),
                cost.write(kind.composable_cost),
                share.write(kind.traditional_utilization),
                cost.write(kind.traditional_cost),
            ]);
        }
        let blank = String::new;
        table.rows.push(vec![
            "together".to_owned(),
            blank(),
            blank(),
            blank(),
            cost.write(composable),
            blank(),
            cost.write(traditional),
        ]);
        table.notes.push(if cheaper >= 0.0 {
            format!(
                "The composable system costs {} less, the traditional one {} more. The difference, \
                 {}, may be spent on the interconnect: Eq. 1 does not include it.",
                share.write(cheaper),
                share.write(dearer),
                cost.write(traditional - composable),
            )
        } else {
            format!(
                "The composable system costs {} more: less of it is in use.",
                share.write(-cheaper)
            )
        });
        if *self
            == (Self {
                composable: self.composable,
                traditional: self.traditional,
                ..Self::default()
            })
        {
            table.notes.push(
                "The paper has neither numbers nor prices: one module of each kind at a cost of 1. \
                 Where all kinds are used alike, the comparison does not depend on them."
                    .to_owned(),
            );
        }
        Ok(vec![table])
    }

    fn plots(&self) -> Result<Vec<Plot>> {
        let (composable, traditional) = self.totals()?;
        let at = |utilization: f64| -> f64 {
            let kinds = self.modules.iter().zip(&self.module_cost);
            kinds.map(|(modules, cost)| effective_cost(*modules, *cost, utilization)).sum()
        };
        let level = |name: &str, cost: f64| Line {
            name: name.to_owned(),
            stroke: Stroke::Raw,
            points: vec![(10.0, cost), (100.0, cost)],
        };
        let all = Line {
            name: "all kinds used alike".to_owned(),
            stroke: Stroke::Own,
            points: (2..=20)
                .map(|step| f64::from(step) / 20.0)
                .map(|u| (100.0 * u, at(u)))
                .collect(),
        };
        let chart = LineChart {
            title: Self::TITLE.to_owned(),
            scale: Scale::Linear,
            x: ("in use", Unit::Percent),
            y: ("effective cost", Unit::Plain),
            lines: vec![
                all,
                level("the composable system", composable),
                level("the traditional system", traditional),
            ],
        };
        let plot = |svg| Plot { name: format!("model-{}", Self::NAME), svg };
        Ok(chart.svg()?.map(plot).into_iter().collect())
    }
}
