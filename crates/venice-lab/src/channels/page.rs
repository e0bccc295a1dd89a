//! The report as one page.

use super::report::ChannelsReport;
use super::tables;
use crate::page::Page;
use crate::plot::Plot;

/// Builds the page.
pub(super) fn page<'a>(report: &ChannelsReport, plots: &'a [Plot]) -> Page<'a> {
    Page {
        title: "venice bench channels",
        header: report.header(),
        legend: "Thick lines: Venice. Thin: its peers. Dashed: the machine itself.",
        plots,
        tables: tables::all(report),
        closing: vec![format!("{:.0} s in all.", report.seconds)],
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;
    use crate::plot::xml;

    #[test]
    fn page_is_well_formed_and_complete() {
        let report = sample();
        let plots = super::super::plots::all(&report).unwrap();
        let texts = xml::texts(&page(&report, &plots).html()).unwrap();
        for wanted in ["Aims", "UCX posix ucp_get", "size", "not judged"] {
            assert!(texts.iter().any(|text| text == wanted), "{wanted} is not in {texts:?}");
        }
    }
}
