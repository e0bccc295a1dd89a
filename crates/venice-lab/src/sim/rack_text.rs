//! Text report of a simulated rack.

use venice_sim::checkers::Violation;
use venice_sim::report::Report;

use super::Seeds;
use super::text::{self, time};
use venice_cli::terminal::{self, Align};

/// Renders the report of one run.
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
    let usual =
        [("sent", frames.sent), ("delivered", frames.delivered), ("resent", links.replayed)];
    let odd = [
        ("lost", frames.lost),
        ("lost to cuts", frames.cut),
        ("lost to full queues", frames.overflowed),
        ("copied", frames.duplicated),
        ("corrupted", frames.corrupted),
        ("delayed", frames.delayed),
        ("stale repeats", frames.stale),
    ];
    let odd = odd.into_iter().filter(|(_, count)| *count > 0);
    text::counts("frames", usual.into_iter().chain(odd), &report.faults)
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
    let Seeds { ran, failed, accesses, frames, faults, virtual_ns } = sum;
    format!(
        "{ran} seeds, {} failed: {accesses} accesses, {frames} frames, {faults} faults in {} of \
         virtual time",
        failed.len(),
        time(*virtual_ns)
    )
}
