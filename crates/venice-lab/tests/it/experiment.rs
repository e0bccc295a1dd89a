//! Experiments from file to report, on a queue with one server.

mod checkpoints;
mod queue;
mod ranks;

use std::cell::Cell;
use std::fs;
use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use rustix::fs::{FlockOperation, flock};
use venice_experiment::outcome::Outcome;
use venice_experiment::{Catalogue, Results, State, Verdict, WorldKind};
use venice_lab::sim::experiment::{Layers, REPORT, RunArgs, run_experiment};

use queue::Queue;

const QUEUE: &str = r#"
name = "queue"
world = "queue"
title = "Queue with one server <M/M/1>"
paper = "Kendall 1953"
description = "Customers arrive & wait."

[config]
customers = 20000
seed = 3

[[sweep]]
key = "arrivals.load"
values = [0.1, 0.5, 0.9]

[[sweep]]
label = "server"
set = [{ label = "fast" }, { label = "slow", service_ns = 10000 }]

[quick]
config.customers = 1000
sweep.load = [0.1, 0.9]

[[figure]]
name = "wait"
title = "Mean time in the system"
x = "load"
y = "time.mean"
series = ["server"]
log = ["y"]
[[figure.paper]]
label = "theory"
of = "fast"
source = "1 / (1 - load)"
points = [[0.1, 1.111], [0.5, 2.0], [0.9, 10.0]]

[[figure]]
name = "times"
title = "Times in the system"
kind = "cdf"
y = "time"
series = ["load"]
at = { server = "fast" }
log = ["x"]

[[finding]]
claim = "Waiting grows without bound towards a full load."
holds = "time.mean{load=0.9,server=fast} > 3 * time.mean{load=0.5,server=fast}"

[[finding]]
claim = "The tail is <shorter> than the mean."
holds = "max(time.p99{server=fast} / time.mean{server=fast}) < 1"
"#;

fn catalogue() -> Catalogue {
    Catalogue::new([("queue", QUEUE)])
}

fn args(out: &Path, words: &[&str]) -> RunArgs {
    let mut args = RunArgs {
        layers: Layers { experiment: "queue".into(), quick: true, ..Layers::default() },
        out: Some(out.to_owned()),
        threads: Some(1),
        ..RunArgs::default()
    };
    for word in words {
        match word.split_once(' ') {
            Some(("--set", value)) => args.layers.set.push(value.to_owned()),
            Some(("--sweep", value)) => args.layers.sweep.push(value.to_owned()),
            Some(("--points", value)) => args.layers.points = Some(value.to_owned()),
            Some(("--seed", value)) => args.layers.seed = Some(value.parse().unwrap()),
            Some(("", value)) => args.layers.experiment = value.to_owned(),
            Some(_) | None => match *word {
                "--full" => args.layers.quick = false,
                "--resume" => args.resume = true,
                other => panic!("{other}"),
            },
        }
    }
    args
}

fn try_run(out: &Path, words: &[&str], stop: &dyn Fn() -> bool) -> anyhow::Result<Results> {
    let args = args(out, words);
    let (experiment, filter) = args.layers.read(&catalogue())?;
    run_experiment(&args, &WorldKind::of::<Queue>(), &experiment, &filter, None, stop)
        .map(|(_, results)| results)
}

fn run(out: &Path, words: &[&str]) -> Results {
    try_run(out, words, &|| false).unwrap()
}

fn mistake(out: &Path, words: &[&str]) -> String {
    let error = try_run(out, words, &|| false).unwrap_err();
    assert!(error.chain().any(|cause| cause.is::<venice_cli::failure::Usage>()), "{error:?}");
    format!("{error:#}")
}

fn saved(out: &Path) -> Results {
    serde_json::from_str(&fs::read_to_string(out.join("results.json")).unwrap()).unwrap()
}

#[test]
fn run_fills_its_folder() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("deep/out");
    let results = run(&out, &["--full"]);
    assert_eq!(results.points.len(), 6);
    assert_eq!(saved(&out), results);
    let verdicts: Vec<_> = results.findings.iter().map(|one| one.verdict).collect();
    assert_eq!(verdicts, [Verdict::Holds, Verdict::DoesNotHold]);
    // M/M/1: the mean time in the system is 1 / (1 - load) services.
    let mean = results.points[2].outcome.as_ref().unwrap().value("time.mean").unwrap();
    assert!((1.8..2.2).contains(&mean.0), "{mean:?}");
    let mut files: Vec<_> =
        fs::read_dir(&out).unwrap().map(|one| one.unwrap().file_name()).collect();
    files.sort();
    let wanted = ["experiment.toml", "figure-times.svg", "figure-wait.svg", "latencies.parquet"];
    assert_eq!(files, [&wanted[..], &["points.parquet", "report.html", "results.json"]].concat());
}

