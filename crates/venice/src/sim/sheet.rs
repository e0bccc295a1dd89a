//! What a simulated rack did, for people.

use venice_sim::checkers::Violation;
use venice_sim::report::Report;
use venice_sim::units::Nanos;

use super::Seeds;
use crate::terminal::{self, Align};

/// The report of one run.
pub fn report(report: &Report) -> String {
    let Report { seed, nodes, trace_hash, virtual_ns, events, .. } = report;
    let took = time(*virtual_ns);
    let mut parts = vec![
        format!(
            "{nodes} nodes, seed {seed}, {took} of virtual time, {events} events, trace {trace_hash}"
        ),
        accesses(report),
        frames(report),
        checkers(report),
    ];
    parts.extend(report.violations.iter().map(violation));
    parts.join("\n\n")
}

fn accesses(report: &Report) -> String {
    let row = |accesses: &venice_sim::report::Accesses| {
        vec![
            accesses.kind.name().to_string(),
            accesses.succeeded.to_string(),
            terminal::bytes(accesses.bytes),
            time(accesses.p50_ns),
            time(accesses.p99_ns),
            time(accesses.max_ns),
        ]
    };
    let rows = report.accesses.iter().filter(|of| of.succeeded > 0).map(row).collect();
    let (right, left) = (Align::Right, Align::Left);
    let columns =
        [("access", left), ("done", right), ("bytes", right), ("p50", right), ("p99", right)];
    let columns = [&columns[..], &[("longest", right)]].concat();
    let table = terminal::table(&columns, rows);
    let Report { failed, refused, links_down, .. } = report;
    format!("{table}\n{failed} failed with their link, {refused} refused, {links_down} links down")
}

fn frames(report: &Report) -> String {
    let (frames, links) = (&report.frames, &report.links);
    let count = |name: &str, count: u64| vec![name.to_string(), count.to_string()];
    let mut rows = vec![
        count("sent", frames.sent),
        count("delivered", frames.delivered),
        count("sent again", links.replayed),
    ];
    let odd = [
        ("lost", frames.lost),
        ("lost to cuts", frames.cut),
        ("lost to full queues", frames.overflowed),
        ("copied", frames.duplicated),
        ("corrupted", frames.corrupted),
        ("delayed", frames.delayed),
        ("old ones again", frames.stale),
    ];
    rows.extend(odd.into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| count(name, n)));
    let table = terminal::table(&[("frames", Align::Left), ("count", Align::Right)], rows);
    if report.faults.is_empty() {
        return table;
    }
    let fault = |(name, count): (&&str, &u64)| format!("{count} {name}");
    let faults: Vec<String> = report.faults.iter().map(fault).collect();
    format!("{table}\nfaults: {}", faults.join(", "))
}

fn checkers(report: &Report) -> String {
    let row = |verdict: &venice_sim::checkers::Verdict| {
        let says = match verdict.violations {
            0 => "ok".to_string(),
            count => format!("{count} VIOLATIONS"),
        };
        vec![verdict.checker.name().to_string(), verdict.checks.to_string(), says]
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
    let Seeds { ran, failed, accesses, frames, faults, virtual_ns } = sum;
    format!(
        "{ran} seeds, {} failed: {accesses} accesses, {frames} frames, {faults} faults in {} of \
         virtual time",
        failed.len(),
        time(*virtual_ns)
    )
}

/// Three digits are enough for people.
pub(super) fn time(ns: u64) -> String {
    let digits = ns.checked_ilog10().unwrap_or(0);
    let unit = 10u64.pow(digits.saturating_sub(2));
    Nanos(ns / unit * unit).to_string()
}
