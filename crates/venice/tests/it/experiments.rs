//! `venice sim list`, `show`, `run`, `compare` and `report`: experiments in a simulated warehouse.

use std::fs;

use crate::common::Place;

/// A run of seconds: two points of an experiment, two blocks each.
const SMALL: [&str; 9] = [
    "sim",
    "run",
    "incast-1g",
    "--quick",
    "--set",
    "application.iterations=2",
    "--points",
    "rto=200ms,servers=1|8",
    "--out",
];

#[test]
fn list_names_experiments() {
    let place = Place::new();
    let text = place.venice(&["sim", "list"]).expect(0).out;
    let rows = place.venice(&["sim", "list", "--json"]).expect(0).json();
    for row in rows.as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        assert!(text.lines().any(|line| line.starts_with(name)), "no {name} in {text}");
        assert!(row["points"].as_u64() >= row["quick_points"].as_u64(), "{row}");
        place.venice(&["sim", "show", name]).expect(0);
    }
    assert!(text.contains("incast-1g") && text.contains("memcached-tail"), "{text}");
}

#[test]
fn show_prints_file_that_runs() {
    let place = Place::new();
    let set = ["sim", "show", "incast-1g", "--set", "topology.tor.switch.latency=3us"];
    let text = place.venice(&set).expect(0).out;
    for part in ["topology.tor.switch.latency", "3us", "sweep servers", "default", "HOLDS IF"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let shown = place.venice(&[&set[..], &["--json"]].concat()).expect(0).json();
    assert_eq!(shown["config"]["topology"]["tor"]["switch"]["latency"], "3us");
    let file = place.file("mine.toml");
    fs::write(&file, place.venice(&[&set[..], &["--toml"]].concat()).expect(0).out).unwrap();
    let file = file.to_str().unwrap();
    let again = place.venice(&["sim", "show", file, "--json"]).expect(0).json();
    assert_eq!(again, shown);
}

#[test]
fn run_is_compared_and_reported() {
    let place = Place::new();
    let (first, second) = (place.file("first"), place.file("second"));
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    let said = place.venice(&[&SMALL[..], &[first]].concat()).expect(0);
    for part in ["GOODPUT (Mb/s)  PAPER", "8 of 10 points not run", "VERDICT", "findings hold"] {
        assert!(said.out.contains(part), "no {part} in {}", said.out);
    }
    assert!(said.err.contains("report.html"), "{}", said.err);
    let words = [&SMALL[..], &[second, "--threads", "2", "--json"]].concat();
    let results = place.venice(&words).expect(0).json();
    assert_eq!((&results["name"], &results["format"]), (&"incast-1g".into(), &1.into()));
    // Another number of threads gives the same run.
    let same = place.venice(&["sim", "compare", first, second]).expect(0).out;
    assert!(same.contains("2 of 2 points have equal traces"), "{same}");
    let third = place.file("third");
    let third = third.to_str().unwrap();
    place.venice(&[&SMALL[..], &[third, "--seed", "9"]].concat()).expect(0);
    let other = place.venice(&["sim", "compare", first, third]).expect(0).out;
    assert!(other.contains("seed"), "{other}");
    let page = place.file("page.html");
    let page = page.to_str().unwrap();
    place.venice(&["sim", "report", second, "--output", page]).expect(0);
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && !page.contains("--threads"), "{page}");
}

#[test]
fn experiment_of_guide_can_run() {
    let place = Place::new();
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/warehouse.md");
    let guide = fs::read_to_string(guide).unwrap();
    let (_, text) = guide.split_once("```toml\n").unwrap();
    let file = place.file("guide.toml");
    fs::write(&file, text.split_once("```").unwrap().0).unwrap();
    let shown = place.venice(&["sim", "show", file.to_str().unwrap(), "--json"]).expect(0).json();
    assert_eq!(shown["experiment"]["name"], "deep-buffers");
}

#[test]
fn mistakes_name_key_or_file() {
    let place = Place::new();
    let out = place.file("out");
    let out = out.to_str().unwrap();
    let text = place.file("text.toml");
    fs::write(&text, "name = 'x'\nsweeps = 3\n").unwrap();
    let text = text.to_str().unwrap();
    let mistakes: [(&[&str], &str); 11] = [
        (&["run", "incast-1k"], "did you mean incast-1g?"),
        (&["run", "/nowhere.toml"], "cannot read /nowhere.toml"),
        (&["run", text], "text.toml: line 2: unknown field `sweeps`"),
        (
            &["run", "incast-1g", "--set", "topology.tor.switch.latancy=1us"],
            "unknown key topology.tor.switch.latancy: the nearest is topology.tor.switch.latency",
        ),
        (&["run", "incast-1g", "--set", "topology.tor.rate=fast"], "topology.tor.rate: \"fast\""),
        (&["run", "incast-1g", "--set", "server.cores=0"], "server.cores: 0: must be"),
        (&["run", "incast-1g", "--set", "topology.hosts=5"], "topology: 5 hosts"),
        (&["run", "incast-1g", "--points", "ports=3"], "ports is not swept"),
        (&["run", "incast-1g", "--threads", "0"], "1 to 1024"),
        (&["report", "/nowhere"], "/nowhere has no results.json"),
        (&["compare", "/nowhere", "/nowhere"], "/nowhere has no results.json"),
    ];
    for (words, part) in mistakes {
        let words = match words[0] {
            "run" => [&["sim"], words, &["--out", out]].concat(),
            _ => [&["sim"], words].concat(),
        };
        let said = place.venice(&words).expect(2);
        assert!(said.complaint().contains(part), "{words:?}: no '{part}' in {}", said.err);
        assert!(!place.file("out").exists(), "{words:?}");
    }
    fs::write(place.file("out"), "a file").unwrap();
    place.venice(&["sim", "run", "incast-1g", "--quick", "--out", out]).expect(2);
}
