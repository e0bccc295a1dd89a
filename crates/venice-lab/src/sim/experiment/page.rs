//! The report of a run: one page without references to other files.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use venice_cli::terminal;
use venice_experiment::{Experiment, Figure, Results, Verdict, keys};

use super::numbers::{number, time as virtual_time};
use super::{causes, queues, table};
use crate::plot::Plot;
use crate::report_table::{ReportTable, escaped};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#222;--soft:#555;--line:#ddd;--back:#fff;--yes:#00734f;--no:#b03a00}
@media(prefers-color-scheme:dark){:root{--ink:#ddd;--soft:#aaa;--line:#444;--back:#181a1b;--yes:#4cc79a;--no:#ff9a5c}}
body{font:15px/1.5 sans-serif;color:var(--ink);background:var(--back);margin:2rem auto;max-width:78rem;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.2rem}h3{font-size:1rem}
.table{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}
.figure{text-align:right;font-variant-numeric:tabular-nums}
p{margin:.4rem 0}.soft{color:var(--soft)}svg{max-width:100%;height:auto;margin:.6rem 0;background:#fff}
pre{overflow-x:auto;border:1px solid var(--line);padding:.6rem;font-size:.8rem}
li{margin:.5rem 0}.holds{color:var(--yes);font-weight:bold}.fails{color:var(--no);font-weight:bold}";

/// Renders the report.
pub(super) fn html(experiment: &Experiment, results: &Results, plots: &[Plot]) -> String {
    let title = escaped(&format!("{}: {}", experiment.name, experiment.title));
    let parts = [
        about(experiment, results),
        findings(results),
        figures(experiment, plots),
        points(experiment, results),
        causes::html(results),
        queues::html(results, plots),
        all_figures(experiment, results),
        configuration(experiment, results),
        reproduction(results),
    ];
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width\"/>\
         <title>{title}</title><style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n{}\
         </body></html>\n",
        parts.concat()
    )
}

fn paragraph(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("<p>{}</p>\n", escaped(text)) }
}

fn about(experiment: &Experiment, results: &Results) -> String {
    let variant = if results.quick { ", small variant" } else { "" };
    let state = match results.interrupted {
        true => "Interrupted: points that were not run say so, and have no part in the findings.",
        false => "",
    };
    let run = format!("Venice {}, seed {}{variant}.", results.version, results.seed);
    let paragraphs = experiment.description.split("\n\n").map(paragraph).collect::<String>();
    let lines = [&*experiment.paper, &run, state].map(paragraph).concat();
    format!("{lines}{paragraphs}")
}

fn findings(results: &Results) -> String {
    if results.findings.is_empty() {
        return String::new();
    }
    let item = |finding: &venice_experiment::JudgedFinding| {
        let class = match finding.verdict {
            Verdict::Holds => "holds",
            Verdict::DoesNotHold => "fails",
            Verdict::NotRun => "soft",
        };
        let source = match finding.paper.is_empty() {
            true => String::new(),
            false => format!(" <span class=\"soft\">({})</span>", escaped(&finding.paper)),
        };
        format!(
            "<li><span class=\"{class}\">{}</span>: {}{source}<br/><code>{}</code><br/>\
             <span class=\"soft\">{}</span></li>\n",
            finding.verdict.words(),
            escaped(&finding.claim),
            escaped(&finding.expression),
            escaped(&table::numbers(finding)),
        )
    };
    let items: String = results.findings.iter().map(item).collect();
    let count = paragraph(&format!("{}.", table::verdicts(results)));
    format!("<h2>Findings of the paper</h2>\n{count}<ul>\n{items}</ul>\n")
}

fn figures(experiment: &Experiment, plots: &[Plot]) -> String {
    let of = |plot: &Plot| {
        let named = |figure: &&Figure| format!("figure-{}", figure.name) == plot.name;
        let figure = experiment.figures.iter().find(named);
        let sources = figure.into_iter().flat_map(|figure| &figure.paper);
        let sources: String =
            sources.map(|curve| paragraph(&format!("{}: {}", curve.label, curve.source))).collect();
        format!("{}\n<div class=\"soft\">{sources}</div>\n", plot.svg)
    };
    let drawn: String = plots.iter().filter(|plot| !queues::is_map(plot)).map(of).collect();
    if drawn.is_empty() { drawn } else { format!("<h2>Figures</h2>\n{drawn}") }
}

fn points(experiment: &Experiment, results: &Results) -> String {
    let (head, texts, rows) = table::points(experiment, results);
    let title = "Points".to_owned();
    ReportTable { title, head, texts, rows, notes: Vec::new() }.html()
}

fn all_figures(experiment: &Experiment, results: &Results) -> String {
    let names = results.figure_names();
    let sweeps = experiment.sweeps.iter().map(|sweep| sweep.name().to_owned());
    let head: Vec<String> = sweeps.chain(names.iter().cloned()).chain(["trace".into()]).collect();
    let rows = results.points.iter().filter_map(|point| {
        let outcome = point.outcome.as_ref()?;
        let mut row: Vec<String> = point.coordinates.iter().map(|place| place.text()).collect();
        let value = |name| outcome.value(name).map_or_else(String::new, |(it, _)| number(it));
        row.extend(names.iter().map(|name| value(name)));
        row.push(format!("{:016x}", outcome.trace_hash));
        Some(row)
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let title = "All figures of each point".to_owned();
    let notes = vec!["Equal traces are equal runs, event by event.".to_owned()];
    ReportTable { title, head, texts: experiment.sweeps.len(), rows, notes }.html()
}

fn configuration(experiment: &Experiment, results: &Results) -> String {
    let leaves = keys::leaves(&results.config);
    let row = |(key, value): &(String, &toml::Value)| {
        let origin = super::show::origin(experiment, key);
        vec![key.clone(), keys::text_of(value), origin]
    };
    let mut table = ReportTable::new("Configuration", &["key", "value", "set by"], 3);
    table.rows = leaves.iter().map(row).collect();
    format!(
        "{}<h3>The experiment as it was run</h3>\n<pre>{}</pre>\n",
        table.html(),
        escaped(&results.experiment)
    )
}

fn reproduction(results: &Results) -> String {
    let started = i64::try_from(results.started_unix_s).ok();
    let started = started.and_then(|at| OffsetDateTime::from_unix_timestamp(at).ok());
    let started = started.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default();
    let wall: f64 = results.points.iter().map(|point| point.wall_s).sum();
    let outcomes = || results.points.iter().filter_map(|point| point.outcome.as_ref());
    let (events, time): (u64, u64) = (
        outcomes().map(|outcome| outcome.events).sum(),
        outcomes().fold(0, |sum, outcome| outcome.virtual_ps.saturating_add(sum)),
    );
    let lines = [
        match results.host.ranks {
            Some(ranks) => format!("{}; {ranks} ranks a point.", results.host.machine),
            None => format!("{}; {} threads a point.", results.host.machine, results.host.threads),
        },
        format!(
            "Started {started}; {events} events and {} of virtual time in {}.",
            virtual_time(time),
            terminal::seconds(wall)
        ),
    ];
    let command = escaped(&results.command);
    let lines = lines.map(|line| paragraph(&line)).concat();
    format!("<h2>Repeat it</h2>\n<pre>{command}</pre>\n{lines}")
}

#[cfg(test)]
mod tests {
    use venice_experiment::outcome::{Metric, Outcome};
    use venice_experiment::{Host, PointResult, State};

    use super::super::{figures, table};
    use super::*;
    use crate::plot::xml;

    const EXPERIMENT: &str = r#"
        name = "incast"
        title = "Incast <b> & 'more'"
        paper = "section 4.1"
        description = "One.\n\nTwo & three."
        [config]
        seed = 7
        text = "</pre><script>"
        [[sweep]]
        key = "app.servers"
        values = [1, 8, 16]
        [[figure]]
        name = "6a"
        title = "Goodput > 0"
        x = "servers"
        y = "goodput"
        [[figure.paper]]
        label = "DIABLO"
        of = ""
        source = "figure 6a, <read off>"
        points = [[1, 800], [8, 400.5]]
        [[finding]]
        claim = "It collapses."
        holds = "goodput{servers=8} < 0.5 * goodput{servers=1}"
        [[finding]]
        claim = "It recovers."
        holds = "goodput{servers=16} > goodput{servers=8}"
    "#;

    /// Two points that were run, and one that was not.
    fn results() -> (Experiment, Results) {
        let experiment = Experiment::from_toml(EXPERIMENT).unwrap();
        let point = |servers: i64, goodput: Option<f64>| PointResult {
            coordinates: vec![venice_experiment::Coordinate {
                name: "servers".into(),
                value: servers.into(),
            }],
            state: if goodput.is_some() { State::Done } else { State::NotRun },
            wall_s: 1.5,
            outcome: goodput.map(|goodput| Outcome {
                metrics: vec![Metric::new("goodput", goodput, "Mb/s")],
                queues: vec![queues::tests::row("tor <3>")],
                heatmaps: vec![queues::tests::map("Bytes & time", "tor <3>")],
                counts: [("drops.<full>".to_owned(), 3)].into(),
                events: 1000,
                ..Outcome::default()
            }),
        };
        let mut results = Results {
            name: experiment.name.clone(),
            experiment: experiment.to_toml(),
            version: "1.2.3".into(),
            seed: 7,
            command: "venice sim run 'a&b.toml'".into(),
            host: Host { machine: "a <machine>".into(), threads: 2, ranks: None },
            config: experiment.config.clone(),
            points: vec![point(1, Some(900.0)), point(8, Some(300.0)), point(16, None)],
            ..Results::default()
        };
        results.judge(&experiment);
        (experiment, results)
    }

    #[test]
    fn page_is_well_formed() {
        let (experiment, results) = results();
        let plots = figures::plots(&experiment, &results).unwrap();
        let page = html(&experiment, &results, &plots);
        let texts = xml::texts(&page).unwrap_or_else(|wrong| panic!("{wrong}\n{page}"));
        for wanted in [
            "incast: Incast <b> & 'more'",
            "Two & three.",
            "holds",
            "not run",
            "300 < 450; goodput{servers=8} = 300 Mb/s, goodput{servers=1} = 900 Mb/s",
            "Goodput > 0",
            "DIABLO, paper",
            "DIABLO: figure 6a, <read off>",
            "400.5",
            "drops.<full>",
            "Queues of switches",
            "servers=8: fullest queues of switches",
            "switch:3.31",
            "servers=8: Bytes & time",
            "tor <3>",
            "</pre><script>",
            "venice sim run 'a&b.toml'",
            "Venice 1.2.3, seed 7.",
            "a <machine>; 2 threads a point.",
        ] {
            assert!(texts.iter().any(|text| text == wanted), "{wanted} is not in {texts:#?}");
        }
        assert!(!page.contains("<script>"));
    }

    #[test]
    fn summary_has_paper_beside_ours() {
        let (experiment, results) = results();
        let text = table::summary(&experiment, &results);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        for wanted in [
            "SERVERS STATE GOODPUT (Mb/s) PAPER EVENTS TOOK",
            "8 done 300 400.5 1000 1.5 s",
            "1 of 3 points not run",
            "not run It recovers. missing goodput{servers=16}: not run, or no such figure, at \
             servers=16",
            "1 of 2 findings hold, 1 not run",
        ] {
            let wanted: Vec<&str> = wanted.split_whitespace().collect();
            assert!(lines.contains(&wanted), "{wanted:?} is not in\n{text}");
        }
    }
}
