//! Table 1 as tables and a plot.

use anyhow::Result;
use venice_model::{
    Cell, Distance, Fit, Interconnect, ModelError, NetworkModel, Quantity, Resource, Span,
};

use super::Presentation;
use crate::plot::{Line, LineChart, Plot, Scale, Stroke, Unit};
use crate::report_table::ReportTable;

impl Presentation for NetworkModel {
    const NAME: &'static str = "network";
    const TITLE: &'static str = "Which interconnect for which resource (Table 1)";
    const LEGEND: &'static str = "Thick: largest latency added by an interconnect over a distance. \
                                  Dashed: least own latency of the pooled resource. Both axes are \
                                  logarithmic.";
    type Detail = Vec<Cell>;

    fn detail(&self) -> Result<Vec<Cell>, ModelError> {
        self.cells()
    }

    fn tables(&self) -> Result<Vec<ReportTable>, ModelError> {
        Ok(vec![table(self)?, rest(self)?])
    }

    fn plots(&self) -> Result<Vec<Plot>> {
        let metres = || (0..=24).map(|step| 1000f64.powf(f64::from(step) / 24.0));
        let all = Interconnect::PAPER.into_iter().chain([Interconnect::Own]);
        let mut lines: Vec<Line> = all
            .map(|by| {
                let port_ns = self.interconnects_ns[by as usize].most;
                let added = |m: f64| (m, self.crossings * (m * self.ns_per_m + port_ns));
                let stroke = if by == Interconnect::Own { Stroke::Peer } else { Stroke::Own };
                Line { name: by.name().to_owned(), stroke, points: metres().map(added).collect() }
            })
            .collect();
        lines.extend(Resource::ALL.map(|resource| {
            let own_ns = self.resources_ns[resource as usize].least;
            let points = vec![(1.0, own_ns), (1000.0, own_ns)];
            Line { name: format!("{} itself", resource.name()), stroke: Stroke::Raw, points }
        }));
        let chart = LineChart {
            title: "Latency added by interconnects, by distance".to_owned(),
            scale: Scale::Logarithmic,
            x: ("distance", Unit::Metres),
            y: ("added to an access", Unit::Nanoseconds),
            lines,
        };
        let plot = |svg| Plot { name: format!("model-{}", Self::NAME), svg };
        Ok(chart.svg()?.map(plot).into_iter().collect())
    }
}

/// Builds the table of the paper's entries, with the user's own fabric at each place.
fn table(model: &NetworkModel) -> Result<ReportTable, ModelError> {
    let head = ["pooled", "where", "by", "fast enough", "adds", "own latency"];
    let mut table = ReportTable::new(NetworkModel::TITLE, &head, 4);
    let cells = model.cells()?;
    let shown = |cell: &&Cell| cell.in_paper || cell.reach.interconnect == Interconnect::Own;
    for cell in cells.iter().filter(shown) {
        table.rows.push(vec![
            cell.resource.name().to_owned(),
            cell.reach.distance.name().to_owned(),
            cell.reach.interconnect.name().to_owned(),
            verdict(cell.fit).to_owned(),
            span(Quantity::Time, cell.reach.added_ns),
            span(Quantity::Share, cell.of_own),
        ]);
    }
    let slow = cells.iter().filter(|cell| cell.in_paper && cell.fit == Fit::TooSlow).count();
    let papers = cells.iter().filter(|cell| cell.in_paper).count();
    table.notes.push(format!(
        "The paper's entries, which it derives from \"the total round trip latency ... has to be \
         insignificant\"; here: at most {} of the resource's own (--at-most). {} of its {papers} \
                        entries agree; the others are marked.",
        Quantity::Share.write(model.at_most),
        papers - slow,
    ));
    table.notes.push(
        "depends: only for the slower of its kind, or by the faster interconnects of that kind. Memory by \
         optical circuits further than the rack is in the table because nothing else is faster: it takes \
         several times as long as memory itself."
            .to_owned(),
    );
    Ok(table)
}

/// Builds the table of other interconnects that are fast enough.
fn rest(model: &NetworkModel) -> Result<ReportTable, ModelError> {
    let mut table = ReportTable::new(
        "Fast enough as well, but not in the table",
        &["pooled", "where", "by"],
        3,
    );
    let cells = model.cells()?;
    for resource in Resource::ALL {
        for distance in Distance::ALL {
            let more: Vec<&str> = cells
                .iter()
                .filter(|cell| (cell.resource, cell.reach.distance) == (resource, distance))
                .filter(|cell| !cell.in_paper && cell.fit == Fit::Enough)
                .filter(|cell| cell.reach.interconnect != Interconnect::Own)
                .map(|cell| cell.reach.interconnect.name())
                .collect();
            if !more.is_empty() {
                let (pooled, place) = (resource.name().to_owned(), distance.name().to_owned());
                table.rows.push(vec![pooled, place, more.join(", ")]);
            }
        }
    }
    table.notes.push(
        "Latency alone decides: an interconnect's reach, ports and cost are not in the model."
            .to_owned(),
    );
    Ok(table)
}

fn verdict(fit: Fit) -> &'static str {
    match fit {
        Fit::Enough => "yes",
        Fit::Depends => "depends",
        Fit::TooSlow => "too slow",
    }
}

fn span(quantity: Quantity, span: Span) -> String {
    let (least, most) = (quantity.write(span.least), quantity.write(span.most));
    if least == most { least } else { format!("{least} to {most}") }
}