#[test]
fn same_seed_repeats_results() {
    let temp = tempfile::tempdir().unwrap();
    let outcomes = |results: &Results| -> Vec<Outcome> {
        results.points.iter().map(|one| one.outcome.clone().unwrap()).collect()
    };
    let once = run(&temp.path().join("a"), &[]);
    assert_eq!(outcomes(&once), outcomes(&run(&temp.path().join("b"), &[])));
    let other = run(&temp.path().join("c"), &["--seed 4"]);
    assert_eq!(other.seed, 4);
    assert_ne!(outcomes(&once)[0].trace_hash, outcomes(&other)[0].trace_hash);
    // The file in the folder is the same experiment.
    let file = format!(" {}", temp.path().join("a/experiment.toml").display());
    let again = run(&temp.path().join("d"), &[&file, "--full"]);
    assert_eq!(outcomes(&once), outcomes(&again));
    assert_eq!(again.command, format!("venice sim run{file}"));
}

#[test]
fn interrupted_run_resumes() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    let words = ["--full", "--set customers=200000"];
    run(&out, &[&words[..], &["--points load=0.1,server=fast"]].concat());
    // The second point is interrupted.
    let asked = Cell::new(0);
    let stop = || asked.replace(asked.get() + 1) > 0;
    let results = try_run(&out, &[&words[..], &["--resume"]].concat(), &stop).unwrap();
    assert!(results.interrupted);
    let states: Vec<_> = results.points.iter().map(|point| point.state).collect();
    assert_eq!(states[0], State::Done);
    assert!(states[1..].iter().all(|state| *state != State::Done), "{states:?}");
    assert_eq!(results.findings[0].verdict, Verdict::NotRun);
    assert!(fs::read_to_string(out.join(REPORT)).unwrap().contains("Interrupted: points"));
    let first = results.points[0].clone();
    let words = [&words[..], &["--resume", "--points load=0.5"]].concat();
    let resumed = run(&out, &words);
    assert_eq!(resumed.points[0], first);
    let done = resumed.points.iter().filter(|point| point.state == State::Done).count();
    assert_eq!((done, resumed.interrupted), (3, false));
}

#[test]
fn report_is_self_contained() {
    let temp = tempfile::tempdir().unwrap();
    run(temp.path(), &["--set customers=2000"]);
    let page = fs::read_to_string(temp.path().join(REPORT)).unwrap();
    for part in [
        "Queue with one server &lt;M/M/1&gt;",
        "Customers arrive &amp; wait.",
        "<svg",
        "does not hold",
        "The tail is &lt;shorter&gt;",
        "theory: 1 / (1 - load)",
        "venice sim run queue --set customers=2000 --quick",
        "sweep load",
        env!("CARGO_PKG_VERSION"),
        "seed 3",
    ] {
        assert!(page.contains(part), "no {part}");
    }
    // The name of SVG's namespace is no reference.
    let page = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for reference in ["http:", "https:", "src=", "href", "url(", "@import", "<script", "<link"] {
        assert!(!page.contains(reference), "{reference}");
    }
}

#[test]
fn tables_are_parquet() {
    let temp = tempfile::tempdir().unwrap();
    let results = run(temp.path(), &["--sweep load=0.2,0.4", "--points server=fast"]);
    let rows = |name: &str| -> Vec<Vec<(String, Field)>> {
        let file = fs::File::open(temp.path().join(name)).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        let about = reader.metadata().file_metadata().key_value_metadata().unwrap();
        assert_eq!(about[0].value.as_deref(), Some("queue"));
        let rows = reader.get_row_iter(None).unwrap();
        rows.map(|row| row.unwrap().into_columns()).collect()
    };
    let points = rows("points.parquet");
    assert_eq!(points.len(), 4);
    let cell = |row: usize, name: &str| {
        points[row].iter().find(|(column, _)| column == name).unwrap().1.clone()
    };
    assert_eq!((cell(2, "point"), cell(2, "load")), (Field::Long(2), Field::Double(0.4)));
    assert_eq!((cell(1, "server"), cell(1, "time.mean")), (Field::Str("slow".into()), Field::Null));
    let outcome = results.points[2].outcome.as_ref().unwrap();
    let p99 = outcome.value("time.p99").unwrap().0;
    assert_eq!(
        (cell(2, "state"), cell(2, "time.p99")),
        (Field::Str("done".into()), Field::Double(p99))
    );
    let sum: u64 = rows("latencies.parquet")
        .into_iter()
        .filter(|row| row[0].1 == Field::Long(2))
        .map(|row| match row.last() {
            Some((_, Field::Long(count))) => *count as u64,
            other => panic!("{other:?}"),
        })
        .sum();
    assert_eq!(sum, outcome.histogram("time").unwrap().count());
}

