//! A report as one self-contained page of tables and plots.

use std::path::Path;

use anyhow::{Context, Result};

use crate::plot::{self, Plot};
use crate::report_table::{ReportTable, escaped};
use venice_measure::progress::note;

const STYLE: &str = "\
body{font:15px/1.5 sans-serif;color:#222;background:#fff;margin:2rem auto;max-width:78rem;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.2rem}
.table{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}
th,td{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:left;white-space:nowrap}
.figure{text-align:right;font-variant-numeric:tabular-nums}
p{margin:.4rem 0;color:#444}svg{max-width:100%;height:auto;margin:.6rem 0}";

/// Contents of a page.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    pub(crate) title: &'a str,
    /// Lines above everything.
    pub(crate) header: Vec<String>,
    /// Text that explains the plots.
    pub(crate) legend: &'a str,
    pub(crate) plots: &'a [Plot],
    pub(crate) tables: Vec<ReportTable>,
    /// Lines below everything.
    pub(crate) closing: Vec<String>,
}

impl Page<'_> {
    /// Renders the document.
    pub(crate) fn html(&self) -> String {
        let title = escaped(self.title);
        let lines = |lines: &[String]| -> String {
            lines.iter().map(|line| format!("<p>{}</p>\n", escaped(line))).collect()
        };
        let plots: String = self.plots.iter().map(|plot| plot.svg.clone() + "\n").collect();
        let tables: String = self.tables.iter().map(ReportTable::html).collect();
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
             <meta name=\"viewport\" content=\"width=device-width\"/>\
             <title>{title}</title><style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n{}\
             <h2>Plots</h2>\n<p>{}</p>\n{plots}{tables}{}</body></html>\n",
            lines(&self.header),
            escaped(self.legend),
            lines(&self.closing),
        )
    }

    /// Writes the plots, and the page as `index.html`, into `folder`, and prints its path.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(crate) fn publish(&self, folder: &Path) -> Result<()> {
        plot::write(self.plots, folder)?;
        let file = folder.join("index.html");
        std::fs::write(&file, self.html())
            .with_context(|| format!("cannot write {}", file.display()))?;
        note(&format!("plots and page: {}", file.display()));
        Ok(())
    }
}
