//! `venice sim rack` and `venice sim control`: runs, repeated runs, input and output files, and
//! mistakes.

use std::fs;

use crate::common::Place;

/// A short run, and its report.
const SMALL: [&str; 7] = ["sim", "rack", "--nodes", "4", "--accesses", "20", "--json"];

fn with<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [&SMALL[..], words].concat()
}

#[test]
fn same_seed_repeats_run() {
    let place = Place::new();
    let words = with(&["--seed", "7", "--loss", "2%", "--crash", "1@100us+20ms"]);
    let once = place.venice(&words).expect(0).json();
    let again = place.venice(&words).expect(0).json();
    assert_eq!(once, again);
    assert_eq!((&once["seed"], &once["nodes"]), (&7.into(), &4.into()));
    assert_eq!(once["faults"]["crash"], 1);
    assert!(once["violations"].as_array().unwrap().is_empty());
    let other = with(&["--seed", "8", "--loss", "2%", "--crash", "1@100us+20ms"]);
    let other = place.venice(&other).expect(0).json();
    assert_ne!(once["trace_hash"], other["trace_hash"]);
}

#[test]
fn text_report_shows_checkers() {
    let place = Place::new();
    let words = ["sim", "rack", "--topology", "mesh:2x2x1", "--accesses", "20", "--loss", "5%"];
    let said = place.venice(&words).expect(0).out;
    for part in ["4 nodes, seed 0", "trace ", "FRAMES", "lost", "history", "agreement", "ok"] {
        assert!(said.contains(part), "no '{part}' in {said}");
    }
}

#[test]
fn source_routes_are_followed() {
    let place = Place::new();
    let words = ["sim", "rack", "--topology", "torus:3x3", "--accesses", "20", "--json"];
    let by_destination = place.venice(&words).expect(0).json();
    let by_source = place.venice(&[&words[..], &["--source-routes"]].concat()).expect(0).json();
    assert!(by_source["violations"].as_array().unwrap().is_empty());
    assert_ne!(by_destination["trace_hash"], by_source["trace_hash"]);
}

#[test]
fn saved_scenario_repeats_run() {
    let place = Place::new();
    let file = place.file("scenario.toml");
    let file = file.to_str().unwrap();
    let words = ["sim", "rack", "--random", "--nodes", "8", "--seed", "3", "--json"];
    let saved = place.venice(&[&words[..], &["--save", file]].concat()).expect(0).json();
    let loaded = place.venice(&["sim", "rack", "--scenario", file, "--json"]).expect(0).json();
    assert_eq!(saved, loaded);
    let changed = ["sim", "rack", "--scenario", file, "--seed", "4", "--json"];
    let changed = place.venice(&changed).expect(0).json();
    assert_eq!(changed["seed"], 4);
    assert_ne!(saved["trace_hash"], changed["trace_hash"]);
}

#[test]
fn seed_reports_are_summed() {
    let place = Place::new();
    let sum = place.venice(&with(&["--seeds", "3", "--seed", "5"])).expect(0).json();
    assert_eq!((&sum["ran"], sum["failed"].as_array().unwrap().len()), (&3.into(), 0));
    let said = place.venice(&["sim", "rack", "--nodes", "2", "--accesses", "5", "--seeds", "2"]);
    assert!(said.expect(0).out.contains("2 seeds, 0 failed"));
}

#[test]
fn link_traffic_is_captured() {
    let place = Place::new();
    let file = place.file("link.pcapng");
    let said = place.venice(&with(&["--pcap", file.to_str().unwrap(), "--link", "0-1"])).expect(0);
    assert!(said.err.contains("frames in"), "{}", said.err);
    let bytes = fs::read(&file).unwrap();
    // A section header block, followed by data.
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    assert!(bytes.len() > 200, "{} bytes", bytes.len());
}

#[test]
fn failed_run_is_minimised() {
    let place = Place::new();
    let file = place.file("failed.toml");
    let file = file.to_str().unwrap();
    let words = ["sim", "rack", "--nodes", "6", "--sabotage", "drop-write", "--seeds", "5"];
    let said = place.venice(&[&words[..], &["--save", file]].concat()).expect(1);
    assert!(said.out.contains("1 failed"), "{}", said.out);
    for part in ["replay it with: venice sim rack", "executions, at ", "--scenario"] {
        assert!(said.err.contains(part), "no '{part}' in {}", said.err);
    }
    let smallest = ["sim", "rack", "--scenario", file, "--sabotage", "drop-write", "--json"];
    let again = place.venice(&smallest).expect(1).json();
    assert_eq!(again["violations"][0]["checker"], "executions");
    assert!(again["nodes"].as_u64().unwrap() < 6, "{again}");
    place.venice(&["sim", "rack", "--scenario", file]).expect(0);
}

