//! The program that touches pages. It is started once for every way, and is independent of the way,
//! except for the floor, whose handler it contains.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use venice_wire::ByteSize;

use super::PAGE_BYTES;
use super::floor::{FloorRegion, SOURCE_PAGE};
use super::region::Region;
use super::sigbus_floor::SigbusRegion;
use super::touch::{CaseReport, Operation, Pattern, RUN_PAGES, Spent, Tally, Touch};
use crate::clock;
use crate::cpu_time;
use venice_measure::cpus;
use venice_measure::pattern::Random;
use venice_measure::resident::PeakSampler;

/// Unmeasured touching before each case, so that the set of resident pages settles.
const WARM_UP: Duration = Duration::from_millis(250);

/// One process of the fault benchmark (started by `venice bench fault`).
#[derive(Debug, Clone, Args)]
pub struct WorkerArgs {
    /// Memory to touch.
    #[arg(long)]
    pub size: ByteSize,

    /// Duration of a case in seconds.
    #[arg(long, value_parser = venice_measure::arguments::positive)]
    pub seconds: f64,

    /// Orders of the pages.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Pattern::Random, Pattern::Sequential])]
    pub patterns: Vec<Pattern>,

    /// Serve the faults in this process, by a bare handler.
    #[arg(long, value_enum)]
    pub floor: Option<Floor>,

    /// UMap's shared library, to let UMap serve the faults.
    #[arg(long, value_name = "LIBRARY", conflicts_with = "floor")]
    pub umap: Option<PathBuf>,

    /// Request large pages instead of small ones.
    #[arg(long)]
    pub large_pages: bool,

    /// Let threads run on any processor.
    #[arg(long)]
    pub unpinned: bool,

    /// Processes whose processor time counts as that of helpers.
    #[arg(long, value_delimiter = ',')]
    pub helpers: Vec<u32>,

    /// File for the figures (`-` is standard output).
    #[arg(long, default_value = "-")]
    pub json: PathBuf,
}

/// A bare handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Floor {
    /// A thread that reads a userfaultfd.
    Handler,
    /// The thread itself, in its signal handler.
    Sigbus,
}

/// The figures of one worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Cost of the clock, subtracted from every latency, in nanoseconds.
    pub clock_cost_ns: u64,
    /// Duration of writing every page for the first time, in seconds; 0 at the floor.
    pub fill_s: f64,
    /// The cases.
    pub cases: Vec<CaseReport>,
}

/// Touches pages and writes the figures.
///
/// # Errors
/// When memory, threads or userfaultfd are refused, or the figures cannot be written.
pub fn execute_worker(args: WorkerArgs) -> Result<()> {
    let bench = Bench::new(&args)?;
    let report = match args.floor {
        Some(floor) => bench.run_floor(floor)?,
        None => bench.run_paged()?,
    };
    venice_measure::report::write_json(&args.json, &report)
}

struct Bench<'a> {
    args: &'a WorkerArgs,
    pages: u64,
    cpus: Vec<usize>,
    clock_cost_ns: u64,
    length: Duration,
    /// Next page of sequential cases: the pages behind it may still be resident.
    cursor: AtomicU64,
}

impl<'a> Bench<'a> {
    fn new(args: &'a WorkerArgs) -> Result<Self> {
        let pages = args.size.0 / PAGE_BYTES;
        if pages < 16 {
            bail!("--size {} is too small to measure", args.size);
        }
        Ok(Self {
            args,
            pages,
            cpus: cpus::allowed()?,
            clock_cost_ns: clock::cost_ns(),
            length: Duration::from_secs_f64(args.seconds),
            cursor: AtomicU64::new(0),
        })
    }

    fn run_paged(&self) -> Result<WorkerReport> {
        let region = match &self.args.umap {
            None => Region::map(self.pages)?,
            Some(library) => Region::by_umap(library, self.pages)?,
        };
        if self.args.large_pages {
            region.ask_for_large_pages();
        }
        let start = Instant::now();
        (0..self.pages).for_each(|page| region.fill_page(page));
        let fill_s = start.elapsed().as_secs_f64();
        let cases = self.each_case(|case| self.paged_case(case, &region))?;
        Ok(WorkerReport { clock_cost_ns: self.clock_cost_ns, fill_s, cases })
    }

