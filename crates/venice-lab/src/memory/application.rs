//! The applications by name, and the parts of one run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use venice_wire::ByteSize;

use super::berkeley_db;
use super::mode::Mode;
use super::sample::{Sample, Timing};
use super::serve;
use super::setup::Lacking;
use super::work::{self, Shape, Work, WorkReport};
use venice_measure::child::{ChildGuard, find_program};
use venice_measure::launch::Launch;
use venice_measure::progress::Phase;
use venice_measure::resident::PeakSampler;
use venice_measure::scratch::{self, MEMORY_FOLDER};

/// An application of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Application {
    /// Debian's redis-server: values of 1 KiB, read one at a time, uniform and by Zipf's law.
    Redis,
    /// Debian's memcached: values of several sizes, 95 reads to 5 writes, uniform, several clients.
    Memcached,
    /// PageRank over a generated graph with few popular vertices.
    Pagerank,
    /// Graph500's breadth-first search over an R-MAT graph.
    Bfs,
    /// Connected components of a generated graph.
    Components,
    /// A search for words in text that lies in memory.
    Grep,
    /// Debian's grep over a file in tmpfs, whose pages the kernel swaps; in the modes that swap only.
    GrepFile,
    /// A complex transform in six steps, as SPLASH-2 has it.
    Fft,
    /// Berkeley DB, in memory: random reads and updates, four to one.
    BerkeleyDb,
}

impl Application {
    /// All of them, in the order they run.
    pub const ALL: [Self; 9] = [
        Self::Redis,
        Self::Memcached,
        Self::Pagerank,
        Self::Bfs,
        Self::Components,
        Self::Grep,
        Self::GrepFile,
        Self::Fft,
        Self::BerkeleyDb,
    ];

    /// Returns the name used in arguments and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Memcached => "memcached",
            Self::Pagerank => "pagerank",
            Self::Bfs => "bfs",
            Self::Components => "components",
            Self::Grep => "grep",
            Self::GrepFile => "grep-file",
            Self::Fft => "fft",
            Self::BerkeleyDb => "berkeley-db",
        }
    }
}

/// Application sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Bytes of data of redis, memcached, grep and Berkeley DB.
    pub data_bytes: u64,
    /// Vertices of PageRank's graph.
    pub graph_vertices: u32,
    /// Edges of PageRank's graph.
    pub graph_edges: u64,
    /// Exponent of two of the R-MAT graph's vertices; the components' graph has four times as many.
    pub r_mat_scale: u32,
    /// Bytes of grep's file.
    #[serde(default)]
    pub file_bytes: u64,
    /// Bytes of the transform's input.
    pub fft_bytes: u64,
    /// Bytes of memcached's values.
    pub value_bytes: Vec<u64>,
    /// memcached's clients.
    pub clients: Vec<usize>,
    /// Requests of each case of redis and memcached.
    pub requests: u64,
    /// Repetitions of the work of the other applications.
    pub rounds: u64,
}

impl Sizes {
    /// Returns the shape of PageRank's graph.
    fn web(&self) -> Shape {
        Shape { vertices: self.graph_vertices, edges: self.graph_edges }
    }
}

/// One application with its parameters, as it is started once in each mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Load {
    Redis,
    Memcached { value_bytes: u64 },
    BerkeleyDb,
    GrepFile,
    BuiltIn { application: Application, work: Work, bytes: u64 },
}

impl Load {
    /// Lists the loads of the `applications`.
    pub(super) fn all(applications: &[Application], sizes: &Sizes) -> Vec<Load> {
        let mut loads = Vec::new();
        for &application in applications {
            let built_in = |work, bytes| Load::BuiltIn { application, work, bytes };
            match application {
                Application::Redis => loads.push(Load::Redis),
                Application::Memcached => loads.extend(
                    sizes.value_bytes.iter().map(|&value_bytes| Load::Memcached { value_bytes }),
                ),
                Application::Pagerank => loads.push(built_in(Work::Pagerank, 0)),
                Application::Bfs => loads.push(built_in(Work::Bfs, 0)),
                Application::Components => loads.push(built_in(Work::Components, 0)),
                Application::Grep => loads.push(built_in(Work::Grep, sizes.data_bytes)),
                Application::GrepFile => loads.push(Load::GrepFile),
                Application::Fft => loads.push(built_in(Work::Fft, sizes.fft_bytes)),
                Application::BerkeleyDb => loads.push(Load::BerkeleyDb),
            }
        }
        loads
    }

    pub(super) fn application(&self) -> Application {
        match self {
            Load::Redis => Application::Redis,
            Load::Memcached { .. } => Application::Memcached,
            Load::BerkeleyDb => Application::BerkeleyDb,
            Load::GrepFile => Application::GrepFile,
            Load::BuiltIn { application, .. } => *application,
        }
    }

    /// Returns its name in tables.
    pub(super) fn name(&self) -> String {
        match self {
            Load::Memcached { value_bytes } => format!("memcached {}", ByteSize(*value_bytes)),
            _ => self.application().name().to_owned(),
        }
    }

    /// Returns about how many bytes it holds.
    pub(super) fn held_bytes(&self, sizes: &Sizes) -> u64 {
        match self {
            Load::Redis | Load::Memcached { .. } | Load::BerkeleyDb => sizes.data_bytes,
            Load::GrepFile => sizes.file_bytes,
            Load::BuiltIn { work, .. } if work.has_graph() => {
                work::graph_bytes(*work, sizes.web(), sizes.r_mat_scale)
            }
            Load::BuiltIn { work: Work::Fft, bytes, .. } => work::fft_bytes(*bytes),
            Load::BuiltIn { bytes, .. } => *bytes,
        }
    }

