//! Metrics and health of real daemons, parsed by another parser than ours.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

use prometheus_parse::{Scrape, Value};

use crate::common::rack::{Member, Rack};
use crate::common::{Daemon, Place, port_of_its_own, wait_until};

/// Arguments of a daemon with metrics.
pub const METRICS: [&str; 2] = ["--metrics", "127.0.0.1:0"];

/// A scrape of a daemon.
pub struct Metrics {
    pub text: String,
    scrape: Scrape,
}

impl Metrics {
    pub fn of(member: &Member) -> Metrics {
        Metrics::at(&member.metrics_addr())
    }

    pub fn at(addr: &str) -> Metrics {
        let (status, text) = get(addr, "/metrics");
        assert_eq!(status, 200, "{text}");
        Metrics::parse(text)
    }

    pub fn parse(text: String) -> Metrics {
        let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap();
        Metrics { text, scrape }
    }

    /// Returns the value of a gauge or a counter with exactly these labels.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let is_it = |it: &&prometheus_parse::Sample| {
            let has = |(name, value): &(&str, &str)| it.labels.get(name) == Some(value);
            it.metric == name && it.labels.len() == labels.len() && labels.iter().all(has)
        };
        match self.scrape.samples.iter().find(is_it)?.value {
            Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value) => Some(value),
            Value::Histogram(_) | Value::Summary(_) => None,
        }
    }

    /// Returns the labels of each metric, by the names that queries use.
    pub fn labels(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut metrics: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for sample in &self.scrape.samples {
            let is_histogram = matches!(sample.value, Value::Histogram(_));
            let name = match is_histogram {
                true => format!("{}_bucket", sample.metric),
                false => sample.metric.clone(),
            };
            let labels = metrics.entry(name).or_default();
            labels.extend(sample.labels.keys().cloned());
            labels.extend(is_histogram.then(|| "le".to_owned()));
        }
        metrics
    }
}