    fn run_floor(&self, floor: Floor) -> Result<WorkerReport> {
        let cases = self.each_case(|case| self.floor_case(floor, case))?;
        Ok(WorkerReport { clock_cost_ns: self.clock_cost_ns, fill_s: 0.0, cases })
    }

    fn each_case(
        &self,
        mut run: impl FnMut(Case) -> Result<CaseReport>,
    ) -> Result<Vec<CaseReport>> {
        let mut reports = Vec::new();
        for &pattern in &self.args.patterns {
            for operation in [Operation::Read, Operation::Write] {
                for threads in [1, 2] {
                    let number = reports.len() as u64;
                    reports.push(run(Case { number, pattern, operation, threads })?);
                }
            }
        }
        Ok(reports)
    }

    fn paged_case(&self, case: Case, region: &Region) -> Result<CaseReport> {
        let start = self.cursor.load(Ordering::Relaxed);
        let first_page = |thread: usize| start + self.pages / case.threads as u64 * thread as u64;
        let farthest = AtomicU64::new(0);
        let report = self.timed(case, |thread, settled| {
            let touch = self.touch(case, None);
            // Every case has another seed: pages touched by the previous case are resident.
            let seed = case.number * 2 + thread as u64 + 1;
            let mut random = Random::new(seed);
            let (mut taken, mut run) = (0, 0);
            let mut order = std::iter::from_fn(|| {
                let at = taken % RUN_PAGES;
                taken += 1;
                Some(match case.pattern {
                    Pattern::Random => random.below(self.pages),
                    Pattern::Sequential => (first_page(thread) + taken - 1) % self.pages,
                    Pattern::Runs => {
                        if at == 0 {
                            run = random.below(self.pages / RUN_PAGES) * RUN_PAGES;
                        }
                        run + at
                    }
                })
            });
            touch.run(region, &mut order, WARM_UP, seed);
            settled();
            let tally = touch.run(region, &mut order, self.length, seed);
            farthest.fetch_max(taken, Ordering::Relaxed);
            tally
        });
        if case.pattern == Pattern::Sequential {
            let next = (start + farthest.into_inner()) % self.pages;
            self.cursor.store(next, Ordering::Relaxed);
        }
        report
    }

    /// Runs a case of the floor. Each page is touched at most once, so that every touch faults;
    /// only the handler needs a warm-up.
    fn floor_case(&self, floor: Floor, case: Case) -> Result<CaseReport> {
        let share = self.pages / case.threads as u64;
        let floors = (0..case.threads)
            .map(|thread| Bare::new(floor, share, self.cpu(thread)))
            .collect::<Result<Vec<_>>>()?;
        let report = self.timed(case, |thread, settled| {
            let touch = self.touch(case, Some(SOURCE_PAGE));
            let region = floors[thread].region();
            let order = floor_order(case.pattern, share, thread as u64);
            let (before, measured) = order.split_at((share / 16) as usize);
            touch.run(region, before.iter().copied(), WARM_UP, 1);
            settled();
            touch.run(region, measured.iter().copied(), self.length, 2)
        })?;
        floors.into_iter().try_for_each(Bare::finish)?;
        Ok(report)
    }

    fn touch(&self, case: Case, source_page: Option<u64>) -> Touch {
        Touch { operation: case.operation, clock_cost_ns: self.clock_cost_ns, source_page }
    }

    fn cpu(&self, thread: usize) -> usize {
        self.cpus[thread % self.cpus.len()]
    }

    fn place(&self, thread: usize) -> Result<()> {
        if self.args.unpinned { Ok(()) } else { cpus::pin_to(self.cpu(thread)) }
    }

