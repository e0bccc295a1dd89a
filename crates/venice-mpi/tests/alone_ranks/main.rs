//! `venice sim run --ranks`: the same results as in one process, after interrupts and kills too.
//!
//! The binary `venice-lab` is that beside `venice-lab-mpi`: `cargo build -p venice-lab` makes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use venice_experiment::outcome::Outcome;
use venice_experiment::{Results, State};

const MPI: &str = env!("CARGO_BIN_EXE_venice-lab-mpi");

const SMALL: &str = r#"
name = "small"
world = "warehouse"
title = "Incast of eight servers in three racks"
[config]
heatmap = "1us"
topology = { kind = "leaf-spine", hosts-per-leaf = 3, leaves = 3, spines = 2 }
application = { kind = "incast", servers = 8, iterations = 3 }
[[sweep]]
key = "seed"
values = [1, 2]
[[finding]]
claim = "Seeds differ."
holds = "goodput{seed=1} > goodput{seed=2} or goodput{seed=1} <= goodput{seed=2}"
"#;

/// A folder with the experiment, in which runs have folders of their own.
struct Runs(TempDir);

impl Runs {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("small.toml"), SMALL).unwrap();
        Self(temp)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, out: &str, words: &str) -> Command {
        let lab = Path::new(MPI).with_file_name("venice-lab");
        assert!(lab.is_file(), "cargo build -p venice-lab makes {lab:?}");
        let mut command = Command::new(lab);
        command.current_dir(self.0.path()).args(["sim", "run", "small.toml", "--out", out]);
        command.args(words.split_whitespace());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, out: &str, words: &str) -> Results {
        let output = self.command(out, words).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        self.results(out)
    }

    fn results(&self, out: &str) -> Results {
        let text = fs::read_to_string(self.path(out).join("results.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Starts a run of one long point, and returns once it has written a checkpoint.
    fn begin(&self, out: &str, words: &str) -> Child {
        let file = self.path(out).join("checkpoint-1.bin");
        let written = || fs::metadata(&file).and_then(|file| file.modified()).ok();
        let before = written();
        let mut command = self.command(out, &format!("{LONG} --checkpoint 1ms {words}"));
        let mut child = command.spawn().unwrap();
        while written().is_none() || written() == before {
            let ended = child.try_wait().unwrap();
            assert_eq!(ended, None, "it came to its end without a checkpoint");
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    }
}

/// A point that takes a while.
const LONG: &str = "--points seed=1 --set application.iterations=40";

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn outcomes(results: &Results) -> Vec<Option<&Outcome>> {
    results.points.iter().map(|point| point.outcome.as_ref()).collect()
}

fn signal(name: &str, process: u32) {
    let status = Command::new("kill").args([name, &process.to_string()]).status();
    assert!(status.unwrap().success());
}

/// Returns the processes of the ranks that write to `folder`, by number.
fn ranks_of(folder: &Path) -> Vec<u32> {
    let of_rank = |entry: fs::DirEntry| {
        let process: u32 = entry.file_name().to_str()?.parse().ok()?;
        let is_here = fs::read_link(entry.path().join("cwd")).ok()? == folder;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        let variables = fs::read(entry.path().join("environ")).ok()?;
        let variables = String::from_utf8_lossy(&variables).into_owned();
        let mut variables = variables.split('\0');
        let number = variables.find_map(|one| one.strip_prefix("OMPI_COMM_WORLD_RANK="))?;
        (is_here && name.starts_with("venice-lab"))
            .then_some((number.parse::<u32>().ok()?, process))
    };
    let mut ranks: Vec<_> = fs::read_dir("/proc").unwrap().flatten().filter_map(of_rank).collect();
    ranks.sort_unstable();
    ranks.into_iter().map(|(_, process)| process).collect()
}

#[test]
fn ranks_give_same_results() {
    let runs = Runs::new();
    let whole = runs.run("whole", "--threads 1 --capture host:0");
    assert!(whole.points.iter().all(|point| point.state == State::Done));
    let files = ["capture-1.pcapng", "capture-2.pcapng", "heatmap-1-levels.svg"];
    for (out, words) in [("threads", "--threads 2"), ("two", "--ranks 2"), ("three", "--ranks 3")] {
        let results = runs.run(out, &format!("{words} --capture host:0"));
        assert_eq!(outcomes(&results), outcomes(&whole), "{words}");
        assert_eq!(results.findings, whole.findings, "{words}");
        let ranks = words.strip_prefix("--ranks ").map(|count| count.parse().unwrap());
        assert_eq!(results.host.ranks, ranks);
        for file in files {
            let read = |out: &str| fs::read(runs.path(out).join(file)).unwrap();
            assert!(read(out) == read("whole"), "{words}: another {file}");
        }
    }
}

#[test]
fn interrupted_ranks_go_on() {
    let runs = Runs::new();
    let whole = runs.run("whole", &format!("{LONG} --threads 1"));
    let interrupted = |child: Child| {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(
            said(&output).contains("interrupted: run it again with --resume"),
            "{}",
            said(&output)
        );
        assert_eq!(runs.results("out").points[0].state, State::Interrupted);
        assert!(runs.path("out").join("checkpoint-1.bin").exists());
    };
    let child = runs.begin("out", "--ranks 2");
    signal("-INT", child.id());
    interrupted(child);
    let child = runs.begin("out", "--threads 2 --resume");
    signal("-INT", child.id());
    interrupted(child);
    // A signal to any rank.
    let child = runs.begin("out", "--ranks 3 --resume");
    signal("-TERM", ranks_of(runs.0.path())[2]);
    interrupted(child);
    let ended = runs.run("out", &format!("{LONG} --ranks 2 --resume"));
    assert_eq!(outcomes(&ended), outcomes(&whole));
}

#[test]
fn killed_rank_ends_all() {
    let runs = Runs::new();
    let child = runs.begin("out", "--ranks 3");
    signal("-KILL", ranks_of(runs.0.path())[1]);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("signal 9 ended a rank"), "{}", said(&output));
    assert!(ranks_of(runs.0.path()).is_empty());
    let whole = runs.run("whole", &format!("{LONG} --threads 1"));
    let ended = runs.run("out", &format!("{LONG} --threads 2 --resume"));
    assert_eq!(outcomes(&ended), outcomes(&whole));
}

#[test]
fn killed_command_ends_ranks() {
    let runs = Runs::new();
    let mut child = runs.begin("out", "--ranks 2");
    child.kill().unwrap();
    child.wait().unwrap();
    while !ranks_of(runs.0.path()).is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn mpirun_starts_it_too() {
    let runs = Runs::new();
    let by_hand = |words: &str| {
        let mut command = Command::new("mpirun");
        command.args(["-n", "2", MPI]).args(words.split_whitespace());
        command.current_dir(runs.0.path()).stdin(Stdio::null());
        for variable in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            command.env(variable, "1");
        }
        command.env("OMPI_MCA_rmaps_base_oversubscribe", "1").output().unwrap()
    };
    let output = by_hand("sim run small.toml --out two");
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(outcomes(&runs.results("two")), outcomes(&runs.run("whole", "--threads 1")));
    for (words, why) in [
        ("sim list", "one command, sim run"),
        ("sim run small.toml --ranks 3", "--ranks 3, and mpirun started 2"),
        ("sim run incast-1g --quick", "topology: it is one part"),
        ("sim run no-such-experiment", "no experiment 'no-such-experiment'"),
    ] {
        let output = by_hand(words);
        assert_eq!(output.status.code(), Some(2), "{words}: {}", said(&output));
        assert!(said(&output).contains(why), "{words}: {}", said(&output));
    }
}
