//! Arguments of the commands, and the experiment that they make.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use toml::Value;
use venice_cli::failure;
use venice_experiment::{Catalogue, Experiment, ExperimentError, Filter, keys};
use venice_simkernel::units::Nanos;

use super::usage;

/// Greatest seed: TOML's integers have a sign.
const MOST_SEED: u64 = i64::MAX as u64;

/// `venice sim list`
#[derive(Args, Debug, Default)]
pub struct ListArgs {
    /// Print the list as JSON
    #[arg(long)]
    pub json: bool,
}

/// An experiment, and what the command line changes of it.
#[derive(Args, Clone, Debug, Default)]
pub struct Layers {
    /// Name of an experiment, or a file with one (TOML)
    #[arg(value_name = "NAME|FILE")]
    pub experiment: String,
    /// Set a key of the configuration; a value is TOML, or text without quotes
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Sweep a key over several values
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub sweep: Vec<String>,
    /// Take the small variant
    #[arg(long)]
    pub quick: bool,
    /// Seed of all random numbers [default: the experiment's]
    #[arg(long, value_name = "SEED", value_parser = clap::value_parser!(u64).range(..=MOST_SEED))]
    pub seed: Option<u64>,
    /// Run only some points: 'servers=1|8,client=epoll'
    #[arg(long, value_name = "FILTER")]
    pub points: Option<String>,
}

/// `venice sim show`
#[derive(Args, Debug, Default)]
pub struct ShowArgs {
    /// The experiment
    #[command(flatten)]
    pub layers: Layers,
    /// Print it as a file that `venice sim run` takes
    #[arg(long, conflicts_with = "json")]
    pub toml: bool,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

/// `venice sim run`
#[derive(Args, Debug, Default)]
pub struct RunArgs {
    /// The experiment
    #[command(flatten)]
    pub layers: Layers,
    /// Folder of the results [default: NAME-results, or NAME-quick-results]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Threads of one point: they pay for thousands of nodes on idle processors [default: 1]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Processes of one point, by MPI, with a part of the world and a thread each; mpirun starts
    /// venice-lab-mpi, which lies beside venice-lab
    #[arg(long, value_name = "N", value_parser = ranks, conflicts_with = "threads")]
    pub ranks: Option<usize>,
    /// Capture a link of each point for Wireshark, in capture-N.pcapng of the folder: host:3, or
    /// switch:2.31 with its port
    #[arg(long, value_name = "LINK")]
    pub capture: Option<String>,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
    /// Keep the points that the folder has, go on from the checkpoint of one that was interrupted, and
    /// run the others
    #[arg(long)]
    pub resume: bool,
    /// Write a checkpoint of the running point so often, for --resume: 30s; 0: never [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = checkpoint_time)]
    pub checkpoint: Option<Duration>,
}

/// `venice sim compare`
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// Folder of the first run
    #[arg(value_name = "DIR")]
    pub first: PathBuf,
    /// Folder of the second run
    #[arg(value_name = "DIR")]
    pub second: PathBuf,
    /// Print equal figures and every percentile too
    #[arg(long)]
    pub all: bool,
    /// Print the comparison as JSON
    #[arg(long)]
    pub json: bool,
}

/// `venice sim report`
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Folder of the run
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// File to write [default: report.html in the folder]
    #[arg(long, value_name = "FILE.html")]
    pub output: Option<PathBuf>,
}

impl Layers {
    /// Returns the experiment with all changes, and the chosen points.
    ///
    /// # Errors
    /// Usage errors that name the experiment, the file, the key or the sweep.
    pub fn read(&self, catalogue: &Catalogue) -> Result<(Experiment, Filter)> {
        let mut experiment = find(&self.experiment, catalogue)?;
        if self.quick {
            experiment.make_quick().map_err(usage)?;
        }
        for (text, key, value) in pairs("--set", &self.set)? {
            let set = experiment.set(key, keys::value_of(value));
            set.map_err(|error| failure::usage(format!("--set {text}: {error}")))?;
        }
        for (text, key, values) in pairs("--sweep", &self.sweep)? {
            let set = experiment.sweep(key, values_of(values));
            set.map_err(|error| failure::usage(format!("--sweep {text}: {error}")))?;
        }
        if let Some(seed) = self.seed {
            experiment.set("seed", Value::Integer(seed.min(MOST_SEED) as i64)).map_err(usage)?;
        }
        let points = self.points.as_deref().unwrap_or_default();
        let filter = Filter::parse(points, &experiment.sweeps).map_err(usage)?;
        Ok((experiment, filter))
    }