#[test]
fn invalid_scenario_fails_before_run() {
    let place = Place::new();
    let bad = place.file("bad.toml");
    fs::write(&bad, "nodes = 4\nspeed = 7\n").unwrap();
    let few = place.file("few.toml");
    fs::write(&few, "nodes = 4\n[workload]\ndonors = 9\n").unwrap();
    let (bad, few) = (bad.to_str().unwrap(), few.to_str().unwrap());
    let mistakes: [(&[&str], &str); 11] = [
        (&["--nodes", "1"], "1"),
        (&["--nodes", "many"], "many"),
        (&["--topology", "ring:4"], "ring"),
        (&["--topology", "mesh:2x2x2", "--nodes", "9"], "9"),
        (&["--loss", "150%"], "150%"),
        (&["--latency", "soon"], "soon"),
        (&["--crash", "3@soon"], "3@1ms+20ms"),
        (&["--crash", "12@1ms+2ms"], "node 12"),
        (&["--sabotage", "everything"], "drop-write"),
        (&["--scenario", bad], "speed"),
        (&["--scenario", few], "each node borrows from 1 to 3 others"),
    ];
    for (words, part) in mistakes {
        let said = place.venice(&[&["sim", "rack"], words].concat()).expect(2);
        assert!(said.err.contains(part), "{words:?}: no '{part}' in {}", said.err);
        assert!(said.out.is_empty(), "{words:?}: {}", said.out);
    }
    let said = place.venice(&["sim", "rack", "--scenario", "/nowhere/at-all.toml"]).expect(2);
    assert!(said.complaint().contains("/nowhere/at-all.toml"), "{}", said.err);
    let both = ["sim", "rack", "--random", "--scenario", few];
    place.venice(&both).expect(2);
}

/// A short run of a control plane, and its report.
const CONTROL: [&str; 7] = ["sim", "control", "--monitors", "2", "--span", "6s", "--json"];

#[test]
fn control_run_repeats_from_seed_or_file() {
    let place = Place::new();
    let file = place.file("control.toml");
    let file = file.to_str().unwrap();
    let faults = ["--loss", "2%", "--crash", "monitor0@2s+3s", "--cut", "donor1-monitor1@1s+4s"];
    let with_seed = |seed| [&CONTROL[..], &faults, &["--seed", seed]].concat();
    let words = with_seed("7");
    let once = place.venice(&[&words[..], &["--save", file]].concat()).expect(0).json();
    assert_eq!(once, place.venice(&words).expect(0).json());
    assert_eq!((&once["monitors"], &once["faults"]["cut"]), (&2.into(), &1.into()));
    assert!(once["violations"].as_array().unwrap().is_empty());
    let loaded = ["sim", "control", "--scenario", file, "--json"];
    assert_eq!(once, place.venice(&loaded).expect(0).json());
    let other = place.venice(&with_seed("8")).expect(0).json();
    assert_ne!(once["trace_hash"], other["trace_hash"]);
}

#[test]
fn control_report_sums_seeds() {
    let place = Place::new();
    let said = place.venice(&["sim", "control", "--random", "--seed", "3"]).expect(0).out;
    for part in ["donors", "seed 3", "trace ", "MESSAGES", "owners", "agreement", "ok"] {
        assert!(said.contains(part), "no '{part}' in {said}");
    }
    let words = ["sim", "control", "--random", "--seeds", "5", "--json"];
    let sum = place.venice(&words).expect(0).json();
    assert_eq!((&sum["ran"], sum["failed"].as_array().unwrap().len()), (&5.into(), 0));
}

#[test]
fn invalid_control_scenario_fails_early() {
    let place = Place::new();
    let mistakes: [(&[&str], &str); 7] = [
        (&["--monitors", "9"], "9"),
        (&["--crash", "agent1@1s+2s"], "monitor0, donor2"),
        (&["--crash", "donor1@soon"], "donor2@1s+20s"),
        (&["--freeze", "donor44@1s+2s"], "donor44"),
        (&["--crash", "store@1s+2s", "--monitors", "3"], "freeze it, or cut it off"),
        (&["--drain", "monitor0@1s+2s"], "no donor"),
        (&["--lease", "1s"], "8s to 60s"),
    ];
    for (words, part) in mistakes {
        let said = place.venice(&[&["sim", "control"], words].concat()).expect(2);
        assert!(said.err.contains(part), "{words:?}: no '{part}' in {}", said.err);
        assert!(said.out.is_empty(), "{words:?}: {}", said.out);
    }
}
