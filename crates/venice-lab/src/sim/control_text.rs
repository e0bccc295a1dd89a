//! Text report of a simulated control plane.

use venice_sim::control::{Report, Violation};

use super::control::Seeds;
use super::text::{self, time};

/// Renders the report of one run.
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
        ("connection reset", messages.reset),
        ("late", messages.late),
    ];
    let all = all.into_iter().filter(|(name, count)| *count > 0 || *name == "sent");
    text::counts("messages", all, &report.faults)
}

fn grants(report: &Report) -> String {
    let grants = &report.grants;
    format!(
        "{} grants of memory and {} of devices, {} ended by their donors; slowest answer {}",
        grants.memory,
        grants.devices,
        grants.ended_early,
        time(grants.longest_answer_ns)
    )
}

fn checkers(report: &Report) -> String {
    let verdicts = report.verdicts.iter();
    text::checkers(verdicts.map(|it| (it.checker.name(), it.checks, it.violations)))
}

/// Renders a violation in one line.
pub fn violation(violation: &Violation) -> String {
    let Violation { checker, at_ns, what } = violation;
    text::violation(checker.name(), *at_ns, what)
}

/// Renders the sum of many seeds.
pub fn seeds(sum: &Seeds) -> String {
    let Seeds { ran, failed, grants, messages, faults, virtual_ns } = sum;
    format!(
        "{ran} seeds, {} failed: {grants} grants, {messages} messages, {faults} faults in {} of \
         virtual time",
        failed.len(),
        time(*virtual_ns)
    )
}