    /// Returns the words of the command line that give the same experiment.
    pub fn words(&self) -> Vec<String> {
        let mut words = vec![self.experiment.clone()];
        let flags = [("--set", &self.set), ("--sweep", &self.sweep)];
        for (flag, values) in flags {
            words.extend(values.iter().flat_map(|value| [flag.to_owned(), value.clone()]));
        }
        words.extend(self.quick.then(|| "--quick".to_owned()));
        let seed = self.seed.map(|seed| seed.to_string());
        for (flag, value) in [("--seed", &seed), ("--points", &self.points)] {
            words.extend(value.iter().flat_map(|value| [flag.to_owned(), value.clone()]));
        }
        words
    }
}

impl RunArgs {
    /// Returns the folder of the results.
    pub fn folder(&self, experiment: &Experiment) -> PathBuf {
        let suffix = if self.layers.quick { "-quick-results" } else { "-results" };
        self.out.clone().unwrap_or_else(|| format!("{}{suffix}", experiment.name).into())
    }

    /// Returns the command that repeats the run.
    pub fn command(&self) -> String {
        let mut words = ["venice", "sim", "run"].map(str::to_owned).to_vec();
        words.extend(self.layers.words());
        words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }
}

/// Returns the experiment of a name, or that of a file.
fn find(name: &str, catalogue: &Catalogue) -> Result<Experiment> {
    let path = Path::new(name);
    let is_file = name.ends_with(".toml") || name.contains('/') || path.exists();
    if catalogue.names().any(|known| known == name) || !is_file {
        return catalogue.get(name).map_err(|error| match error {
            ExperimentError::Unknown { nearest: None, .. } => failure::usage(format!(
                "{error}: see venice sim list, or name a file that ends with .toml"
            )),
            error => usage(error),
        });
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| failure::usage(format!("cannot read {name}: {error}")))?;
    catalogue.read(&text).map_err(|error| failure::usage(format!("{name}: {error}")))
}

/// Splits `KEY=VALUE`; returns the whole text too.
fn pairs<'a>(flag: &str, texts: &'a [String]) -> Result<Vec<(&'a str, &'a str, &'a str)>> {
    let split = |text: &'a String| {
        let (key, value) = text.split_once('=').ok_or_else(|| {
            failure::usage(format!("{flag} {text}: write KEY=VALUE, for example seed=7"))
        })?;
        Ok((&**text, key.trim(), value))
    };
    texts.iter().map(split).collect()
}

/// Reads values between commas, or a TOML array.
fn values_of(text: &str) -> Vec<Value> {
    match keys::value_of(text) {
        Value::Array(values) => values,
        _ => text.split(',').filter(|one| !one.trim().is_empty()).map(keys::value_of).collect(),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=1024).contains(count));
    count.ok_or_else(|| "write a number of threads, 1 to 1024".to_owned())
}

fn ranks(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=1024).contains(count));
    count.ok_or_else(|| "write a number of ranks, 1 to 1024".to_owned())
}

fn checkpoint_time(text: &str) -> Result<Duration, String> {
    let time: Result<Nanos, _> = text.parse();
    let time = time.map_err(|_| "write a time, for example 30s, or 0 for none".to_owned())?;
    Ok(Duration::from_nanos(time.0))
}

/// Quotes a word for a shell where that is needed.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_shells() {
        assert_eq!(quoted("servers=1"), "servers=1");
        assert_eq!(quoted("servers=1|8"), "'servers=1|8'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn checkpoint_times_have_units() {
        assert_eq!(checkpoint_time("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(checkpoint_time("0"), Ok(Duration::ZERO));
        assert!(checkpoint_time("30").is_err());
    }

    #[test]
    fn values_are_split_at_commas() {
        assert_eq!(values_of("1,2us"), [1.into(), "2us".into()]);
        assert_eq!(values_of("[1, 2]"), [1.into(), Value::from(2)]);
        assert_eq!(values_of(""), []);
    }
}
