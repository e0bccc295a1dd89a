//! `venice bench sim --quick` from end to end: its structure, never a time.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use venice_lab::simulator::{RowReport, SimReport, System, Transport, Workload};

/// Returns the command with these words.
fn bench(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_venice-lab"));
    command.args(["bench", "sim", "--quick"]).args(words.split(' '));
    command
}

/// Runs it; returns its report, and what it said.
fn report(command: &mut Command) -> (SimReport, String) {
    let output = command.args(["--json", "-"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut found = BTreeSet::new();
    keys(&json, "", &mut found);
    assert_eq!(found.into_iter().collect::<Vec<_>>().join(" "), KEYS);
    (serde_json::from_value(json).unwrap(), text)
}

/// Returns the paths of all keys of an object, of the first element of each array.
fn keys(of: &Value, at: &str, found: &mut BTreeSet<String>) {
    match of {
        Value::Object(object) => object.iter().for_each(|(key, value)| {
            let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
            keys(value, &path, found);
        }),
        Value::Array(array) if array.first().is_some_and(Value::is_object) => {
            keys(&array[0], &format!("{at}[]"), found);
        }
        _ => {
            found.insert(at.to_owned());
        }
    }
}

const KEYS: &str = "\
    aims[].aim aims[].at_least aims[].measured aims[].name aims[].ratio different interrupted load \
    machine.cores machine.cpu machine.kernel machine.memory_bytes machine.virtual_machine ns3 \
    ns3_missing quick rounds rows[].events_per_s rows[].figures.cpu_s rows[].figures.events \
    rows[].figures.failed rows[].figures.flit_hops rows[].figures.goodput_mbps \
    rows[].figures.nodes rows[].figures.packet_hops rows[].figures.requests \
    rows[].figures.resident_bytes rows[].figures.setup_s rows[].figures.trace_hash \
    rows[].figures.virtual_s rows[].figures.wall_s rows[].flit_hops_per_s rows[].ns_per_event \
    rows[].packet_hops_per_s rows[].relative_cost rows[].requests_per_cpu_s rows[].runs \
    rows[].system rows[].threads rows[].workload.kind rows[].workload.nodes \
    rows[].workload.requests rows[].workload.transport seconds";

#[test]
fn quick_run_measures_every_workload() {
    let (report, text) = report(&mut bench("--nodes 62,124 --requests 2 --ns3 no"));
    assert!(text.contains("ns-3: not measured, by --ns3 no"), "{text}");
    assert_eq!((report.rounds, report.different.len()), (1, 0));
    for row in &report.rows {
        let figures = &row.figures;
        assert_eq!((row.system, row.runs, figures.failed), (System::Venice, 1, 0), "{row:?}");
        assert!(figures.events > 0 && figures.resident_bytes > 0, "{row:?}");
        match row.workload {
            Workload::Memcached { nodes, requests, .. } => {
                assert_eq!(figures.nodes, nodes);
                assert_eq!(figures.requests, u64::from(29 * nodes / 31 * requests), "{row:?}");
                assert!(figures.packet_hops > figures.requests, "{row:?}");
            }
            Workload::Incast { .. } => assert!(figures.goodput_mbps > Some(0.0), "{row:?}"),
            Workload::Mesh { .. } => assert!(figures.flit_hops > figures.packet_hops, "{row:?}"),
            Workload::Queue { .. } => {}
        }
    }
}

#[test]
fn missing_ns3_is_said() {
    let command = |when: &str| {
        let mut command = bench("--nodes 31 --threads 1 --requests 1 --ns3");
        // pkg-config then finds no module.
        command.arg(when).env("PKG_CONFIG_LIBDIR", "/nonexistent").env_remove("PKG_CONFIG_PATH");
        command
    };
    let (report, text) = report(&mut command("auto"));
    let missing = report.ns3_missing.unwrap();
    assert!(missing.contains("apt-get install libns3-dev g++"), "{missing}");
    assert!(text.contains(&missing), "{text}");
    let yes = command("yes").output().unwrap();
    let text = String::from_utf8_lossy(&yes.stderr);
    assert_eq!(yes.status.code(), Some(1), "{text}");
    assert!(text.contains("--ns3 yes: ") && text.contains("apt-get install libns3-dev"), "{text}");
}

#[test]
fn ns3_runs_the_same_worlds() {
    let installed = Command::new("pkg-config").args(["--exists", "ns3-internet"]).status();
    if !installed.is_ok_and(|status| status.success()) {
        println!("SKIPPED: ns3_runs_the_same_worlds: no ns3");
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let words = "--nodes 500,2000 --threads 1 --requests 5 --ns3 yes";
    let (report, text) = report(bench(words).env("XDG_CACHE_HOME", cache.path()));
    assert!(report.ns3.is_some(), "{text}");
    let of = |system, workload: &dyn Fn(&Workload) -> bool| -> Vec<RowReport> {
        let rows = report.rows.iter();
        rows.filter(|row| row.system == system && workload(&row.workload)).cloned().collect()
    };
    let is_udp = |workload: &Workload| {
        matches!(workload, Workload::Memcached { transport: Transport::Udp, .. })
    };
    let pairs = of(System::Venice, &is_udp).into_iter().zip(of(System::Ns3, &is_udp));
    for (venice, ns3) in pairs {
        assert_eq!((venice.figures.nodes, ns3.figures.failed), (ns3.figures.nodes, 0));
        // A request of both passes as many switches, but for the servers that chance chooses.
        let hops = |row: &RowReport| row.figures.packet_hops as f64 / row.figures.requests as f64;
        assert!((hops(&venice) / hops(&ns3) - 1.0).abs() < 0.1, "{venice:?} {ns3:?}");
    }
    let is_incast = |workload: &Workload| matches!(workload, Workload::Incast { .. });
    let blocks = |system| of(system, &is_incast)[0].figures.requests;
    assert_eq!(blocks(System::Venice), blocks(System::Ns3));
}

#[test]
fn invalid_options_are_refused() {
    for words in [
        "--nodes 30",
        "--nodes 100001",
        "--threads 0",
        "--threads 1024",
        "--requests 0",
        "--ns3 maybe",
        "--json /nonexistent/sim.json",
    ] {
        let output = bench(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words}");
        let option = words.split(' ').next().unwrap();
        assert!(String::from_utf8_lossy(&output.stderr).contains(option), "{words}");
    }
}