#[test]
fn mistakes_are_usage_errors() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    let file = temp.path().join("mine.toml");
    fs::write(&file, "base = 'queue'\n[config]\ncustomer = 5\n").unwrap();
    let odd = temp.path().join("odd.toml");
    fs::write(&odd, "name = 'odd'\n\nsweeps = 1\n").unwrap();
    let lost = temp.path().join("lost.toml");
    fs::write(&lost, "base = 'queu'").unwrap();
    let named = |path: &Path| format!(" {}", path.display());
    for (words, part) in [
        (&[" quue"][..], "no experiment 'quue': did you mean queue?"),
        (&[" nothing-like-it"], "see venice sim list"),
        (&[" /nowhere/at-all.toml"], "cannot read /nowhere/at-all.toml: No such file"),
        (&[&named(&file), "--full"], "unknown key customer: the nearest is customers"),
        (&[&named(&odd), "--full"], "odd.toml: line 3: unknown field `sweeps`"),
        (&[&named(&lost), "--full"], "did you mean queue?"),
        (&["--set arrivals.laod=1"], "unknown key arrivals.laod: the nearest is arrivals.load"),
        (&["--set customers=0"], "customers: 0: set 1 or more"),
        (&["--set customers=many"], "customers: \"many\": invalid type"),
        (&["--set customers"], "--set customers: write KEY=VALUE"),
        (&["--set service_ns=5"], "service_ns: the variants of server set it"),
        (&["--sweep load="], "--sweep load=: sweep load: it has no values"),
        (&["--sweep load=0.1,2"], "arrivals.load: 2: set a share below 1"),
        (&["--points load=0.7"], "no value 0.7: load is 0.1, 0.9"),
    ] {
        // A key that a variant sets cannot be set for all.
        let said = mistake(&out, words);
        assert!(said.contains(part), "{words:?}: {said}");
        assert!(!out.exists(), "{words:?}");
    }
}

#[test]
fn other_points_are_kept() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    let whole = run(&out, &["--full"]);
    let some = run(&out, &["--full", "--points load=0.5"]);
    let hashes = |results: &Results| {
        let outcomes = results.points.iter().map(|point| point.outcome.as_ref());
        outcomes.map(|outcome| outcome.unwrap().trace_hash).collect::<Vec<_>>()
    };
    assert_eq!(hashes(&some), hashes(&whole));
    assert_eq!(saved(&out), some);
}

#[test]
fn two_runs_share_no_folder() {
    let temp = tempfile::tempdir().unwrap();
    let other = fs::File::open(temp.path()).unwrap();
    flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(mistake(temp.path(), &[]).contains("another run writes to it: wait for its end"));
    drop(other);
    run(temp.path(), &[]);
}

#[test]
fn failed_write_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    run(temp.path(), &[]);
    fs::remove_file(temp.path().join(REPORT)).unwrap();
    fs::create_dir(temp.path().join(REPORT)).unwrap();
    let error = try_run(temp.path(), &[], &|| false).unwrap_err();
    assert!(error.to_string().starts_with("cannot write"), "{error:#}");
    let files = fs::read_dir(temp.path()).unwrap().map(|file| file.unwrap().path());
    let left: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|it| it == "new")).collect();
    assert_eq!(left, [] as [std::path::PathBuf; 0]);
}

#[test]
fn foreign_folders_are_kept() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    run(&out, &[]);
    run(&out, &[]);
    let said = mistake(&out, &["--seed 9"]);
    assert!(said.contains("has results of queue with another configuration: choose"), "{said}");
    let mut other = saved(&out);
    other.name = "incast".into();
    fs::write(out.join("results.json"), serde_json::to_string(&other).unwrap()).unwrap();
    let said = mistake(&out, &[]);
    assert!(said.contains("has results of incast: choose another --out"), "{said}");
    fs::write(out.join("results.json"), "[]").unwrap();
    assert!(mistake(&out, &[]).contains("results.json has no results: "));
    fs::write(temp.path().join("diary.txt"), "mine").unwrap();
    assert!(mistake(temp.path(), &[]).contains("has files, and no results.json"));
    let said = mistake(&temp.path().join("diary.txt/out"), &[]);
    assert!(said.contains("choose another --out"), "{said}");
}
