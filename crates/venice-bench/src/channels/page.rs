//! The report as one page: tables and plots together, no other file needed.

use std::path::Path;

use anyhow::{Context, Result};

use super::plots::Plot;
use super::report::ChannelsReport;
use super::tables;
use crate::sheet::escaped;

const STYLE: &str = "\
body{font:15px/1.5 sans-serif;color:#222;background:#fff;margin:2rem auto;max-width:78rem;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.2rem}
.table{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}
th,td{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:left;white-space:nowrap}
.figure{text-align:right;font-variant-numeric:tabular-nums}
p{margin:.4rem 0;color:#444}svg{max-width:100%;height:auto;margin:.6rem 0}";

/// The page.
pub(super) fn html(report: &ChannelsReport, plots: &[Plot]) -> String {
    let header: String =
        report.header().iter().map(|line| format!("<p>{}</p>\n", escaped(line))).collect();
    let sheets: String = tables::all(report).iter().map(|sheet| sheet.html()).collect();
    let plots: String = plots.iter().map(|plot| plot.svg.clone() + "\n").collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width\"/>\
         <title>venice bench channels</title><style>{STYLE}</style></head>\n<body>\n\
         <h1>venice bench channels</h1>\n{header}<h2>Plots</h2>\n\
         <p>Thick lines: Venice. Thin: its peers. Dashed: the machine itself.</p>\n{plots}{sheets}\
         <p>{:.0} s in all.</p>\n</body></html>\n",
        report.seconds
    )
}

/// Writes the page as `index.html` into `folder`.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write(report: &ChannelsReport, plots: &[Plot], folder: &Path) -> Result<()> {
    let file = folder.join("index.html");
    std::fs::write(&file, html(report, plots))
        .with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;
    use crate::plot::xml;

    #[test]
    fn the_page_is_well_formed_and_has_all_of_it() {
        let report = sample();
        let plots = super::super::plots::all(&report).unwrap();
        let texts = xml::texts(&html(&report, &plots)).unwrap();
        for wanted in ["Aims", "UCX posix ucp_get", "size", "not judged"] {
            assert!(texts.iter().any(|text| text == wanted), "{wanted} is not in {texts:?}");
        }
    }
}
