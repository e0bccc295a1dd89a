//! Text tables and JSON files of reports.

use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Creates a table with the given head; its first `texts` columns are text, all others are figures.
pub fn table(head: &[&str], texts: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(head.to_vec());
    for column in table.column_iter_mut().skip(texts) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Prints the text, and writes the JSON report if requested. When that goes to standard output, the
/// text goes to standard error.
///
/// # Errors
/// When the report cannot be written.
pub fn publish(text: &str, json: Option<&Path>, report: &impl Serialize) -> Result<()> {
    if json == Some(Path::new("-")) {
        eprintln!("{text}");
    } else {
        println!("{text}");
    }
    json.map_or(Ok(()), |path| write_json(path, report))
}

/// Writes `value` to `path` as JSON, `-` being standard output.
///
/// # Errors
/// When the file cannot be written.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text =
        serde_json::to_string_pretty(value).context("cannot serialise the JSON report")?;
    text.push('\n');
    if path == Path::new("-") {
        print!("{text}");
        return Ok(());
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Formats microseconds with a suitable precision.
pub fn micros(value_us: f64) -> String {
    if value_us < 10.0 { format!("{value_us:.2}") } else { format!("{value_us:.1}") }
}

/// Groups thousands by spaces: `1 234 567`.
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_formatted() {
        assert_eq!(grouped(0.4), "0");
        assert_eq!(grouped(999.0), "999");
        assert_eq!(grouped(1_234_567.2), "1 234 567");
        assert_eq!(micros(4.25), "4.25");
        assert_eq!(micros(123.44), "123.4");
    }
}
