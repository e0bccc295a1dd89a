//! Parts shared by the text reports of all simulated runs.

use std::collections::BTreeMap;

use venice_simkernel::units::Nanos;

use venice_cli::terminal::{self, Align};

/// Renders message counts and, below them, the faults.
pub(super) fn counts(
    of: &str,
    counts: impl Iterator<Item = (&'static str, u64)>,
    faults: &BTreeMap<&'static str, u64>,
) -> String {
    let rows = counts.map(|(name, count)| vec![name.to_owned(), count.to_string()]).collect();
    let table = terminal::table(&[(of, Align::Left), ("count", Align::Right)], rows);
    if faults.is_empty() {
        return table;
    }
    let fault = |(name, count): (&&str, &u64)| format!("{count} {name}");
    let faults: Vec<String> = faults.iter().map(fault).collect();
    format!("{table}\nfaults: {}", faults.join(", "))
}

/// Renders each checker's name, its checks and its violations.
pub(super) fn checkers(verdicts: impl Iterator<Item = (&'static str, u64, u64)>) -> String {
    let row = |(name, checks, violations): (&str, u64, u64)| {
        let says = match violations {
            0 => "ok".to_owned(),
            count => format!("{count} VIOLATIONS"),
        };
        vec![name.to_owned(), checks.to_string(), says]
    };
    let columns = [("checker", Align::Left), ("checks", Align::Right), ("verdict", Align::Left)];
    terminal::table(&columns, verdicts.map(row).collect())
}

/// Renders a violation in one line.
pub(super) fn violation(checker: &str, at_ns: u64, what: &str) -> String {
    format!("{checker}, at {}: {what}", time(at_ns))
}

/// Formats a time with three digits.
pub(super) fn time(ns: u64) -> String {
    let digits = ns.checked_ilog10().unwrap_or(0);
    let unit = 10u64.pow(digits.saturating_sub(2));
    Nanos(ns / unit * unit).to_string()
}