/// Requests a page; returns the status and the body.
pub fn get(addr: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: venice\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// Starts a Monitor Node and two nodes, all with metrics.
pub fn rack() -> Rack {
    let mut rack = Rack::start(1, &METRICS);
    for name in ["node1", "node2"] {
        rack.add_agent(name, &[&["--lend", "64MiB"], &METRICS[..]].concat());
    }
    rack.place.find_monitor_at(&rack.all());
    rack
}

#[test]
fn metrics_equal_the_tables() {
    let rack = rack();
    let words = ["get", "memory=16MiB", "--for", "numbers", "--", "sleep", "1000"];
    let _holder = Daemon::start(&rack.place, &words);
    wait_until("the grant is in the table and in the metrics", || {
        Metrics::of(&rack.monitors[0]).value("venice_grants", &[("state", "committed")])
            == Some(1.0)
    });
    let rows = |what: &str| rack.place.venice(&[what, "--json"]).expect(0).json();
    let (nodes, grants) = (rows("nodes"), rows("grants"));
    let metrics = Metrics::of(&rack.monitors[0]);
    for row in nodes.as_array().unwrap() {
        let node = [("node", row["name"].as_str().unwrap())];
        for (metric, key) in [
            ("venice_node_lent_bytes", "lent_bytes"),
            ("venice_node_free_bytes", "free_bytes"),
            ("venice_node_granted_bytes", "granted_bytes"),
            ("venice_node_certificate_expiry_timestamp_seconds", "certificate_expires_s"),
            ("venice_node_refused_calls_total", "refused"),
        ] {
            assert_eq!(metrics.value(metric, &node), row[key].as_f64(), "{metric} {node:?}");
        }
        assert_eq!(metrics.value("venice_node_up", &node), Some(1.0));
        let forged = [node[0], ("reason", "forged")];
        let dropped = metrics.value("venice_node_dropped_datagrams_total", &forged);
        assert_eq!(dropped, row["forged"].as_f64());
    }
    let user = [("user", grants[0]["owner_user"].as_str().unwrap())];
    assert_eq!(metrics.value("venice_user_granted_bytes", &user), grants[0]["bytes"].as_f64());
    assert_eq!(metrics.value("venice_user_grants", &user), Some(1.0));
    assert_eq!(metrics.value("venice_nodes", &[("state", "up")]), Some(2.0));
    assert_eq!(metrics.value("venice_queue_requests", &[("needs", "room")]), Some(0.0));
    assert_eq!(metrics.value("venice_monitor_ready", &[]), Some(1.0));
    assert!(metrics.value("venice_store_write_seconds_count", &[]).unwrap() >= 1.0);
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    assert_eq!(metrics.value("venice_build_info", &version), Some(1.0));
    // An agent tells the same of itself.
    for agent in &rack.agents {
        let row = nodes.as_array().unwrap().iter().find(|row| row["name"] == agent.name.as_str());
        let row = row.unwrap();
        let granted = f64::from(row["granted_bytes"].as_u64() > Some(0));
        wait_until("the agent reports the same", || {
            let metrics = Metrics::of(agent);
            metrics.value("venice_agent_lent_bytes", &[]) == row["lent_bytes"].as_f64()
                && metrics.value("venice_agent_free_bytes", &[]) == row["free_bytes"].as_f64()
                && metrics.value("venice_agent_grants", &[("kind", "memory")]) == Some(granted)
                && metrics.value("venice_agent_ready", &[]) == Some(1.0)
        });
    }
}

#[test]
fn names_follow_conventions() {
    let rack = rack();
    let words = ["get", "memory=16MiB", "--", "sleep", "1000"];
    let _holder = Daemon::start(&rack.place, &words);
    for member in rack.monitors.iter().chain(&rack.agents) {
        let metrics = Metrics::of(member);
        let lines: Vec<_> = metrics.text.lines().collect();
        let samples: Vec<_> = lines.iter().filter(|line| !line.starts_with('#')).collect();
        let names: BTreeSet<_> =
            samples.iter().map(|line| line.rsplit_once(' ').unwrap().0).collect();
        assert_eq!(names.len(), samples.len(), "a series comes twice: {}", metrics.text);
        for line in lines.iter().filter(|line| line.starts_with("# TYPE ")) {
            let words: Vec<_> = line.split(' ').collect();
            let (name, kind) = (words[2], words[3]);
            assert!(name.starts_with("venice_"), "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            assert!(metrics.text.contains(&format!("# HELP {name} ")), "{name} has no help");
        }
    }
}

#[test]
fn local_rack_shows_metrics_addresses() {
    let place = Place::new();
    let port = port_of_its_own();
    let words = ["up", "--nodes", "1", "--lend", "32MiB", "--monitor-port", &port, "--metrics"];
    place.venice(&words).expect(0);
    let status = place.status();
    for row in [&status["monitor"], &status["agents"][0]] {
        let addr = row["metrics_addr"].as_str().unwrap();
        assert!(get(addr, "/metrics").1.contains("venice_build_info"), "{row}");
        let shown = place.venice(&["status"]).expect(0).out;
        assert!(shown.contains("METRICS") && shown.contains(addr), "{shown}");
    }
}

#[test]
fn programs_become_metrics() {
    let place = Place::new();
    place.up(1);
    let words = ["run", "--mode", "window", "--local", "4MiB", "--remote", "16MiB", "--"];
    let _run = Daemon::start_named(&place, "run", &[&words[..], &["sleep", "600"]].concat());
    wait_until("the program is listed", || {
        let text = place.venice(&["ps", "--prometheus"]).expect(0).out;
        let metrics = Metrics::parse(text);
        let rows = place.venice(&["ps", "--json"]).expect(0).json();
        let Some(row) = rows.as_array().unwrap().first() else { return false };
        let (run, user) = (row["run"].to_string(), row["user"].as_str().unwrap());
        let labels = [("run", &*run), ("user", user), ("command", "sleep")];
        let value = |name: &str| metrics.value(name, &labels);
        value("venice_program_borrowed_bytes") == row["borrowed_bytes"].as_f64()
            && value("venice_program_missing_replica_slabs") == Some(0.0)
            && value("venice_program_lost_slabs") == Some(0.0)
            && value("venice_program_faults_total").is_some()
    });
}

#[test]
fn health_tells_why_not_ready() {
    let mut rack = rack();
    for member in rack.monitors.iter().chain(&rack.agents) {
        let addr = member.metrics_addr();
        assert_eq!(get(&addr, "/healthz"), (200, "ok\n".to_owned()));
        wait_until("it is ready", || get(&addr, "/readyz") == (200, "ready\n".to_owned()));
        assert_eq!(get(&addr, "/other").0, 404);
    }
    let addr = rack.agents[0].metrics_addr();
    rack.place.venice(&["node", "revoke", "node1"]).expect(0);
    wait_until("the agent knows that it is revoked", || {
        let (status, why) = get(&addr, "/readyz");
        status == 503 && why.contains("was revoked") && why.contains("join again")
    });
    rack.monitors[0].kill();
    wait_until("the agent misses its Monitor Node", || {
        let (status, why) = get(&addr, "/readyz");
        status == 503 && why.contains("no Monitor Node answers at")
    });
    assert_eq!(get(&addr, "/healthz").0, 200, "the process works");
    let said = rack.place.venice(&["agent", "--metrics", "nowhere"]).expect(2).err;
    assert!(said.contains("HOST:PORT, for example 127.0.0.1:9470"), "{said}");
}