    /// Runs `body` in the case's threads, each pinned to a core unless unpinned. A thread calls the
    /// given function after its warm-up; time and processor time count from when all have.
    fn timed(
        &self,
        case: Case,
        body: impl Fn(usize, &dyn Fn()) -> Tally + Sync,
    ) -> Result<CaseReport> {
        let barrier = Barrier::new(case.threads + 1);
        let own = [std::process::id()];
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..case.threads)
                .map(|thread| {
                    let (body, barrier) = (&body, &barrier);
                    scope.spawn(move || {
                        let pinned = self.place(thread);
                        let began = Cell::new(Instant::now());
                        let tally = body(thread, &|| {
                            barrier.wait();
                            began.set(Instant::now());
                        });
                        pinned.map(|()| (tally, began.get(), Instant::now()))
                    })
                })
                .collect();
            barrier.wait();
            let sampler = PeakSampler::start(std::process::id());
            let before =
                (cpu_time::of_processes_s(&own), cpu_time::of_processes_s(&self.args.helpers));
            let mut tally = Tally::new();
            // The span uses the threads' own clocks: on a busy machine they may end before this
            // thread runs again.
            let mut span: Option<(Instant, Instant)> = None;
            for thread in threads {
                let joined = thread.join().unwrap_or_else(|_| bail!("a measuring thread panicked"));
                let (part, began, ended) = joined?;
                tally.add(&part);
                let (first, last) = span.unwrap_or((began, ended));
                span = Some((first.min(began), last.max(ended)));
            }
            let (first, last) = span.context("a case without threads")?;
            let spent = Spent {
                elapsed: last - first,
                resident_bytes_peak: sampler.peak_bytes(),
                program_s: cpu_time::of_processes_s(&own) - before.0,
                helpers_s: cpu_time::of_processes_s(&self.args.helpers) - before.1,
            };
            let Case { pattern, operation, threads, .. } = case;
            Ok(CaseReport::new((pattern, operation, threads), &tally, spent))
        })
    }
}

/// A region that a bare handler serves.
enum Bare {
    Handler(FloorRegion),
    Sigbus(SigbusRegion),
}

impl Bare {
    fn new(floor: Floor, pages: u64, cpu: usize) -> Result<Self> {
        Ok(match floor {
            Floor::Handler => Self::Handler(FloorRegion::new(pages, cpu)?),
            Floor::Sigbus => Self::Sigbus(SigbusRegion::new(pages)?),
        })
    }

    fn region(&self) -> &Region {
        match self {
            Self::Handler(floor) => floor.region(),
            Self::Sigbus(floor) => floor.region(),
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Handler(floor) => floor.finish(),
            Self::Sigbus(_) => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    /// Number of the case from 0, in the order they run.
    number: u64,
    pattern: Pattern,
    operation: Operation,
    threads: usize,
}

/// Returns all pages once: in order, or shuffled.
fn floor_order(pattern: Pattern, pages: u64, seed: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..pages).collect();
    if pattern == Pattern::Random {
        let mut random = Random::new(seed);
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floor_touches_every_page_once() {
        for pattern in [Pattern::Random, Pattern::Sequential] {
            let mut order = floor_order(pattern, 1000, 5);
            assert_eq!(order.is_sorted(), pattern == Pattern::Sequential);
            order.sort_unstable();
            assert_eq!(order, (0..1000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn worker_reports_every_case() {
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("report.json");
        execute_worker(WorkerArgs {
            size: ByteSize(1 << 20),
            seconds: 0.01,
            patterns: vec![Pattern::Random, Pattern::Sequential],
            floor: None,
            umap: None,
            large_pages: false,
            unpinned: false,
            helpers: vec![],
            json: json.clone(),
        })
        .unwrap();
        let report: WorkerReport =
            serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
        assert_eq!(report.cases.len(), 8);
        for case in &report.cases {
            assert!(case.accesses > 0, "{case:?}");
            assert_eq!(case.wrong, 0, "{case:?}");
            assert!(case.p50_us <= case.p99_us && case.p99_us <= case.max_us, "{case:?}");
        }
    }
}
