//! `venice bench work`: one built-in application in a process of its own, on the memory that it was
//! started with.
//!
//! Each fills its memory ([`Workload::build`]), works on it while the clock runs
//! ([`Workload::run`]), and then computes digests of its result and of its memory. The same
//! application with the same arguments gives the same digests, wherever its pages were in between.

mod bfs;
mod components;
mod digest;
mod fft;
mod graph;
mod grep;
mod grep_file;
mod pagerank;
mod topk;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use venice_wire::ByteSize;

use graph::Graph;
pub use graph::Shape;

use venice_measure::resident::resident_anonymous_bytes;

/// A built-in application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// PageRank over a directed graph with few popular vertices.
    Pagerank,
    /// Breadth-first search over an R-MAT graph.
    Bfs,
    /// Connected components by spreading the least label.
    Components,
    /// A search for words in text.
    Grep,
    /// The same search by Debian's grep, over a file.
    GrepFile,
    /// A complex transform in six steps, forwards and backwards.
    Fft,
    /// PageRank in supersteps over 50 partitions, with messages between them.
    Topk,
}

/// Arguments of a worker.
#[derive(Debug, Clone, Args)]
pub struct WorkArgs {
    /// The application.
    #[arg(value_enum)]
    pub work: Work,

    /// Bytes of the data, for an application without a shape of its own.
    #[arg(long, default_value = "64MiB", value_name = "SIZE")]
    pub size: ByteSize,

    /// The graph's file, for an application with one: made by [`draw_graph`].
    #[arg(long, value_name = "FILE")]
    pub graph: Option<PathBuf>,

    /// The file to search, for an application that searches one; created, and removed at the end.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Repetitions of the application's work.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub rounds: u64,

    /// File for the report.
    #[arg(long, value_name = "FILE")]
    pub json: PathBuf,
}

/// Report of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkReport {
    /// Duration of filling the memory, in seconds.
    pub build_s: f64,
    /// Duration of the work itself, in seconds.
    pub run_s: f64,
    /// Operations of the work, in the application's unit.
    pub operations: u64,
    /// Values that the application itself found wrong.
    pub wrong: u64,
    /// Digests of the result, and of each part of the memory.
    pub digests: Vec<u64>,
    /// Bytes of each partition, sample by sample, of an application that has partitions.
    #[serde(default)]
    pub heat: Vec<Vec<u64>>,
    /// The greater resident anonymous memory before and after the work, in bytes.
    pub resident_bytes: u64,
}

impl WorkArgs {
    fn load_graph(&self) -> Result<Graph> {
        let path = self.graph.as_deref().context("this application needs --graph FILE")?;
        Graph::load(path)
    }
}

impl Work {
    /// True if it loads a graph.
    pub(super) fn has_graph(self) -> bool {
        matches!(self, Self::Pagerank | Self::Bfs | Self::Components | Self::Topk)
    }
}

/// Draws the graph of an application that has one into a file.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn draw_graph(work: Work, web: Shape, scale: u32, path: &Path) -> Result<()> {
    let graph = match work {
        Work::Pagerank => Graph::web(web),
        Work::Bfs => Graph::r_mat(scale, bfs::EDGE_FACTOR),
        Work::Components => Graph::uniform(components::shape(scale)),
        Work::Topk => Graph::skewed(web),
        Work::Grep | Work::GrepFile | Work::Fft => {
            unreachable!("{work:?} has no graph")
        }
    };
    graph.save(path)
}

/// Returns the size of an application's graph and of its data for each vertex, in bytes.
pub(super) fn graph_bytes(work: Work, web: Shape, scale: u32) -> u64 {
    match work {
        Work::Pagerank => pagerank::held_bytes(web),
        Work::Bfs => bfs::held_bytes(scale),
        Work::Components => components::held_bytes(scale),
        Work::Topk => topk::held_bytes(web),
        Work::Grep | Work::GrepFile | Work::Fft => {
            unreachable!("{work:?} has no graph")
        }
    }
}

/// Returns the memory of a transform of so many bytes: it uses two squares.
pub(super) fn fft_bytes(bytes: u64) -> u64 {
    bytes.saturating_mul(2)
}

/// Work done in a run while the clock ran.
#[derive(Debug, Clone, Copy, Default)]
struct Done {
    operations: u64,
    wrong: u64,
}

/// An application.
trait Workload: Sized {
    /// Fills the memory.
    ///
    /// # Errors
    /// When there is no graph to load.
    fn build(args: &WorkArgs) -> Result<Self>;
    /// Runs the work.
    fn run(&mut self, rounds: u64) -> Done;
    /// Returns digests of the result and of the memory.
    fn digests(&self) -> Vec<u64>;
    /// Returns the bytes of each partition, sample by sample.
    fn heat(&self) -> Vec<Vec<u64>> {
        Vec::new()
    }
}

/// Runs one application's work and writes its report.
///
/// # Errors
/// When the graph cannot be loaded or the report cannot be written.
pub fn execute_work(args: WorkArgs) -> Result<()> {
    let report = match args.work {
        Work::Pagerank => measure::<pagerank::PageRank>(&args),
        Work::Bfs => measure::<bfs::Search>(&args),
        Work::Components => measure::<components::Components>(&args),
        Work::Grep => measure::<grep::Grep>(&args),
        Work::GrepFile => grep_file::measure(&args),
        Work::Fft => measure::<fft::Fft>(&args),
        Work::Topk => measure::<topk::TopK>(&args),
    }?;
    let text = serde_json::to_string(&report).context("cannot serialise the report")?;
    let path = &args.json;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn measure<W: Workload>(args: &WorkArgs) -> Result<WorkReport> {
    let resident = || resident_anonymous_bytes(std::process::id()).unwrap_or(0);
    let start = Instant::now();
    let mut workload = W::build(args)?;
    let build_s = start.elapsed().as_secs_f64();
    let resident_before = resident();
    let start = Instant::now();
    let Done { operations, wrong } = workload.run(args.rounds);
    let run_s = start.elapsed().as_secs_f64();
    let resident_bytes = resident_before.max(resident());
    let digests = workload.digests();
    let heat = workload.heat();
    Ok(WorkReport { build_s, run_s, operations, wrong, digests, heat, resident_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_repeat_and_nothing_is_wrong() {
        for work in Work::value_variants() {
            let folder = tempfile::tempdir().unwrap();
            let (json, graph) = (folder.path().join("report.json"), folder.path().join("graph"));
            let shape = Shape { vertices: 1000, edges: 5000 };
            if work.has_graph() {
                draw_graph(*work, shape, 8, &graph).unwrap();
                // The loaded bytes, and some more for each vertex.
                let file_bytes = std::fs::metadata(&graph).unwrap().len();
                let held_bytes = graph_bytes(*work, shape, 8);
                assert!((file_bytes..6 * file_bytes).contains(&(held_bytes + 16)), "{work:?}");
            }
            let args = WorkArgs {
                work: *work,
                size: ByteSize(1 << 20),
                graph: work.has_graph().then_some(graph),
                file: Some(folder.path().join("text")),
                rounds: 1,
                json: json.clone(),
            };
            let reports: Vec<WorkReport> = [(); 2]
                .map(|()| {
                    execute_work(args.clone()).unwrap();
                    serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap()
                })
                .into();
            assert_eq!(reports[0].digests, reports[1].digests, "{work:?}");
            assert!(reports[0].digests.len() >= 2, "{work:?}");
            assert_eq!(reports[0].wrong, 0, "{work:?}");
            assert!(reports[0].operations > 0 && reports[0].resident_bytes > 0, "{work:?}");
        }
    }
}
