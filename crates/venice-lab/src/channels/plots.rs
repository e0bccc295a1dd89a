//! The plots of the report.

use anyhow::Result;

use super::figure17::Figure17;
use super::figure18::Figure18;
use super::report::ChannelsReport;
use super::series::{Medium, Operation, Point, Series, System};
use crate::plot::{Line, LineChart, Plot, Scale, Stroke, Unit};

/// One plot: Venice's operations and their counterparts.
struct View {
    name: &'static str,
    title: &'static str,
    operations: &'static [Operation],
}

const VIEWS: [View; 3] = [
    View {
        name: "one-sided-reads",
        title: "reads of another node's memory",
        operations: &[Operation::Read, Operation::BulkRead, Operation::Copy, Operation::RoundTrip],
    },
    View {
        name: "one-sided-writes",
        title: "writes to another node's memory",
        operations: &[Operation::Write, Operation::BulkWrite, Operation::Copy],
    },
    View {
        name: "messages",
        title: "messages between two nodes",
        operations: &[Operation::Message, Operation::Stream],
    },
];

/// Draws every plot that has data.
///
/// # Errors
/// When the drawing library fails.
pub(super) fn all(report: &ChannelsReport) -> Result<Vec<Plot>> {
    let mut plots = Vec::new();
    if let Some(svg) = report.figure17.as_ref().map(Figure17::plot).transpose()?.flatten() {
        plots.push(Plot { name: "figure-17".to_owned(), svg });
    }
    if let Some(svg) = report.figure18.as_ref().map(Figure18::plot).transpose()?.flatten() {
        plots.push(Plot { name: "figure-18".to_owned(), svg });
    }
    for medium in Medium::ALL {
        for view in &VIEWS {
            plots.extend(view.plots(report, medium)?);
        }
    }
    Ok(plots)
}

impl View {
    fn plots(&self, report: &ChannelsReport, medium: Medium) -> Result<Vec<Plot>> {
        let mut shown: Vec<&Series> = report
            .series
            .iter()
            .filter(|one| one.medium == medium && self.operations.contains(&one.operation))
            .collect();
        // A medium without a figure of Venice gets no plot.
        if !shown.iter().any(|one| one.system == System::Venice) {
            return Ok(Vec::new());
        }
        shown.sort_by_key(|one| (one.system, one.operation));
        let latency = self.chart(medium, &shown, ("latency, median", Unit::Nanoseconds), |point| {
            point.latency.map(|latency| latency.typical_ns())
        });
        let bandwidth = self.chart(medium, &shown, ("bandwidth", Unit::BytesPerSecond), |point| {
            point.bandwidth_bytes_per_s
        });
        let mut plots = Vec::new();
        for (kind, chart) in [("latency", latency), ("bandwidth", bandwidth)] {
            let name = format!("{}-{kind}-{}", self.name, medium.file_name());
            plots.extend(chart.svg()?.map(|svg| Plot { name, svg }));
        }
        Ok(plots)
    }

    fn chart(
        &self,
        medium: Medium,
        shown: &[&Series],
        y: (&'static str, Unit),
        figure: impl Fn(&Point) -> Option<f64>,
    ) -> LineChart<'static> {
        let word = if y.1 == Unit::Nanoseconds { "Latency" } else { "Bandwidth" };
        let mut lines: Vec<Line> = Vec::new();
        for one in shown {
            let points = one
                .points
                .iter()
                .filter_map(|point| Some((point.size_bytes as f64, figure(point)?)));
            let (name, stroke) = (one.name(), stroke(one));
            // A peer uses one operation for small and large sizes.
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.extend(points),
                None => lines.push(Line { name, stroke, points: points.collect() }),
            }
        }
        lines.retain(|line| !line.points.is_empty());
        LineChart {
            title: format!("{word} of {}, over {}", self.title, medium.title()),
            scale: Scale::Logarithmic,
            x: ("size", Unit::Bytes),
            y,
            lines,
        }
    }
}

fn stroke(series: &Series) -> Stroke {
    match series.system {
        System::Venice => Stroke::Own,
        System::Raw | System::Iperf3 => Stroke::Raw,
        System::Libfabric | System::Ucx => Stroke::Peer,
    }
}

impl Medium {
    fn file_name(self) -> &'static str {
        match self {
            Medium::Shm => "shm",
            Medium::Udp => "udp",
            Medium::Paper => "paper",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;
    use crate::plot::{write, xml};

    #[test]
    fn plots_are_well_formed() {
        let folder = tempfile::tempdir().unwrap();
        let plots = all(&sample()).unwrap();
        write(&plots, &folder.path().join("plots")).unwrap();
        let mut names: Vec<_> = std::fs::read_dir(folder.path().join("plots"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["one-sided-reads-bandwidth-shm.svg", "one-sided-reads-latency-shm.svg"]);
        for plot in plots {
            let texts = xml::texts(&plot.svg).unwrap();
            assert!(texts.iter().any(|text| text == "UCX posix ucp_get"), "{texts:?}");
        }
    }
}
