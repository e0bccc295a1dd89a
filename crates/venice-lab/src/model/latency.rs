//! Eq. 2 as tables and a plot.

use anyhow::Result;
use serde::Serialize;
use venice_model::{LatencyModel, ModelError, Quantity, Workload, execution_time_increase};

use super::Presentation;
use crate::plot::{Line, LineChart, Plot, Scale, Stroke, Unit};
use crate::report_table::ReportTable;

/// Slowdown against local memory, as a share, that still counts as small: "minimal" in the paper's
/// related work.
const BEARABLE: f64 = 0.10;

/// Latency of a path to a pool, in JSON.
#[derive(Debug, Clone, Serialize)]
pub struct LatencyDetail {
    /// Time of an access to the pool, in nanoseconds.
    pub pool_ns: f64,
    /// Mean time of an access, in nanoseconds.
    pub average_ns: f64,
    /// Workload by workload.
    pub workloads: Vec<WorkloadDetail>,
}

/// Effect on one workload.
#[derive(Debug, Clone, Serialize)]
pub struct WorkloadDetail {
    /// The workload.
    #[serde(flatten)]
    pub workload: Workload,
    /// Extra time, as a share of the time with local memory.
    pub time_increase: f64,
    /// Share of local accesses for which it takes at most a tenth longer.
    pub local_for_a_tenth: f64,
}

impl Presentation for LatencyModel {
    const NAME: &'static str = "latency";
    const TITLE: &'static str = "Memory further away (Eq. 2): slowdown of work";
    const LEGEND: &'static str =
        "Work that spends more time on memory latency slows down more. Both axes are logarithmic.";
    type Detail = LatencyDetail;

    fn detail(&self) -> Result<LatencyDetail, ModelError> {
        let detail = |workload: Workload| WorkloadDetail {
            time_increase: self.time_increase(workload.mfp),
            local_for_a_tenth: self.local_needed(workload.mfp, BEARABLE),
            workload,
        };
        Ok(LatencyDetail {
            pool_ns: self.pool_ns(),
            average_ns: self.average_ns(),
            workloads: self.workloads().into_iter().map(detail).collect(),
        })
    }

    fn tables(&self) -> Result<Vec<ReportTable>, ModelError> {
        Ok(vec![way(self), slowdowns(self)?])
    }

    fn plots(&self) -> Result<Vec<Plot>> {
        // The range is from a tenth more than local memory to a hundred times as much.
        let steps = || {
            (0..=30).map(|step| self.base_ns * 1.1 * (100.0f64 / 1.1).powf(f64::from(step) / 30.0))
        };
        let line = |work: &Workload| Line {
            name: format!("{}, MFP {}", work.name, Quantity::Share.write(work.mfp)),
            stroke: if work.name == "--mfp" { Stroke::Peer } else { Stroke::Own },
            points: steps()
                .map(|ns| (ns, 100.0 * execution_time_increase(work.mfp, self.base_ns, ns)))
                .collect(),
        };
        let chart = LineChart {
            title: Self::TITLE.to_owned(),
            scale: Scale::Logarithmic,
            x: ("average access to memory", Unit::Nanoseconds),
            y: ("takes longer by", Unit::Percent),
            lines: self.workloads().iter().map(line).collect(),
        };
        let plot = |svg| Plot { name: format!("model-{}", Self::NAME), svg };
        Ok(chart.svg()?.map(plot).into_iter().collect())
    }
}

/// Builds the table of the latency's parts.
fn way(model: &LatencyModel) -> ReportTable {
    let mut table = ReportTable::new("Parts of an access", &["part", "time"], 1);
    let time = |ns: f64| Quantity::Time.write(ns);
    let rows = [
        ("memory itself".to_owned(), model.base_ns),
        (
            format!("round trip, {}", Quantity::Length.write(model.distance_m)),
            model.distance_m * model.ns_per_m,
        ),
        (
            format!("switches, {} passed", Quantity::Count.write(model.switches)),
            model.switches * model.switch_ns,
        ),
        ("software".to_owned(), model.software_ns),
        ("an access to the pool".to_owned(), model.pool_ns()),
        (
            format!("average, {} of all local", Quantity::Share.write(model.local)),
            model.average_ns(),
        ),
    ];
    table.rows.extend(rows.map(|(part, ns)| vec![part, time(ns)]));
    table
}

/// Builds the table of the slowdowns.
fn slowdowns(model: &LatencyModel) -> Result<ReportTable, ModelError> {
    let head = ["work", "MFP", "takes longer by", "local for +10 %"];
    let mut table = ReportTable::new(LatencyModel::TITLE, &head, 1);
    let share = |value: f64| Quantity::Share.write(value);
    for row in model.detail()?.workloads {
        table.rows.push(vec![
            row.workload.name.to_owned(),
            share(row.workload.mfp),
            share(row.time_increase),
            share(row.local_for_a_tenth),
        ]);
    }
    table.notes.push(format!(
        "The average access takes {} longer than local memory. Local for +10 %: share of accesses \
         that local memory has to serve for a slowdown of at most a tenth.",
        share(model.latency_increase())
    ));
    Ok(table)
}