    /// Checks that it can run in `mode`.
    ///
    /// # Errors
    /// With the reason why it cannot.
    pub(super) fn check_mode(&self, mode: Mode) -> Result<(), Lacking> {
        match self {
            Load::GrepFile if !mode.swaps() => Err(Lacking(
                "files in tmpfs are kernel memory: only kernel swap can move their pages out"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// Creates its input file in `folder`, if it needs one: the graph that it loads, or the
    /// program. The inner error names what this machine lacks for it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn prepare(
        &self,
        sizes: &Sizes,
        folder: &Path,
    ) -> Result<Result<Option<PathBuf>, Lacking>> {
        match self {
            Load::Redis | Load::Memcached { .. } => Ok(Ok(None)),
            Load::GrepFile => Ok(match find_program("grep") {
                Ok(_) => Ok(None),
                Err(lacks) => Err(Lacking(format!("{lacks} (apt-get install grep)"))),
            }),
            Load::BerkeleyDb => Ok(berkeley_db::build(folder)?.map(Some)),
            Load::BuiltIn { work, .. } if !work.has_graph() => Ok(Ok(None)),
            Load::BuiltIn { work, .. } => {
                let graph = folder.join(format!("{}.graph", self.application().name()));
                let _phase = Phase::waiting(format!("prepare {}", self.name()));
                work::draw_graph(*work, sizes.web(), sizes.r_mat_scale, &graph)?;
                Ok(Ok(Some(graph)))
            }
        }
    }

    /// Runs it once, from the `prepared` file. A run that takes longer than `limit` is ended.
    ///
    /// # Errors
    /// When the program fails or takes too long, and on an interrupt.
    pub(super) fn run(
        &self,
        launch: &Launch<'_>,
        sizes: &Sizes,
        prepared: Option<&Path>,
        limit: Duration,
        label: &str,
    ) -> Result<Sample> {
        let folder = scratch::folder(scratch::FOLDER)?;
        match self {
            Load::Redis => serve::redis(launch, sizes, limit, folder.path(), label),
            Load::Memcached { value_bytes } => {
                serve::memcached(launch, sizes, *value_bytes, limit, folder.path(), label)
            }
            Load::BerkeleyDb => {
                let _phase = Phase::waiting(label);
                let mut command = launch.command(prepared.context("it was compiled")?);
                command.args([sizes.data_bytes, sizes.rounds].map(|number| number.to_string()));
                run_work(&self.name(), command, limit, folder.path())
            }
            Load::GrepFile => {
                let _phase = Phase::waiting(label);
                let memory = scratch::folder_in(MEMORY_FOLDER.as_ref(), scratch::FOLDER)?;
                let mut command =
                    work_command(launch, Work::GrepFile, sizes.file_bytes, sizes.rounds)?;
                command.arg("--file").arg(memory.path().join("text"));
                run_work(&self.name(), command, limit, folder.path())
            }
            Load::BuiltIn { application, work, bytes } => {
                let _phase = Phase::waiting(label);
                let mut command = work_command(launch, *work, *bytes, sizes.rounds)?;
                if let Some(graph) = prepared {
                    command.arg("--graph").arg(graph);
                }
                run_work(application.name(), command, limit, folder.path())
            }
        }
    }
}

fn work_command(launch: &Launch<'_>, work: Work, bytes: u64, rounds: u64) -> Result<Command> {
    let program = std::env::current_exe().context("cannot find the running program")?;
    let name = work.to_possible_value().expect("no application is hidden");
    let mut command = launch.command(&program);
    command
        .args(["bench", "work", name.get_name(), "--size", &bytes.to_string()])
        .args(["--rounds", &rounds.to_string()]);
    Ok(command)
}

fn run_work(name: &str, command: Command, limit: Duration, folder: &Path) -> Result<Sample> {
    let (report, peak_bytes) = report_of_work(name, command, limit, folder)?;
    Ok(Sample {
        load_s: report.build_s,
        resident_bytes: report.resident_bytes,
        peak_bytes,
        checked: 0,
        wrong: report.wrong,
        digests: report.digests,
        cases: vec![Timing {
            case: name.to_owned(),
            operations: report.operations,
            seconds: report.run_s,
            p99_us: None,
            cut_short: false,
        }],
    })
}

/// Runs `command`, a worker; returns its report and its peak of resident memory in bytes, which
/// matters on local memory. The peak is the worker's own only if no other process stands in
/// between.
///
/// # Errors
/// When it fails or takes longer than `limit`, and on an interrupt.
pub(super) fn report_of_work(
    name: &str,
    mut command: Command,
    limit: Duration,
    folder: &Path,
) -> Result<(WorkReport, u64)> {
    let json = folder.join("report.json");
    command.arg("--json").arg(&json);
    let mut worker = ChildGuard::spawn(name, command, &folder.join("log"))?;
    let sampler = PeakSampler::start(worker.pid());
    worker.wait_success(limit)?;
    let text = std::fs::read_to_string(&json).context("the worker left no report")?;
    let report = serde_json::from_str(&text).context("the worker's report")?;
    Ok((report, sampler.peak_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_the_report() {
        for application in Application::ALL {
            assert_eq!(serde_json::to_value(application).unwrap(), application.name());
            assert_eq!(Application::from_str(application.name(), false), Ok(application));
        }
    }
}
