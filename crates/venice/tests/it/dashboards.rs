//! The packaged alert rules and the Grafana board ask for what a real rack exports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::common::{Daemon, Place, port_of_its_own, wait_until};
use crate::metrics::Metrics;

/// Labels that Prometheus adds at a scrape.
const OF_SCRAPES: [&str; 2] = ["instance", "job"];

fn packaging(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

/// Returns the labels of all metrics of a rack with a device and a program.
fn exported() -> BTreeMap<String, BTreeSet<String>> {
    let place = Place::new();
    let port = port_of_its_own();
    let words = ["up", "--nodes", "1", "--lend", "64MiB", "--monitor-port", &port, "--metrics"];
    place.venice(&[&words[..], &["--offer", "accelerator:emulated0,echo"]].concat()).expect(0);
    let words = ["run", "--mode", "window", "--local", "4MiB", "--remote", "16MiB", "--"];
    let _run = Daemon::start_named(&place, "run", &[&words[..], &["sleep", "600"]].concat());
    let status = place.status();
    let at = |row: &Value| Metrics::at(row["metrics_addr"].as_str().unwrap());
    wait_until("all metrics are there", || {
        let agent = at(&status["agents"][0]).labels();
        let monitor = at(&status["monitor"]).labels();
        agent.contains_key("venice_agent_lent_bytes")
            && monitor.contains_key("venice_node_stall_ratio")
    });
    let programs = || Metrics::parse(place.venice(&["ps", "--prometheus"]).expect(0).out).labels();
    wait_until("the program is listed", || !programs().is_empty());
    let all = [at(&status["monitor"]).labels(), at(&status["agents"][0]).labels(), programs()];
    all.into_iter().flatten().collect()
}

/// Returns the metrics of a query with the labels that it selects them by, and the labels that it
/// groups or joins by.
fn asked(query: &str) -> (Vec<(String, Vec<String>)>, Vec<String>) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words_in = |text: &str| -> Vec<String> {
        text.split(',').map(|word| word.trim().to_owned()).filter(|it| !it.is_empty()).collect()
    };
    let (mut metrics, mut grouped, mut rest) = (Vec::new(), Vec::new(), query);
    while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic()) {
        rest = &rest[start..];
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        if word.starts_with("venice_") {
            let mut labels = Vec::new();
            if let Some(inner) = rest.strip_prefix('{') {
                let (inner, after) = inner.split_once('}').unwrap();
                labels.extend(inner.split(',').map(|matcher| {
                    matcher.split(|c| "=!~".contains(c)).next().unwrap().trim().to_owned()
                }));
                rest = after;
            }
            metrics.push((word.to_owned(), labels));
        } else if ["by", "on", "without", "ignoring"].contains(&word) {
            let (inner, after) = rest.trim_start()[1..].split_once(')').unwrap();
            grouped.extend(words_in(inner));
            rest = after;
        } else if let Some(text) = rest.strip_prefix('"') {
            rest = text.split_once('"').map_or("", |(_, after)| after);
        }
    }
    (metrics, grouped)
}

/// Checks that a query asks for metrics and labels that exist.
fn check(name: &str, query: &str, exported: &BTreeMap<String, BTreeSet<String>>) {
    let (metrics, grouped) = asked(query);
    assert!(!metrics.is_empty(), "{name}: no metric in {query}");
    let mut known: BTreeSet<&str> = OF_SCRAPES.into();
    for (metric, labels) in &metrics {
        let of_metric = exported.get(metric);
        let of_metric = of_metric.unwrap_or_else(|| panic!("{name}: no rack exports {metric}"));
        for label in labels.iter().filter(|label| !OF_SCRAPES.contains(&&***label)) {
            assert!(of_metric.contains(label), "{name}: {metric} has no label {label}");
        }
        known.extend(of_metric.iter().map(String::as_str));
    }
    for label in grouped {
        assert!(known.contains(&*label), "{name}: no metric of {query} has the label {label}");
    }
}

#[test]
fn queries_ask_for_exported_metrics() {
    let exported = exported();
    let text = fs::read_to_string(packaging("prometheus/venice.rules.yml")).unwrap();
    let rules: Value = serde_yaml_ng::from_str(&text).unwrap();
    let rules = rules["groups"].as_array().unwrap().iter();
    let rules: Vec<_> = rules.flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert!(rules.len() > 10, "{rules:?}");
    let mut names = BTreeSet::new();
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        assert!(names.insert(name), "{name} comes twice");
        check(name, rule["expr"].as_str().unwrap(), &exported);
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
        for text in ["summary", "description"] {
            assert!(rule["annotations"][text].is_string(), "{name} has no {text}");
        }
    }
    let board: Value =
        serde_json::from_slice(&fs::read(packaging("grafana/venice.json")).unwrap()).unwrap();
    let variables = board["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|it| it["name"] == "datasource" && it["type"] == "datasource"));
    let mut ids = BTreeSet::new();
    for panel in board["panels"].as_array().unwrap() {
        let name = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{name}: its id comes twice");
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24 && place("h") > 0, "{name}: beside the board");
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{name}");
            check(name, target["expr"].as_str().unwrap(), &exported);
        }
    }
    assert!(ids.len() > 15, "{ids:?}");
}

#[test]
fn checker_sees_wrong_queries() {
    let labels = BTreeSet::from(["node".to_owned()]);
    let exported = BTreeMap::from([("venice_node_up".to_owned(), labels)]);
    check("good", "sum by (node) (venice_node_up{node=~\"a|b\"}) == 0", &exported);
    for wrong in [
        "venice_node_upp == 0",
        "venice_node_up{state=\"x\"} == 0",
        "sum by (state) (venice_node_up)",
        "up == 0",
    ] {
        let seen = std::panic::catch_unwind(|| check("wrong", wrong, &exported));
        assert!(seen.is_err(), "{wrong}");
    }
}

#[test]
fn rules_pass_their_own_tests() {
    if Command::new("promtool").arg("--version").output().is_err() {
        println!("SKIPPED: rules_pass_their_own_tests: no promtool");
        return;
    }
    let checks =
        [["check", "rules", "venice.rules.yml"], ["test", "rules", "venice.rules.test.yml"]];
    for words in checks {
        let mut promtool = Command::new("promtool");
        let out = promtool.args(words).current_dir(packaging("prometheus")).output().unwrap();
        assert!(out.status.success(), "{words:?}: {out:?}");
    }
}
