//! A trace: the use of several resources, sample by sample.

use std::path::Path;

use anyhow::{Context, Result};
use venice_rack::forecast::LARGEST_SAMPLE;

use venice_cli::failure::usage;
use venice_measure::progress::note;

/// Use of each resource over time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Trace {
    pub(super) name: String,
    /// The resources.
    pub(super) names: Vec<String>,
    /// Use, resource by resource.
    pub(super) used: Vec<Vec<f64>>,
}

impl Trace {
    /// Returns the number of samples of each resource.
    pub(super) fn samples(&self) -> usize {
        self.used.first().map_or(0, Vec::len)
    }

    /// Returns all resources at one time.
    pub(super) fn sample(&self, at: usize) -> Vec<f64> {
        self.used.iter().map(|series| series[at]).collect()
    }
}

/// Reads a trace file of the user.
///
/// # Errors
/// When it cannot be read, lacks requested columns, or has values in them that are not amounts.
pub(super) fn read(path: &Path, columns: &[String]) -> Result<Trace> {
    let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let text = std::fs::read_to_string(path)
        .map_err(|error| usage(format!("cannot read {}: {error}", path.display())))?;
    parse(&name, &text, columns).map_err(|error| usage(format!("{}: {error:#}", path.display())))
}

/// Parses the trace in `text`. Without `columns`, every column with amounts throughout is taken;
/// the others are named in a note.
///
/// # Errors
/// When there is none.
pub(super) fn parse(name: &str, text: &str, columns: &[String]) -> Result<Trace> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, head) = lines.next().context("it is empty: expected a line of names")?;
    let head: Vec<&str> = head.split(',').map(|name| name.trim().trim_matches('"')).collect();
    let mut cells: Vec<Vec<(usize, &str)>> = vec![Vec::new(); head.len()];
    for (at, line) in lines {
        let row: Vec<&str> = line.split(',').collect();
        if row.len() != head.len() {
            let (has, names) = (row.len(), head.len());
            anyhow::bail!("line {} has {has} values where there are {names} names", at + 1);
        }
        cells.iter_mut().zip(row).for_each(|(column, cell)| column.push((at + 1, cell.trim())));
    }
    if cells[0].is_empty() {
        anyhow::bail!("there is a line of names and no sample");
    }
    let mut trace = Trace { name: name.to_owned(), names: Vec::new(), used: Vec::new() };
    for wanted in columns {
        let at = head
            .iter()
            .position(|name| name == wanted)
            .with_context(|| format!("there is no column {wanted:?} among {}", head.join(", ")))?;
        trace.names.push(wanted.clone());
        trace.used.push(amounts(wanted, &cells[at])?);
    }
    if columns.is_empty() {
        for (name, cells) in head.iter().zip(&cells) {
            match amounts(name, cells) {
                Ok(used) => {
                    trace.names.push((*name).to_owned());
                    trace.used.push(used);
                }
                Err(error) => note(&format!("left out: {error}")),
            }
        }
    }
    if trace.names.is_empty() {
        anyhow::bail!("no column has amounts throughout");
    }
    Ok(trace)
}

/// Parses a column's values.
fn amounts(name: &str, cells: &[(usize, &str)]) -> Result<Vec<f64>> {
    let amount = |(line, cell): &(usize, &str)| {
        let value = cell.trim_matches('"').parse::<f64>().ok();
        value.filter(|value| (0.0..=LARGEST_SAMPLE).contains(value)).with_context(|| {
            format!(
                "column {name:?}, line {line}: {cell:?} is not an amount, 0 to {LARGEST_SAMPLE:e}"
            )
        })
    };
    cells.iter().map(amount).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn columns_of_amounts_are_parsed() {
        let text = "time,\"memory\", io\n2024-01-01,1.5,7\n2024-01-02,2e3,0\n\n";
        let trace = parse("mine", text, &[]).unwrap();
        assert_eq!((trace.names.as_slice(), trace.samples()), (&columns(&["memory", "io"])[..], 2));
        assert_eq!(trace.sample(1), [2000.0, 0.0]);
        let one = parse("mine", text, &columns(&["io"])).unwrap();
        assert_eq!(one.used, [[7.0, 0.0]]);
    }

    #[test]
    fn invalid_trace_names_place_and_reason() {
        for (text, wanted, says) in [
            ("", &[][..], "empty"),
            ("memory\n", &[], "no sample"),
            ("memory,io\n1\n", &[], "line 2 has 1 values"),
            ("memory\n1\n-2\n", &["memory"], "line 3"),
            ("memory\n1\nNaN\n", &["memory"], "NaN"),
            ("memory\n1\n\"\"\n", &[], "no column"),
            ("memory\n1\n", &["disk"], "among memory"),
        ] {
            let said = format!("{:#}", parse("mine", text, &columns(wanted)).unwrap_err());
            assert!(said.contains(says), "{text:?}: {said}");
        }
    }
}
