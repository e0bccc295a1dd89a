//! Plots of the report: one for each case, with the speed of each mode relative to local memory.

use anyhow::Result;

use super::mode::Mode;
use super::report::MemoryReport;
use super::tables::percent;
use crate::plot::{BarChart, BarSeries, Plot, Unit};

/// Draws every plot that has data.
///
/// # Errors
/// When the drawing library fails.
pub(super) fn all(report: &MemoryReport) -> Result<Vec<Plot>> {
    let mut plots = Vec::new();
    for case in report.cases() {
        let name = file_name(case);
        plots.extend(chart(report, case).svg()?.map(|svg| Plot { name, svg }));
    }
    Ok(plots)
}

fn chart(report: &MemoryReport, case: &str) -> BarChart {
    let shares = report.shares();
    let series = report.modes().into_iter().map(|mode| BarSeries {
        name: mode.to_string(),
        values: shares.iter().map(|share| speed(report, case, mode, *share)).collect(),
        is_peer: mode.is_peer(),
    });
    BarChart {
        title: format!("{case}: speed relative to all-local memory"),
        x: "share of the memory that is local",
        y: ("speed relative to local memory", Unit::Percent),
        groups: shares.iter().map(|share| percent(*share)).collect(),
        series: series.collect(),
    }
}

fn speed(report: &MemoryReport, case: &str, mode: Mode, share: f64) -> Option<f64> {
    Some(100.0 / report.cell(case, mode, share)?.slowdown)
}

/// Joins letters and digits of a case's name by dashes.
fn file_name(case: &str) -> String {
    let words = case.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    format!("memory-{}", words.join("-").to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;
    use crate::plot::xml;

    #[test]
    fn each_case_has_a_plot() {
        let plots = all(&sample()).unwrap();
        assert_eq!(plots.len(), 1);
        assert_eq!(plots[0].name, "memory-pagerank");
        let texts = xml::texts(&plots[0].svg).unwrap();
        for wanted in ["venice-window", "swap-disk", "25 %", "80"] {
            assert!(texts.iter().any(|text| text == wanted), "{wanted} is not in {texts:?}");
        }
        assert_eq!(file_name("memcached 4KiB, 10 clients"), "memory-memcached-4kib-10-clients");
    }
}
