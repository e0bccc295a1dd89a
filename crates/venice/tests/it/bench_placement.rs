//! `venice bench placement`: its output, and its partial output after an interrupt.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::common::{Place, signal, wait, wait_until};
use rustix::process::Signal;

#[test]
fn policies_are_compared_to_optimum() {
    let place = Place::new();
    let plots = place.file("plots");
    let folder = plots.display().to_string();
    let words = ["bench", "placement", "--seeds", "20", "--nodes", "4,6", "--json", "-"];
    let said = place.venice(&[&words[..], &["--plots", &folder]].concat()).expect(0);
    let report = said.json();
    assert_eq!((&report["racks"], &report["interrupted"]), (&40.into(), &false.into()));
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 9, "{rows:?}");
    assert_eq!((&rows[0]["policy"], &rows[0]["nodes"]), (&"nearest".into(), &().into()));
    assert!(rows[0]["median_above"].as_f64().unwrap() <= report["aim"].as_f64().unwrap());
    assert!(said.err.contains("Reached.") && said.err.contains("nearest"), "{}", said.err);
    for file in ["placement-racks.svg", "placement-sizes.svg", "index.html"] {
        assert!(plots.join(file).exists(), "{file}");
    }
    let again = place.venice(&words).expect(0);
    assert_eq!(again.json(), report, "the same seeds are the same racks");
    for wrong in [["--nodes", "1"], ["--nodes", "65"], ["--seeds", "0"], ["--seed", "-1"]] {
        place.venice(&[&["bench", "placement"], &wrong[..]].concat()).expect(2);
    }
}

#[test]
fn interrupted_run_reports_partial_results() {
    let place = Place::new();
    let json = place.file("placement.json");
    let path = json.display().to_string();
    let words = ["bench", "placement", "--seeds", "1000000", "--nodes", "8,64", "--json", &path];
    let mut command = place.command(&words);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Before it watches for signals, an interrupt would just end it: wait for that first.
    let watches = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & 2 != 0)
    };
    wait_until("it watches for signals", watches);
    thread::sleep(Duration::from_millis(300));
    signal(child.id().into(), Signal::INT);
    assert_eq!(wait(&mut child, &words).code(), Some(1));
    let text = std::fs::read_to_string(&json).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["interrupted"], true);
    assert_eq!(report["rows"].as_array().unwrap().len(), 9);
}
