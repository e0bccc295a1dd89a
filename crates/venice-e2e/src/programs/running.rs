//! A watched process: output, time limit, resident memory.

use std::io::{ErrorKind, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::programs::proc_tree::{descendants, rss_anon_bytes, threads_report};

/// A process that was started and is watched until [`Running::finish`] or [`Drop`] ends it.
pub struct Running {
    child: Child,
    what: String,
    stdout: Option<Collected>,
    stderr: Option<Collected>,
    sampler: Option<Sampler>,
}

/// Results of a process.
pub struct Outcome {
    /// Everything it wrote to its standard output.
    pub stdout: Vec<u8>,
    /// Everything it wrote to its standard error, lossily decoded.
    pub stderr: String,
    /// Exit status.
    pub status: ExitStatus,
    /// Peak of resident anonymous memory of any single process of it, in bytes.
    pub peak_bytes: u64,
    /// Peak of all its processes together, in bytes; pages shared by a fork count twice.
    pub peak_sum_bytes: u64,
    /// Duration.
    pub took: Duration,
}

impl Outcome {
    /// Returns the exit code as a shell gives it: 128 + N for death by signal N.
    pub fn code(&self) -> i32 {
        exit_code(self.status)
    }

    /// Panics with the whole output unless the exit code is `expected`.
    #[track_caller]
    pub fn expect_code(&self, expected: i32) {
        assert_eq!(
            self.code(),
            expected,
            "exit code\n--- stdout\n{}\n--- stderr\n{}",
            tail(&String::from_utf8_lossy(&self.stdout)),
            tail(&self.stderr)
        );
    }

    /// Returns the number before `words` in the output of `--stats`.
    #[track_caller]
    pub fn number_before(&self, words: &str) -> u64 {
        let said = &self.stderr;
        let (before, _) = said.split_once(words).unwrap_or_else(|| panic!("no {words:?}: {said}"));
        let number = before.rsplit(|c: char| !c.is_ascii_digit()).next();
        number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{words:?}: {said}"))
    }

    /// Returns the number after `words` in the output of `--stats`.
    #[track_caller]
    pub fn number_after(&self, words: &str) -> u64 {
        let said = &self.stderr;
        let (_, after) = said.split_once(words).unwrap_or_else(|| panic!("no {words:?}: {said}"));
        let number = after.split(|c: char| !c.is_ascii_digit()).next();
        number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{words:?}: {said}"))
    }
}

/// Returns the exit code as a shell gives it: 128 + N for death by signal N.
pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

impl Running {
    /// Starts `command` in a process group of its own, with its output collected and its input
    /// empty.
    ///
    /// The watched memory is that of the process and all its descendants; if the process is `venice
    /// run` itself (`without_root`), only that of the descendants.
    pub fn spawn(mut command: Command, without_root: bool) -> Running {
        let what = format!("{command:?}");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
        let stdout = collect(child.stdout.take().expect("piped"));
        let stderr = collect(child.stderr.take().expect("piped"));
        let sampler = Some(Sampler::start(child.id(), without_root));
        Running { child, what, stdout: Some(stdout), stderr: Some(stderr), sampler }
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its descendants that live now.
    pub fn descendants(&self) -> Vec<u32> {
        descendants(self.pid())
    }

    /// True while it has not ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns its whole standard error, once it has ended.
    pub fn stderr_after_end(&mut self) -> String {
        String::from_utf8_lossy(&self.stderr.take().map(join).unwrap_or_default()).into_owned()
    }

    /// Returns its standard error so far.
    pub fn stderr_so_far(&self) -> String {
        let all = self.stderr.as_ref().map(Collected::so_far).unwrap_or_default();
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Returns a listener to its standard error, for use while another owner has the process.
    pub fn listener(&self) -> Listener {
        Listener(self.stderr.as_ref().map(|collected| collected.all.clone()).unwrap_or_default())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Waits for its end, at most `limit`, and returns its outcome.
    ///
    /// # Panics
    /// When the limit is over: after killing it; the message shows its threads' waits.
    pub fn finish(mut self, limit: Duration) -> Outcome {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                break status;
            }
            if started.elapsed() > limit {
                let report = self.kill_all();
                let stderr = self.stderr.take().map(join).unwrap_or_default();
                panic!(
                    "{} took more than {limit:?}\n{report}--- stderr\n{}",
                    self.what,
                    tail(&String::from_utf8_lossy(&stderr))
                );
            }
            std::thread::sleep(Duration::from_millis(3));
        };
        let sampler = self.sampler.take().expect("taken once");
        let (peak_bytes, peak_sum_bytes, took) = sampler.stop();
        Outcome {
            stdout: self.stdout.take().map(join).unwrap_or_default(),
            stderr: String::from_utf8_lossy(&self.stderr.take().map(join).unwrap_or_default())
                .into_owned(),
            status,
            peak_bytes,
            peak_sum_bytes,
            took,
        }
    }

    /// Kills the process and all its descendants; describes where their threads waited.
    fn kill_all(&mut self) -> String {
        let below = self.descendants();
        let mut report = String::new();
        for pid in std::iter::once(self.pid()).chain(below.iter().copied()) {
            report.push_str(&threads_report(pid));
        }
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        for pid in below {
            if let Some(pid) = Pid::from_raw(pid as i32) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        report
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_running() {
            self.kill_all();
        }
    }
}

/// A view of the standard error; see [`Running::listener`].
#[derive(Clone, Debug)]
pub struct Listener(Arc<Mutex<Vec<u8>>>);

impl Listener {
    /// Returns the last lines so far.
    pub fn last_words(&self) -> String {
        tail(&String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Collected bytes of a pipe.
struct Collected {
    all: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Collected {
    fn so_far(&self) -> Vec<u8> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> Collected {
    let all = Arc::new(Mutex::new(Vec::new()));
    let collected = all.clone();
    let reader = std::thread::spawn(move || {
        let mut some = [0; 4096];
        loop {
            match pipe.read(&mut some) {
                Ok(0) => return,
                Ok(len) => {
                    collected.lock().unwrap_or_else(PoisonError::into_inner).extend(&some[..len]);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    Collected { all, reader }
}

fn join(collected: Collected) -> Vec<u8> {
    let all = collected.all.clone();
    collected.reader.join().expect("reading a pipe does not panic");
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut *all)
}

/// Returns the last 40 lines, for messages.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Samples the resident memory every few milliseconds and keeps the peak.
struct Sampler {
    stop: Arc<AtomicBool>,
    peak_bytes: Arc<AtomicU64>,
    peak_sum_bytes: Arc<AtomicU64>,
    started: Instant,
    thread: JoinHandle<()>,
}

const SAMPLE_EVERY: Duration = Duration::from_millis(5);

impl Sampler {
    fn start(root: u32, without_root: bool) -> Sampler {
        let stop = Arc::new(AtomicBool::new(false));
        let peak_bytes = Arc::new(AtomicU64::new(0));
        let peak_sum_bytes = Arc::new(AtomicU64::new(0));
        let (stop_seen, peak) = (stop.clone(), peak_bytes.clone());
        let peak_sum = peak_sum_bytes.clone();
        let thread = std::thread::spawn(move || {
            let me = if without_root { None } else { Some(root) };
            while !stop_seen.load(Ordering::Relaxed) {
                let processes = me.into_iter().chain(descendants(root));
                let now: Vec<u64> = processes.map(rss_anon_bytes).collect();
                peak.fetch_max(now.iter().copied().max().unwrap_or(0), Ordering::Relaxed);
                peak_sum.fetch_max(now.iter().sum(), Ordering::Relaxed);
                std::thread::sleep(SAMPLE_EVERY);
            }
        });
        Sampler { stop, peak_bytes, peak_sum_bytes, started: Instant::now(), thread }
    }

    fn stop(self) -> (u64, u64, Duration) {
        let took = self.started.elapsed();
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        let peak_bytes = self.peak_bytes.load(Ordering::Relaxed);
        (peak_bytes, self.peak_sum_bytes.load(Ordering::Relaxed), took)
    }
}
