//! What a simulated control plane did, for people.

use venice_sim::control::{Report, Verdict, Violation};

use super::control::Seeds;
use super::sheet::time;
use crate::terminal::{self, Align};

/// The report of one run.
pub fn report(report: &Report) -> String {
    let Report { seed, donors, recipients, monitors, trace_hash, virtual_ns, events, .. } = report;
    let took = time(*virtual_ns);
    let mut parts = vec![
        format!(
            "{monitors} Monitor Nodes, {donors} donors, {recipients} recipients, seed {seed}, {took} of \
             virtual time, {events} events, trace {trace_hash}"
        ),
        messages(report),
        grants(report),
        checkers(report),
    ];
    parts.extend(report.violations.iter().map(violation));
    parts.join("\n\n")
}

fn messages(report: &Report) -> String {
    let messages = &report.messages;
    let all = [
        ("sent", messages.sent),
        ("lost", messages.lost),
        ("lost to cuts", messages.cut),
        ("whose connection broke", messages.reset),
        ("late", messages.late),
    ];
    let rows = all.into_iter().filter(|(name, n)| *n > 0 || *name == "sent");
    let rows = rows.map(|(name, n)| vec![name.to_owned(), n.to_string()]).collect();
    let table = terminal::table(&[("messages", Align::Left), ("count", Align::Right)], rows);
    if report.faults.is_empty() {
        return table;
    }
    let fault = |(name, count): (&&str, &u64)| format!("{count} {name}");
    let faults: Vec<String> = report.faults.iter().map(fault).collect();
    format!("{table}\nfaults: {}", faults.join(", "))
}

fn grants(report: &Report) -> String {
    let grants = &report.grants;
    format!(
        "{} grants of memory and {} of devices, {} ended by their donors; an answer took {} at most",
        grants.memory,
        grants.devices,
        grants.ended_early,
        time(grants.longest_answer_ns)
    )
}

fn checkers(report: &Report) -> String {
    let row = |verdict: &Verdict| {
        let says = match verdict.violations {
            0 => "ok".to_owned(),
            count => format!("{count} VIOLATIONS"),
        };
        vec![verdict.checker.name().to_owned(), verdict.checks.to_string(), says]
    };
    let columns = [("checker", Align::Left), ("checks", Align::Right), ("verdict", Align::Left)];
    terminal::table(&columns, report.verdicts.iter().map(row).collect())
}

/// One line for something that must not have happened.
pub fn violation(violation: &Violation) -> String {
    let Violation { checker, at_ns, what } = violation;
    format!("{}, at {}: {what}", checker.name(), time(*at_ns))
}

/// The sum of many seeds.
pub fn seeds(sum: &Seeds) -> String {
    let Seeds { ran, failed, grants, messages, faults, virtual_ns } = sum;
    format!(
        "{ran} seeds, {} failed: {grants} grants, {messages} messages, {faults} faults in {} of \
         virtual time",
        failed.len(),
        time(*virtual_ns)
    )
}
