//! The donors' own work while they lend: connected components, job after job, on processors of
//! their own where the machine has two.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::super::work::{self, Shape, Work, WorkReport};
use venice_measure::child::ChildGuard;
use venice_measure::cpus;

/// Time limit of one job.
const JOB_LIMIT: Duration = Duration::from_secs(120);

/// Processors of the donors and of the other processes.
#[derive(Debug, Clone, Default)]
pub(super) struct Processors {
    pub(super) service: Vec<usize>,
    pub(super) donors: Vec<usize>,
}

impl Processors {
    /// Gives the upper half to the donors; a single processor is shared.
    ///
    /// # Errors
    /// When the kernel does not report the processors.
    pub(super) fn split() -> Result<Self> {
        let all = cpus::allowed()?;
        if all.len() < 2 {
            return Ok(Self { service: all.clone(), donors: all });
        }
        let (service, donors) = all.split_at(all.len() / 2);
        Ok(Self { service: service.into(), donors: donors.into() })
    }

    pub(super) fn are_split(&self) -> bool {
        self.service != self.donors
    }
}

/// A job: a graph and the number of passes over it.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) graph: PathBuf,
    pub(super) rounds: u64,
    pub(super) processors: Vec<usize>,
    /// Digests that every job must report.
    pub(super) digests: Vec<u64>,
}

/// Results of the jobs that ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Jobs {
    /// Working time of each job.
    pub(super) seconds: Vec<f64>,
    /// Digests checked, and wrong ones among them.
    pub(super) checked: u64,
    pub(super) wrong: u64,
}

impl Job {
    /// Draws the graph into `folder` and runs the job once for its digests.
    ///
    /// # Errors
    /// When the job does not run.
    pub(super) fn prepare(
        folder: &Path,
        scale: u32,
        rounds: u64,
        processors: &[usize],
    ) -> Result<Self> {
        let graph = folder.join("donors.graph");
        work::draw_graph(Work::Components, Shape::SMALL, scale, &graph)?;
        let mut job = Self { graph, rounds, processors: processors.into(), digests: Vec::new() };
        job.digests = job.run_once(folder, || false)?.context("the job did not end")?.digests;
        Ok(job)
    }

    /// Runs it `times` times, with no load beside it.
    ///
    /// # Errors
    /// When it fails, and on an interrupt.
    pub(super) fn alone(&self, folder: &Path, times: usize) -> Result<Jobs> {
        let mut jobs = Jobs::default();
        for _ in 0..times {
            let report = self.run_once(folder, || false)?.context("the job did not end")?;
            jobs.enter(&report, &self.digests);
        }
        Ok(jobs)
    }

    /// Runs it again and again until stopped.
    pub(super) fn beside(&self, folder: &Path) -> Beside {
        let stop = Arc::new(AtomicBool::new(false));
        let (job, folder, stop_flag) = (self.clone(), folder.to_owned(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut jobs = Jobs::default();
            let stopped = || stop_flag.load(Ordering::Relaxed);
            while !stopped() {
                if let Some(report) = job.run_once(&folder, stopped)? {
                    jobs.enter(&report, &job.digests);
                }
            }
            Ok(jobs)
        });
        Beside { stop, thread: Some(thread) }
    }

    /// Runs one job; `None` if it was interrupted.
    fn run_once(&self, folder: &Path, stopped: impl Fn() -> bool) -> Result<Option<WorkReport>> {
        let program = std::env::current_exe().context("cannot find the running program")?;
        let json = folder.join("donors.json");
        let mut command = std::process::Command::new(program);
        command
            .args(["bench", "work", "components", "--rounds", &self.rounds.to_string()])
            .arg("--graph")
            .arg(&self.graph)
            .arg("--json")
            .arg(&json);
        let mut worker = ChildGuard::spawn("components", command, &folder.join("donors.log"))?;
        cpus::confine(worker.pid(), &self.processors)?;
        if !worker.wait_success_unless(JOB_LIMIT, stopped)? {
            return Ok(None);
        }
        let text = std::fs::read_to_string(&json).context("the job left no report")?;
        Ok(Some(serde_json::from_str(&text).context("the job's report")?))
    }
}

impl Jobs {
    fn enter(&mut self, report: &WorkReport, digests: &[u64]) {
        self.seconds.push(report.run_s);
        self.checked += digests.len() as u64;
        let pairs = report.digests.iter().zip(digests);
        self.wrong += pairs.filter(|(here, there)| here != there).count() as u64;
        self.wrong += report.digests.len().abs_diff(digests.len()) as u64;
    }

    pub(super) fn add(&mut self, other: Jobs) {
        self.seconds.extend(other.seconds);
        self.checked += other.checked;
        self.wrong += other.wrong;
    }

    /// Returns the median of the jobs' times; `None` without any.
    pub(super) fn median_s(&self) -> Option<f64> {
        let mut seconds = self.seconds.clone();
        seconds.sort_unstable_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied()
    }
}

/// Jobs that go on in the background until [`Beside::stop`], or until this is dropped.
#[derive(Debug)]
pub(super) struct Beside {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Jobs>>>,
}

impl Beside {
    /// Returns the jobs that ended so far and kills the running one.
    ///
    /// # Errors
    /// When a job failed.
    pub(super) fn stop(mut self) -> Result<Jobs> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(jobs)) => jobs.context("the donors' own work"),
            _ => bail!("the thread of the donors' own work has panicked"),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The run is over: a failure there no longer matters.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_time_and_wrong_digests() {
        let mut jobs = Jobs::default();
        assert_eq!(jobs.median_s(), None);
        for (run_s, digests) in [(3.0, vec![1, 2]), (1.0, vec![1, 5]), (2.0, vec![1])] {
            let report = WorkReport {
                build_s: 0.1,
                run_s,
                operations: 1,
                wrong: 0,
                digests,
                heat: Vec::new(),
                resident_bytes: 1,
            };
            jobs.enter(&report, &[1, 2]);
        }
        assert_eq!(jobs.median_s(), Some(2.0));
        assert_eq!((jobs.checked, jobs.wrong), (6, 2));
    }

    #[test]
    fn processors_are_split_without_overlap() {
        let processors = Processors::split().unwrap();
        let all = cpus::allowed().unwrap();
        if processors.are_split() {
            let both = [processors.service, processors.donors].concat();
            assert_eq!(both, all);
        } else {
            assert_eq!((processors.service, processors.donors.len()), (all, 1));
        }
    }
}
